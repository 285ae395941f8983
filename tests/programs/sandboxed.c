/* A process in a sandbox (Landlock) that may not connect to abstract names outside it: its conversation continues. Usage: sandboxed ROLE
 * ROLE, accepted or connected, is the end in the sandbox. Exits with 77 where there is no such sandbox. */
#include "check.h"
#include <linux/landlock.h>
#include <sys/syscall.h>

static const char *role;

/* struct landlock_ruleset_attr of Linux 6.12; older headers lack the last word. */
struct rules {
    uint64_t files, network, scoped;
};
enum { SCOPE_ABSTRACT = 1 };

static void confine(void)
{
    struct rules rules = {.scoped = SCOPE_ABSTRACT};
    long set = syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0);
    if (set < 0) exit(77);
    CHECK(syscall(SYS_landlock_restrict_self, (int)set, 0) == 0);
    close((int)set);
}

static void accepted(int fd)
{
    if (strcmp(role, "accepted") == 0) confine();
    exchange(fd, 0, 500);
    close(fd);
}

static void connected(int fd)
{
    if (strcmp(role, "connected") == 0) confine();
    exchange(fd, 1, 500);
    printf("500 exchanges, one end in a sandbox\n");
    close(fd);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    role = argv[1];
    setvbuf(stdout, NULL, _IOLBF, 4096);
    two_processes("4", accepted, connected);
}
