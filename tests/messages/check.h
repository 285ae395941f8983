/* check.h: shared by the tests of messages through motet.h. A check that fails prints its place and exits the program. */
#ifndef CHECK_H
#define CHECK_H

#define _GNU_SOURCE
#include <motet.h>

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(got, wanted)                                                                                        \
    do {                                                                                                          \
        long long got_ = (long long)(got), wanted_ = (long long)(wanted);                                         \
        if (got_ != wanted_) {                                                                                    \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #got, got_, wanted_);            \
            exit(1);                                                                                              \
        }                                                                                                         \
    } while (0)

#define NEVER INT64_MAX

/* The deadline `seconds` from the current time. */
static inline int64_t in(double seconds)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec + (int64_t)(seconds * 1e9);
}

/* Longer than anything that these tests wait for. */
#define SOON in(15)

static inline struct motet_receive_mode queue(void)
{
    struct motet_receive_mode mode = MOTET_INIT(struct motet_receive_mode);
    mode.kind = MOTET_RECEIVE_QUEUE;
    return mode;
}

static inline struct motet_receive_mode tagged(motet_context context)
{
    struct motet_receive_mode mode = MOTET_INIT(struct motet_receive_mode);
    mode.kind = MOTET_RECEIVE_TAGGED;
    mode.target = context;
    return mode;
}

static inline struct motet_receive_mode handled(motet_handler handler)
{
    struct motet_receive_mode mode = MOTET_INIT(struct motet_receive_mode);
    mode.kind = MOTET_RECEIVE_HANDLER;
    mode.target = handler;
    return mode;
}

static inline struct motet_source from(motet_channel channel, motet_context context, uint64_t tag, uint64_t ignore)
{
    struct motet_source source = MOTET_INIT(struct motet_source);
    source.channel = channel;
    source.context = context;
    source.tag = tag;
    source.ignore = ignore;
    return source;
}

static inline struct motet_completion_options options_of(motet_cq cq, uint64_t context, uint32_t flags)
{
    struct motet_completion_options options = MOTET_INIT(struct motet_completion_options);
    options.cq = cq;
    options.user_data = context;
    options.flags = flags;
    return options;
}

static inline struct motet_outgoing message(motet_channel channel, uint64_t tag, uint32_t mode)
{
    struct motet_outgoing outgoing = MOTET_INIT(struct motet_outgoing);
    outgoing.channel = channel;
    outgoing.tag = tag;
    outgoing.mode = mode;
    return outgoing;
}

/* Fills with bytes that depend on the offset and the seed. */
static inline void fill(unsigned char *bytes, size_t length, unsigned seed)
{
    for (size_t i = 0; i < length; i++)
        bytes[i] = (unsigned char)((i * 2654435761u + seed) >> 11);
}

static inline int is_filled(const unsigned char *bytes, size_t length, unsigned seed)
{
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != (unsigned char)((i * 2654435761u + seed) >> 11))
            return 0;
    return 1;
}

/* A thread that makes progress for a node until stop_driver(). */
struct driver {
    motet_node node;
    motet_cq cq;
    pthread_t thread;
};

static inline void *drive(void *of)
{
    struct driver *driver = of;
    struct motet_completion end = MOTET_INIT(struct motet_completion);
    CHECK(motet_cq_wait(driver->node, driver->cq, &end, 1, NEVER), -EINTR);
    return NULL;
}

static inline void start_driver(struct driver *driver, motet_node node)
{
    driver->node = node;
    CHECK(motet_cq_new(node, &driver->cq), 0);
    CHECK(pthread_create(&driver->thread, NULL, drive, driver), 0);
}

static inline void stop_driver(struct driver *driver)
{
    CHECK(motet_cq_signal(driver->node, driver->cq), 0);
    pthread_join(driver->thread, NULL);
    CHECK(motet_cq_free(driver->node, driver->cq), 0);
}

#endif
