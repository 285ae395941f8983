/* Prints whether the engine is mapped (/proc/self/maps), after a conversation with `talk`. Usage: not_loaded talk|idle */
#include "check.h"

static void accepted(int fd)
{
    exchange_until_settled(fd, 0);
    close(fd);
}

static void connected(int fd)
{
    exchange_until_settled(fd, 1);
    close(fd);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    if (strcmp(argv[1], "talk") == 0) two_processes("4", accepted, connected);
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    int engine = 0;
    CHECK(maps);
    while (fgets(line, sizeof line, maps)) engine |= strstr(line, "libmotet.so") != NULL;
    printf("engine %s\n", engine ? "loaded" : "not loaded");
}
