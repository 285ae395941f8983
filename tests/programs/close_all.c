/* close_range() and closefrom() close every descriptor of a range, also when no descriptor is free and when there is no /proc (as root).
 * Usage: close_all none|jail|from    none: no free descriptor; jail: in an empty root; from: closefrom() */
#include "check.h"
#include <stdbool.h>
#include <sys/resource.h>

static const char *how;

static bool is(const char *word) { return strcmp(how, word) == 0; }

static void accepted(int fd)
{
    exchange(fd, 0, 300);
    struct rlimit few = {256, 256};
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    int first = -1, last = -1;
    for (int n; (is("none") || last < 100) && (n = open("/dev/null", O_RDONLY)) >= 0; last = n)
        if (first < 0 && n > fd) first = n;
    if (is("jail")) {
        char folder[] = "/tmp/motet-jail-XXXXXX";
        CHECK(mkdtemp(folder) != NULL);
        if (chroot(folder) != 0) {
            CHECK(rmdir(folder) == 0 && geteuid() != 0); /* otherwise as with /proc */
        }
    }
    if (is("from")) closefrom(first);
    else CHECK(close_range((unsigned)first, (unsigned)last, 0) == 0);
    int open_ones = 0;
    for (int n = first; n <= last; n++) open_ones += fcntl(n, F_GETFD) >= 0;
    printf("%d descriptors of the range are open\n", open_ones);
    exchange(fd, 0, 50); /* the engine's descriptors were not closed */
}

static void connected(int fd)
{
    exchange(fd, 1, 300);
    exchange(fd, 1, 50);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    how = argv[1];
    two_processes("4", accepted, connected);
}
