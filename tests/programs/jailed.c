/* A file server's way: accepts, changes its root, serves. Usage: jailed FOLDER */
#include "check.h"

static const char *folder;

static void accepted(int fd)
{
    CHECK(chroot(folder) == 0 && chdir("/") == 0);
    exchange(fd, 0, 100);
}

static void connected(int fd) { exchange(fd, 1, 100); }

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    folder = argv[1];
    two_processes("4", accepted, connected);
    puts("served");
}
