/* Two adapters in one process: sockets (the sockets adapter, when it is preloaded) and adapter.c, at both ends of a connection.
 *
 * Usage: two_adapters LIBRARY FIRST. LIBRARY is opened when it is first needed, or is "linked"; FIRST is "sockets" or "adapter". The two
 * adapters use five connections between two processes in turn. Then each process prints what it has: engines, node files, segments and
 * threads are counted by distinct inodes in /proc/self. */
#include "check.h"
#include "adapter.h"

#include <dirent.h>
#include <dlfcn.h>

enum { CONNECTIONS = 5, ROUNDS = 64 };
static const char *library;
static int adapter_first;

static const struct adapter *second(void)
{
    static const struct adapter *found;
    if (found) return found;
    void *handle = strcmp(library, "linked") == 0 ? dlopen(NULL, RTLD_NOW) : dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle) fprintf(stderr, "%s\n", dlerror());
    CHECK(handle);
    CHECK(found = dlsym(handle, "adapter"));
    return found;
}

/* Number of distinct mapped files whose name contains this text. */
static int mapped(const char *text)
{
    unsigned long seen[256];
    int count = 0;
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps)) {
        unsigned long inode = 0;
        if (!strstr(line, text) || sscanf(line, "%*s %*s %*s %*s %lu", &inode) != 1) continue;
        int at = 0;
        while (at < count && seen[at] != inode) at++;
        if (at == count) seen[count++] = inode;
    }
    fclose(maps);
    return count;
}

static int threads(void)
{
    DIR *folder = opendir("/proc/self/task");
    int count = 0;
    CHECK(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

static void exchange_by_adapter(uint64_t stream, int first, int rounds)
{
    char mine[64], theirs[64];
    for (int i = 0; i < rounds; i++) {
        memset(mine, i, sizeof mine);
        if (first) CHECK(second()->send(stream, mine, sizeof mine) == sizeof mine);
        CHECK(second()->receive(stream, theirs, sizeof theirs) == sizeof theirs);
        CHECK(memcmp(mine, theirs, sizeof mine) == 0);
        if (!first) CHECK(second()->send(stream, mine, sizeof mine) == sizeof mine);
    }
}

/* A connection of the program's own that the second adapter upgrades as well: sent_fast then counts bytes that this adapter never sent. Both
 * adapters use it, each end the one while the peer uses the other, and the second one closes its share. */
static void share(const char *who, int fd, int first)
{
    uint64_t stream = second()->take(fd, !first);
    printf("%s: the program's connection: in shared memory %d, counted %d\n", who, second()->on_shared_memory(stream),
           second()->sent_fast(stream) > 0);
    for (int i = 0; i < 8; i++) {
        if ((i + first) % 2)
            exchange(fd, first, ROUNDS);
        else
            exchange_by_adapter(stream, first, ROUNDS);
    }
    CHECK(second()->let_go(stream) == 0);
    uint64_t before = second()->sent_fast(stream);
    exchange(fd, first, ROUNDS);
    printf("%s: still in shared memory after the second adapter let go: %d\n", who, second()->sent_fast(stream) > before);
}

static void talk(const char *who, int *fds, int first)
{
    int by_adapter = 0, shared = 0, same = 0;
    uint64_t streams[CONNECTIONS] = {0};
    for (int i = 0; i < CONNECTIONS; i++) {
        if (i % 2 == adapter_first) {
            exchange(fds[i], first, ROUNDS);
            continue;
        }
        streams[i] = second()->take(fds[i], !first);
        exchange_by_adapter(streams[i], first, ROUNDS);
        by_adapter++;
        shared += second()->on_shared_memory(streams[i]);
        same += second()->take(fds[i], !first) == streams[i];
    }
    printf("%s: %d connections by the second adapter, %d in shared memory, %d recognised\n", who, by_adapter, shared, same);
    printf("%s: engines %d, node files %d, segments %d, threads %d\n", who, mapped("/libmotet.so"), mapped("memfd:motet-node"),
           mapped("memfd:motet-segment"), threads());
    if (mapped("/libmotet_sockets.so")) share(who, fds[adapter_first], first);
    /* A fork with two adapters: both call the engine's fork functions. */
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(0);
    wait_for(child);
    for (int i = 0; i < CONNECTIONS; i++)
        if (streams[i]) exchange_by_adapter(streams[i], first, ROUNDS);
    for (int i = 0; i < CONNECTIONS; i++) {
        if (streams[i]) CHECK(second()->let_go(streams[i]) == 0);
        close(fds[i]);
    }
    printf("%s: done\n", who);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    library = argv[1];
    adapter_first = strcmp(argv[2], "adapter") == 0;
    int port = 0, listener = listen_on("4", &port), fds[CONNECTIONS];
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (int i = 0; i < CONNECTIONS; i++) fds[i] = connect_to("4", port);
        talk("connecting", fds, 1);
        exit(0);
    }
    for (int i = 0; i < CONNECTIONS; i++) CHECK((fds[i] = accept(listener, NULL, NULL)) >= 0);
    talk("accepting", fds, 0);
    wait_for(child);
}
