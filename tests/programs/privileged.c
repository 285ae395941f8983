/* Prints whether this process has more privileges than the user who started it, and whether the preload object is loaded. Usage: privileged */
#include "check.h"
#include <link.h>
#include <stdbool.h>

static bool seen;

static int look(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size, (void)unused;
    seen |= strstr(info->dlpi_name, "libmotet_sockets") != NULL;
    return 0;
}

static void accepted(int fd) { exchange(fd, 0, 300); }
static void connected(int fd) { exchange(fd, 1, 300); }

int main(void)
{
    dl_iterate_phdr(look, NULL);
    printf("%s, preload object %s\n", geteuid() == getuid() ? "unprivileged" : "privileged", seen ? "present" : "absent");
    two_processes("4", accepted, connected);
}
