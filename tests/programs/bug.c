/* For the tests of the harness: a program that fails in every second run with Motet. Usage: bug HOW COUNTER
 * COUNTER is a file that grows by a byte in each of those runs. HOW is the failure: "status" (it fails), "output" (it prints something
 * else), "complaint" (it prints to standard error), "hang", or "bytes" (it sends so little that nothing takes the fast path). */
#include "check.h"

#include <fcntl.h>
#include <sys/stat.h>

static int rounds = 200;

static void accepted(int fd) { exchange(fd, 0, rounds); }
static void connected(int fd) { exchange(fd, 1, rounds); }

static int appears(const char *counter)
{
    struct stat now;
    int file = open(counter, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    CHECK(file >= 0 && fstat(file, &now) == 0);
    CHECK(write(file, "x", 1) == 1);
    close(file);
    return now.st_size % 2 == 0;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    int bug = getenv("LD_PRELOAD") && appears(argv[2]);
    if (bug && strcmp(argv[1], "bytes") == 0) rounds = 1;
    if (bug && strcmp(argv[1], "hang") == 0) pause();
    if (bug && strcmp(argv[1], "complaint") == 0) fprintf(stderr, "a bug\n");
    two_processes("4", accepted, connected);
    printf("done%s\n", bug && strcmp(argv[1], "output") == 0 ? ", almost" : "");
    return bug && strcmp(argv[1], "status") == 0;
}
