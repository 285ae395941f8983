/* pool.c: receives messages into memory of three kinds: fresh (allocated, never touched before), from Motet's pool of
 * pre-faulted buffers, and one warm buffer that is reused. See peer.h.
 *
 *   pool serve KIND              KIND: fresh, pool or warm
 *   pool call HOST PORT SIZE MS
 *   pool has-pool                status 0 when the library offers buffers
 *
 * The library is opened by name (MOTET_LIBRARY, else libmotet.so.0), so an older one without buffers is not an error. */
#define _GNU_SOURCE
#include "peer.h"

#include <dlfcn.h>
#include <motet.h>
#include <sys/mman.h>

static struct {
    int (*upgrade)(int, const struct motet_upgrade_options *, motet_stream *);
    int (*close)(motet_stream);
    ssize_t (*send)(motet_stream, const void *, size_t, int);
    ssize_t (*recv)(motet_stream, void *, size_t, int);
    void *(*buffer_alloc)(size_t);
    void (*buffer_free)(void *);
} motet;

static void open_library(void)
{
    const char *name = getenv("MOTET_LIBRARY");
    void *library = dlopen(name ? name : "libmotet.so.0", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        fprintf(stderr, "pool: %s\n", dlerror());
        exit(1);
    }
    *(void **)&motet.upgrade = dlsym(library, "motet_upgrade");
    *(void **)&motet.close = dlsym(library, "motet_close");
    *(void **)&motet.send = dlsym(library, "motet_send");
    *(void **)&motet.recv = dlsym(library, "motet_recv");
    *(void **)&motet.buffer_alloc = dlsym(library, "motet_buffer_alloc");
    *(void **)&motet.buffer_free = dlsym(library, "motet_buffer_free");
    if (!motet.upgrade || !motet.close || !motet.send || !motet.recv) {
        fprintf(stderr, "pool: the library lacks motet_upgrade, motet_send or motet_recv\n");
        exit(1);
    }
}

static motet_stream upgrade(int fd, enum motet_role role)
{
    struct motet_upgrade_options options = MOTET_INIT(struct motet_upgrade_options);
    motet_stream s;
    options.role = role;
    errno = -motet.upgrade(fd, &options, &s);
    if (errno) fail("motet_upgrade");
    return s;
}

static void send_whole(motet_stream s, const void *data, size_t length)
{
    ssize_t n = motet.send(s, data, length, 0);
    if (n == (ssize_t)length) return;
    errno = n < 0 ? (int)-n : EIO;
    fail("motet_send");
}

static int receive_whole(motet_stream s, void *data, size_t length)
{
    ssize_t n = motet.recv(s, data, length, MSG_WAITALL);
    if (n == 0 || n == -ECONNRESET) return 0;
    if (n == (ssize_t)length) return 1;
    errno = n < 0 ? (int)-n : EIO;
    fail("motet_recv");
    return 0;
}

struct plan {
    uint64_t size, count;
};

enum kind { FRESH, POOL, WARM };

static void *take(enum kind kind, size_t size, void *warm)
{
    if (kind == WARM) return warm;
    if (kind == POOL) return motet.buffer_alloc(size);
    /* As malloc does for a large new block; mmap is called directly so that blocks of every size are fresh. */
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void put_back(enum kind kind, void *memory, size_t size)
{
    if (kind == POOL) motet.buffer_free(memory);
    if (kind == FRESH) munmap(memory, size);
}

/* As greet() of peer.h. */
static void greet_stream(motet_stream s, int first)
{
    char message[8] = {0};
    for (int i = 0; i < 2 * 32; i++) {
        if (i % 2 != first)
            send_whole(s, message, sizeof message);
        else if (!receive_whole(s, message, sizeof message))
            exit(1);
    }
}

static void serve(motet_stream s, enum kind kind)
{
    struct plan plan;
    greet_stream(s, 0);
    if (!receive_whole(s, &plan, sizeof plan)) return;
    void *warm = kind == WARM ? calloc(1, plan.size) : NULL;
    if (warm) memset(warm, 1, plan.size);
    for (uint64_t i = 0;;) {
        void *memory = take(kind, plan.size, warm);
        if (!memory) fail("memory");
        int more = receive_whole(s, memory, plan.size);
        put_back(kind, memory, plan.size);
        if (!more) break;
        if (++i % plan.count == 0) send_whole(s, "", 1);
    }
    free(warm);
}

struct call {
    motet_stream s;
    struct plan plan;
    char *data;
};

static void one_block(void *context, long count)
{
    struct call *call = context;
    char done;
    while (count-- > 0)
        send_whole(call->s, call->data, call->plan.size);
    if (receive_whole(call->s, &done, 1)) return;
    fprintf(stderr, "pool: the server closed the connection\n");
    exit(1);
}

int main(int argc, char **argv)
{
    open_library();
    if (argc == 2 && !strcmp(argv[1], "has-pool")) return !(motet.buffer_alloc && motet.buffer_free);
    if (argc == 3 && !strcmp(argv[1], "serve")) {
        enum kind kind = !strcmp(argv[2], "fresh") ? FRESH : !strcmp(argv[2], "pool") ? POOL : WARM;
        if (kind == POOL && !(motet.buffer_alloc && motet.buffer_free)) {
            fprintf(stderr, "pool: the library has no motet_buffer_alloc\n");
            return 1;
        }
        int fd = accept_one(listen_anywhere());
        motet_stream s = upgrade(fd, MOTET_ROLE_ACCEPTED);
        serve(s, kind);
        motet.close(s);
        close(fd);
    } else if (argc == 6 && !strcmp(argv[1], "call")) {
        uint64_t size = strtoull(argv[4], NULL, 0), count = (16 << 20) / size;
        int fd = connect_to(argv[2], argv[3]);
        struct call call = {upgrade(fd, MOTET_ROLE_CONNECTED), {size, count < 1 ? 1 : count > 4096 ? 4096 : count}, malloc(size)};
        if (!call.data) fail("malloc");
        memset(call.data, 1, size);
        greet_stream(call.s, 1);
        send_whole(call.s, &call.plan, sizeof call.plan);
        measure(one_block, &call, call.plan.count, atof(argv[5]), 1);
        motet.close(call.s);
        close(fd);
        free(call.data);
    } else {
        fprintf(stderr, "pool: usage: serve fresh|pool|warm | call HOST PORT SIZE MS | has-pool\n");
        return 2;
    }
    return 0;
}
