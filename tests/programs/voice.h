/* voice.h: a second voice for the tests (voice.c): what a communication library that knows Motet looks like to a program. */
#ifndef VOICE_H
#define VOICE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct voice {
    uint64_t (*take)(int fd, int accepted); /* the connection's stream; ends the program when there is none */
    ssize_t (*send)(uint64_t stream, const void *data, size_t length);
    ssize_t (*receive)(uint64_t stream, void *data, size_t length); /* all of it */
    int (*on_shared_memory)(uint64_t stream);
    uint64_t (*sent_fast)(uint64_t stream);
    int (*let_go)(uint64_t stream);
};

/* The one symbol of the library. */
extern const struct voice voice;

#endif
