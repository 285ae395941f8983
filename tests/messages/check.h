/* check.h: what the tests of messages through motet.h have in common. A check that fails says where and ends the program. */
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

/* A deadline so many seconds from now. */
static inline int64_t in(double seconds)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec + (int64_t)(seconds * 1e9);
}

/* Nothing that these tests wait for takes as long. */
#define SOON in(15)

static inline struct motet_reception queue(void)
{
    struct motet_reception reception = MOTET_INIT(struct motet_reception);
    reception.kind = MOTET_RECEIVE_QUEUE;
    return reception;
}

static inline struct motet_reception tagged(motet_context context)
{
    struct motet_reception reception = MOTET_INIT(struct motet_reception);
    reception.kind = MOTET_RECEIVE_TAGGED;
    reception.with = context;
    return reception;
}

static inline struct motet_reception handled(motet_handler handler)
{
    struct motet_reception reception = MOTET_INIT(struct motet_reception);
    reception.kind = MOTET_RECEIVE_HANDLER;
    reception.with = handler;
    return reception;
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

static inline struct motet_notice told(motet_group group, uint64_t context, uint32_t flags)
{
    struct motet_notice notice = MOTET_INIT(struct motet_notice);
    notice.group = group;
    notice.context = context;
    notice.flags = flags;
    return notice;
}

static inline struct motet_outgoing message(motet_channel channel, uint64_t tag, uint32_t mode)
{
    struct motet_outgoing outgoing = MOTET_INIT(struct motet_outgoing);
    outgoing.channel = channel;
    outgoing.tag = tag;
    outgoing.mode = mode;
    return outgoing;
}

/* Bytes that differ from place to place and from seed to seed. */
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

/* A thread that makes progress for a node until it is told to stop. */
struct driver {
    motet_node node;
    motet_group group;
    pthread_t thread;
};

static inline void *drive(void *of)
{
    struct driver *driver = of;
    struct motet_completion end = MOTET_INIT(struct motet_completion);
    CHECK(motet_group_wait(driver->node, driver->group, &end, 1, NEVER), -EINTR);
    return NULL;
}

static inline void start_driver(struct driver *driver, motet_node node)
{
    driver->node = node;
    CHECK(motet_group_new(node, &driver->group), 0);
    CHECK(pthread_create(&driver->thread, NULL, drive, driver), 0);
}

static inline void stop_driver(struct driver *driver)
{
    CHECK(motet_group_signal(driver->node, driver->group), 0);
    pthread_join(driver->thread, NULL);
    CHECK(motet_group_free(driver->node, driver->group), 0);
}

#endif
