/* The memory between a process and its peer. Usage: memory HOW
 *   small    after messages of a few bytes only
 *   locked   as small, in processes that have locked all memory, present and future (mlockall)
 *   bulk     after 64 MiB in each direction in turn
 * Each end prints one line for each memory file that it has mapped: its name, resident kB, huge kB, and the relevant flags of
 * /proc/PID/smaps: dd (not in core dumps), lo (locked), hg (huge pages wanted). Without such mappings it prints nothing. */
#include "check.h"
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <dirent.h>

enum { MESSAGE = 8, ROUNDS = 200, PIECE = 1 << 16, PIECES = 1024 };

static bool bulk;

static void print_mapping(const char *end, const char *name, long resident, long huge, const char *flags)
{
    printf("%s %s resident=%ld huge=%ld", end, name, resident, huge);
    for (const char *flag = "dd\0lo\0hg\0"; *flag; flag += 3)
        if (strstr(flags, flag)) printf(" %s", flag);
    printf("\n");
}

static void print_mappings(const char *end)
{
    FILE *file = fopen("/proc/self/smaps", "re");
    CHECK(file);
    char line[512], name[64] = "";
    unsigned long from, to;
    long resident = 0, huge = 0, part;
    while (fgets(line, sizeof line, file)) {
        const char *memfd = strstr(line, "/memfd:");
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) {
            name[0] = 0;
            if (memfd) sscanf(memfd, "/memfd:%63s", name);
            resident = huge = 0;
        }
        if (sscanf(line, "Rss: %ld", &part) == 1) resident = part;
        if (sscanf(line, "ShmemPmdMapped: %ld", &part) == 1) huge = part;
        if (name[0] && strncmp(line, "VmFlags:", 8) == 0) print_mapping(end, name, resident, huge, line + 8);
    }
    fclose(file);
}

/* Prints the memory of the files of which this process has descriptors. */
static void print_files(const char *end)
{
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        char link[300], target[300] = "";
        snprintf(link, sizeof link, "/proc/self/fd/%s", entry->d_name);
        struct stat status;
        if (readlink(link, target, sizeof target - 1) > 0 && strstr(target, "motet-segment") && stat(link, &status) == 0)
            printf("%s file allocated=%ld\n", end, (long)status.st_blocks / 2);
    }
    closedir(folder);
}

static void one_way(int fd, bool sends)
{
    static char data[PIECE];
    for (int i = 0; i < PIECES; i++) {
        memset(data, sends ? i : ~i, sizeof data);
        if (sends)
            send_all(fd, data, sizeof data);
        else
            receive_all(fd, data, sizeof data);
        CHECK(data[0] == (char)i && data[PIECE - 1] == (char)i);
    }
}

static void end(int fd, const char *name, bool first)
{
    char mine[MESSAGE], theirs[MESSAGE];
    for (int i = 0; i < ROUNDS; i++) {
        memset(mine, i, sizeof mine);
        if (first) send_all(fd, mine, sizeof mine);
        receive_all(fd, theirs, sizeof theirs);
        CHECK(memcmp(mine, theirs, sizeof mine) == 0);
        if (!first) send_all(fd, mine, sizeof mine);
    }
    if (bulk) {
        one_way(fd, first);
        one_way(fd, !first);
    }
    print_mappings(name);
    print_files(name);
    fflush(stdout);
    /* Both have printed before one of them ends. */
    char byte = 0;
    send_all(fd, &byte, 1);
    receive_all(fd, &byte, 1);
    close(fd);
}

static void accepted(int fd) { end(fd, "accepted", false); }
static void connected(int fd) { end(fd, "connected", true); }

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    bulk = strcmp(argv[1], "bulk") == 0;
    bool lock = strcmp(argv[1], "locked") == 0;
    if (lock && mlockall(MCL_CURRENT | MCL_FUTURE) != 0) printf("may not lock memory\n");
    int port = 0, listener = listen_on("4", &port);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        if (lock) mlockall(MCL_CURRENT | MCL_FUTURE); /* locks are not inherited */
        connected(connect_to("4", port));
        exit(0);
    }
    accepted(accept(listener, NULL, NULL));
    wait_for(child);
    return 0;
}
