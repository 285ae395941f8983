/* candidate.c: from a TCP socket that is only counted to a stream of the engine.
 *
 * What it is:   a connection seen through connect() or accept() costs two counters until it proves to live long enough and
 *               to join two processes of this host; only then is libmotet opened and the descriptor handed over.
 * What it isn't: the decision whether the peer is equipped, which is the engine's.
 *
 * A thread that entered the kernel before the hand-over is not covered by the engine, asleep or not, so a candidate counts
 * the threads in kernel calls on it and the hand-over waits for a moment without any: caller and upgrader each announce
 * themselves, then look at the other (sequentially consistent, label SLEEPER).
 *
 * Signal safety: counting is lock-free; a hand-over takes the table lock (all signals blocked) and never starts in a handler, which
 * may have interrupted the program's malloc or the loader. Fork safety: the fork handlers hold the table lock, so no child sees UPGRADING. */
#include "shim.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>

#ifndef TCP_INQ
#define TCP_INQ 36
#endif

static unsigned word_sends(uint64_t word) { return (word >> WORD_SENDS_SHIFT) & WORD_COUNT_MASK; }
static unsigned word_receives(uint64_t word) { return (word >> WORD_RECEIVES_SHIFT) & WORD_COUNT_MASK; }

void candidate_new(int fd, bool accepted, int nonblock)
{
    uint64_t word = KIND_CANDIDATE;
    if (accepted) word |= WORD_ACCEPTED;
    if (nonblock >= 0) word |= WORD_NONBLOCK_KNOWN | (nonblock ? WORD_NONBLOCK : 0);
    if ((unsigned)fd >= SHIM_SLOTS) return;
    if (UNLIKELY(fd <= SHIM_STDIO_TOP)) {
        table_set(fd, KIND_NONE);
        return;
    }
    if (accepted) table_set(fd, KIND_NONE);
    atomic_store(&shim_handles[fd], 0); /* shared with nobody */
    if (accepted)
        table_set(fd, word);
    else /* connect() keeps what epoll_ctl() and fork() recorded for the fresh socket */
        table_replace(fd, word | (table_word(fd) & WORD_ELSEWHERE));
}

void candidate_count(int fd, enum direction direction)
{
    unsigned shift = direction == SENDING ? WORD_SENDS_SHIFT : WORD_RECEIVES_SHIFT;
    uint64_t word = table_word(fd);
    while (word_kind(word) == KIND_CANDIDATE && ((word >> shift) & WORD_COUNT_MASK) < WORD_COUNT_MASK)
        if (atomic_compare_exchange_weak(&shim_words[fd], &word, word + (1ull << shift))) return;
}

/* ---------------------------------------------------------------- sleepers */

/* Until another thread's hand-over is done, asleep: that thread may be one that the scheduler never prefers to this one. */
static void await_hand_over(int fd)
{
    while (word_kind(table_word(fd)) == KIND_UPGRADING) {
        table_lock();
        table_unlock();
    }
}

bool candidate_sleep_begin(int fd)
{
    atomic_fetch_add(&shim_sleepers[fd], 1); /* SLEEPER */
    if (LIKELY(word_kind(atomic_load(&shim_words[fd])) == KIND_CANDIDATE)) return true;
    atomic_fetch_sub(&shim_sleepers[fd], 1);
    await_hand_over(fd);
    return false;
}

void candidate_sleep_end(int fd) { atomic_fetch_sub(&shim_sleepers[fd], 1); }

/* ---------------------------------------------------------------- the hand-over */

static bool plain_address(const struct sockaddr_storage *from, uint32_t *host)
{
    if (from->ss_family == AF_INET) {
        *host = ((const struct sockaddr_in *)from)->sin_addr.s_addr;
        return true;
    }
    const struct in6_addr *six = &((const struct sockaddr_in6 *)from)->sin6_addr;
    if (from->ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(six)) return false;
    memcpy(host, six->s6_addr + 12, sizeof *host);
    return true;
}

static bool same_host(int fd)
{
    struct sockaddr_storage own, peer;
    socklen_t own_length = sizeof own, peer_length = sizeof peer;
    if (getsockname(fd, (struct sockaddr *)&own, &own_length) || getpeername(fd, (struct sockaddr *)&peer, &peer_length))
        return false;
    uint32_t a, b;
    if (plain_address(&own, &a) && plain_address(&peer, &b))
        return a == b || ((ntohl(a) >> 24) == 127 && (ntohl(b) >> 24) == 127);
    if (own.ss_family != AF_INET6 || peer.ss_family != AF_INET6) return false;
    return memcmp(&((struct sockaddr_in6 *)&own)->sin6_addr, &((struct sockaddr_in6 *)&peer)->sin6_addr, 16) == 0;
}

/* The descriptors that mean the same socket as fd, fd first. More duplicates than fit: 0, and the socket stays a candidate. */
static int family(int fd, uint64_t word, int *members, int room)
{
    int count = 0;
    members[count++] = fd;
    if (word_extra(word) == 0) return count;
    for (int other = 0; other <= atomic_load(&shim_top); other++) {
        uint64_t seen = atomic_load(&shim_words[other]);
        if (other == fd || word_kind(seen) != KIND_CANDIDATE || word_extra(seen) != word_extra(word)) continue;
        if (count == room) return 0;
        members[count++] = other;
    }
    return count;
}

