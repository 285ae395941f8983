/* A process ends by _exit() in a signal handler that may have interrupted malloc(): nothing may allocate from then on. */
#include "check.h"

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static volatile sig_atomic_t ending;

static void refuse(void)
{
    static const char words[] = "memory was allocated\n";
    if (ending && write(2, words, sizeof words - 1)) abort();
}

void *malloc(size_t size) { refuse(); return __libc_malloc(size); }
void *calloc(size_t count, size_t size) { refuse(); return __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { refuse(); return __libc_realloc(old, size); }
void *memalign(size_t alignment, size_t size) { refuse(); return __libc_memalign(alignment, size); }
void *aligned_alloc(size_t alignment, size_t size) { refuse(); return __libc_memalign(alignment, size); }
int posix_memalign(void **out, size_t alignment, size_t size)
{
    refuse();
    *out = __libc_memalign(alignment, size);
    return *out ? 0 : ENOMEM;
}

static void end(int number)
{
    (void)number;
    ending = 1;
    _exit(0);
}

static void waits_for_its_end(int fd)
{
    exchange_until_settled(fd, 1);
    struct sigaction action = {.sa_handler = end};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    raise(SIGUSR1);
    CHECK(!"still here");
}

static void sees_it(int fd)
{
    char byte;
    exchange_until_settled(fd, 0);
    printf("%s\n", recv(fd, &byte, 1, 0) == 0 ? "end of file" : "an error");
    close(fd);
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 4096);
    two_processes("4", sees_it, waits_for_its_end);
}
