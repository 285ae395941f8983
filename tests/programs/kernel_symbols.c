/* Whether the library (symbols-fi.c) and this program find symbols of the kernel: prints "1 1". Usage: kernel_symbols LIBRARY */
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **words)
{
    void *library = count == 2 ? dlopen(words[1], RTLD_NOW) : NULL;
    int (*library_finds)(void) = library ? (int (*)(void))dlsym(library, "finds_symbols") : NULL;
    if (!library_finds) return 2;
    FILE *file = fopen("/proc/kallsyms", "r");
    int found = file && fgetc(file) != EOF;
    printf("%d %d\n", library_finds(), found);
    return 0;
}
