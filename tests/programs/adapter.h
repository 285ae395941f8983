/* adapter.h: the interface of adapter.c, a second adapter for tests. */
#ifndef VOICE_H
#define VOICE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct adapter {
    uint64_t (*take)(int fd, int accepted); /* upgrades the connection and returns the stream; ends the program on failure */
    ssize_t (*send)(uint64_t stream, const void *data, size_t length);
    ssize_t (*receive)(uint64_t stream, void *data, size_t length); /* all of it */
    int (*on_shared_memory)(uint64_t stream);
    uint64_t (*sent_fast)(uint64_t stream);
    int (*let_go)(uint64_t stream);
};

/* The only symbol that the library exports. */
extern const struct adapter adapter;

#endif
