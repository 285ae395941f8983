/* symbols-fi.c: a library that is called as libfabric calls its providers: whether it finds symbols of the kernel. */
#include <stdio.h>

__attribute__((visibility("default"))) int finds_symbols(void);

int finds_symbols(void)
{
    FILE *file = fopen("/proc/kallsyms", "r");
    int found = file && fgetc(file) != EOF;
    if (file) fclose(file);
    return found;
}
