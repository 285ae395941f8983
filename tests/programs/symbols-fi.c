/* A library with a name like those of libfabric's providers. It checks whether it finds symbols of the kernel. */
#include <stdio.h>

__attribute__((visibility("default"))) int finds_symbols(void);

int finds_symbols(void)
{
    FILE *file = fopen("/proc/kallsyms", "r");
    int found = file && fgetc(file) != EOF;
    if (file) fclose(file);
    return found;
}
