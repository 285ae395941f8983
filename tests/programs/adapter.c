/* adapter.c: a second adapter, a shared library linked to libmotet.so.0 as any process may load it.
 * It uses the engine through motet_adapter.h only and does not know the sockets adapter. */
#include "adapter.h"

#include <motet_adapter.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void begin(void) { pthread_atfork(motet_fork_prepare, motet_fork_parent, motet_fork_child); }

static uint64_t take(int fd, int accepted)
{
    struct motet_upgrade_options options = MOTET_INIT(struct motet_upgrade_options);
    options.role = accepted ? MOTET_ROLE_ACCEPTED : MOTET_ROLE_CONNECTED;
    motet_stream stream = 0;
    int error = motet_upgrade(fd, &options, &stream);
    if (error != 0 || stream == 0) {
        fprintf(stderr, "adapter: motet_upgrade: %d\n", error);
        exit(1);
    }
    return stream;
}

static ssize_t send_all(uint64_t stream, const void *data, size_t length) { return motet_send(stream, data, length, 0); }

static ssize_t receive_all(uint64_t stream, void *data, size_t length) { return motet_recv(stream, data, length, MSG_WAITALL); }

static struct motet_stream_info info(uint64_t stream)
{
    struct motet_stream_info info = MOTET_INIT(struct motet_stream_info);
    if (motet_info(stream, &info) != 0) {
        fprintf(stderr, "adapter: motet_info failed\n");
        exit(1);
    }
    return info;
}

static int on_shared_memory(uint64_t stream) { return info(stream).path == MOTET_PATH_SHM; }

static uint64_t sent_fast(uint64_t stream) { return info(stream).sent_fast; }

static int let_go(uint64_t stream) { return motet_close(stream); }

__attribute__((visibility("default"))) const struct adapter adapter = {take, send_all, receive_all, on_shared_memory, sent_fast, let_go};