/* Receives that tell what only the kernel knows; readiness by signal, or for no less than so many bytes: set before the connection was ours to watch, or inherited from a listener. */
static bool waits_unseen(int fd)
{
    int least = 1;
    socklen_t length = sizeof least;
    if (getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &least, &length) == 0 && least > 1) return true;
    static const int told[][2] = {{SOL_SOCKET, SO_TIMESTAMP}, {SOL_SOCKET, SO_TIMESTAMPNS}, {SOL_SOCKET, SO_TIMESTAMPING},
                                  {IPPROTO_TCP, TCP_INQ},    {SOL_SOCKET, SO_PEEK_OFF}};
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        int on = 0;
        length = sizeof on;
        bool offset = told[i][1] == SO_PEEK_OFF; /* -1: off */
        if (getsockopt(fd, told[i][0], told[i][1], &on, &length) == 0 && (offset ? on >= 0 : on != 0)) return true;
    }
    return (REAL(fcntl)(fd, F_GETFL) & O_ASYNC) != 0;
}

struct upgrade {
    int fd;
    const struct motet_upgrade_options *options;
    motet_stream *stream;
    int failed;
};

static void upgrade_now(void *of)
{
    struct upgrade *x = of;
    x->failed = engine.upgrade(x->fd, x->options, x->stream);
}

static void hand_over(int fd)
{
    int members[16];
    table_lock();
    uint64_t word = table_word(fd);
    int count = word_kind(word) == KIND_CANDIDATE ? family(fd, word, members, 16) : 0;
    bool quiet = count > 0 && family_has_alone(fd, word), never = false;
    uint64_t before[16];
    for (int i = 0; i < count; i++) {
        before[i] = atomic_load(&shim_words[members[i]]);
        while (!atomic_compare_exchange_weak(&shim_words[members[i]], &before[i], (before[i] & ~WORD_KIND) | KIND_UPGRADING)) {}
        enum upgradable answer = interest_may_upgrade(members[i]);
        never |= answer == UPGRADABLE_NEVER;
        quiet &= answer == UPGRADABLE && atomic_load(&shim_sleepers[members[i]]) == 0; /* SLEEPER */
    }
    motet_stream s = 0;
    int failed = 0;
    if (quiet || (never && family_has_alone(fd, word))) {
        struct motet_upgrade_options options = {.size = sizeof options};
        options.role = word & WORD_ACCEPTED ? MOTET_ROLE_ACCEPTED : MOTET_ROLE_CONNECTED;
        options.flags = MOTET_UPGRADE_LAZY;
        struct upgrade upgrade = {fd, &options, &s, 0};
        ENGINE_DO(room_call(upgrade_now, &upgrade));
        failed = upgrade.failed;
        if (s != 0 && never) ENGINE(engine.plain(s, REASON_NESTED_EPOLL)); /* for `motet why` */
    } else if (word_sends(word) == WORD_COUNT_MASK || word_receives(word) == WORD_COUNT_MASK) {
        failed = 1; /* somebody always sleeps on it: no more attempts */
    }
    if ((s != 0 || failed) && family_has_alone(fd, word)) family_close(table_handle(fd));
    for (int i = 0; i < count; i++) {
        uint64_t rest = before[i] & (WORD_NONBLOCK | WORD_NONBLOCK_KNOWN | WORD_SHARED | WORD_COPIED);
        if (s != 0) {
            atomic_store(&shim_handles[members[i]], s);
            interest_upgraded(members[i], s);
            table_replace(members[i], KIND_STREAM | rest);
        } else {
            interest_undo(members[i]);
            if (failed) interest_forget(members[i]);
            table_replace(members[i], failed ? 0 : before[i]);
        }
    }
    table_unlock();
}

/* Bringing up a wire costs about as much as ten short exchanges gain by it. So a candidate is due after a few messages only, and
 * where streams end before their wire has carried much, each puts the next hand-over off, until one was worth it. */
static _Atomic unsigned patience = SHIM_MESSAGES_BEFORE;

void candidate_ended(motet_stream s)
{
    struct motet_stream_info info = {.size = sizeof info};
    if (ENGINE(engine.info(s, &info)) != 0) return;
    unsigned now = atomic_load_explicit(&patience, memory_order_relaxed), next = now;
    if (info.sent_fast + info.received_fast >= SHIM_WORTH)
        next = SHIM_MESSAGES_BEFORE;
    else if (now < SHIM_MESSAGES_MOST)
        next = now * 2;
    if (next != now) atomic_store_explicit(&patience, next, memory_order_relaxed);
}

/* In an exchange the connected end comes first, in the very send whose message makes the accepted one due: that one finds it
 * listening. A hand-over that had to wait for a sleeper is tried again by whichever call comes next. */
static bool due(uint64_t word, enum direction direction)
{
    unsigned most = atomic_load_explicit(&patience, memory_order_relaxed);
    if (word & WORD_ACCEPTED) return word_receives(word) >= most || word_sends(word) / SHIM_ANSWERS >= most;
    return word_sends(word) + (direction == SENDING) >= most || word_receives(word) / SHIM_ANSWERS >= most;
}

uint64_t candidate_touch(int fd, enum direction direction)
{
    uint64_t word = table_word(fd);
    if (UNLIKELY(word_kind(word) == KIND_CLOSED) && shim_depth == 0 && table_in_own_process()) {
        int kept = errno;
        table_set(fd, KIND_NONE);
        errno = kept;
        word = table_word(fd);
    }
    if (word_kind(word) == KIND_CANDIDATE && due(word, direction) && shim_depth == 0 && !signals_in_handler() && family_has_alone(fd, word)) {
        int kept = errno;
        if (engine_disabled() || !same_host(fd) || waits_unseen(fd))
            table_make_plain(fd, REASON_NONE);
        else if (engine_open())
            hand_over(fd);
        else if (engine_failed())
            table_make_plain(fd, REASON_NONE);
        errno = kept;
        word = table_word(fd);
    }
    if (UNLIKELY(word_kind(word) == KIND_UPGRADING)) {
        await_hand_over(fd);
        word = table_word(fd);
    }
    return word;
}
