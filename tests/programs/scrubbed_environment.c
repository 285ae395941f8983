/* Overwrites its environment before its first socket, as servers do that set a process title. */
#include "check.h"

extern char **environ;

static void accepted(int fd) { exchange_until_settled(fd, 0); }
static void connected(int fd) { exchange_until_settled(fd, 1); }

int main(void)
{
    for (char **at = environ; *at; at++) memset(*at, 'x', strlen(*at));
    environ[0] = NULL;
    CHECK(getenv("MOTET_STATS") == NULL && getenv("HOME") == NULL);
    two_processes("4", accepted, connected);
    printf("done\n");
}
