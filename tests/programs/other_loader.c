/* other_loader.c: takes the place of the dynamic loader of another C library. Prints LD_PRELOAD as it gets it, and ends. Built without any library. */
static long call(long number, long a, const void *b, long c)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

static int begins(const char *text, const char *with)
{
    while (*with && *text == *with) text++, with++;
    return *with == 0;
}

__attribute__((used)) static void begin(long *stack)
{
    for (char **entry = (char **)(stack + 1 + *stack + 1); *entry; entry++) {
        long length = 0;
        if (!begins(*entry, "LD_PRELOAD=")) continue;
        while ((*entry)[length]) length++;
        call(1, 1, *entry, length);
    }
    call(1, 1, "\n", 1);
    call(60, 0, 0, 0);
    __builtin_unreachable();
}

__asm__(".globl _start\n_start: mov %rsp, %rdi\nand $-16, %rsp\ncall begin\n");
