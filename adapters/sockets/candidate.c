/* candidate.c: the upgrade of a connected TCP socket to a stream of the engine.
 *
 * What it is:   a connection made by connect() or accept() starts as a candidate, which costs two counters. When it has carried enough
 *               messages and both its addresses are on this host, libmotet is loaded and the socket is upgraded.
 * What it isn't: the decision whether the peer runs with Motet, which the engine takes.
 *
 * A thread that entered the kernel before the upgrade is not covered by the engine. So a candidate counts the threads in kernel calls on it,
 * and an upgrade takes place only when there are none: caller and upgrader each announce themselves, then read the other's word
 * (sequentially consistent, label SLEEPER).
 *
 * Signal safety: counting is lock-free. An upgrade takes the table lock, which defers signal handlers, and never starts in a handler, which
 * may have interrupted malloc or the loader. Fork safety: the fork handlers hold the table lock, so no child sees KIND_UPGRADING. errno:
 * kept by candidate_upgrade_if_due(), candidate_count() and candidate_kernel_leave(). */
#include "sockets.h"

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
    if ((unsigned)fd >= SHIM_TRACKED_FDS) return;
    if (UNLIKELY(fd <= SHIM_STDIO_FD_MAX)) {
        table_set(fd, KIND_NONE);
        return;
    }
    if (accepted) table_set(fd, KIND_NONE);
    atomic_store(&fd_handles[fd], 0); /* no other process has it */
    if (accepted)
        table_set(fd, word);
    else /* connect() keeps what epoll_ctl() and fork() recorded for the unconnected socket */
        table_replace(fd, word | (table_word(fd) & WORD_OTHER_PROCESS));
}

void candidate_count(int fd, enum direction direction)
{
    unsigned shift = direction == SENDING ? WORD_SENDS_SHIFT : WORD_RECEIVES_SHIFT;
    uint64_t word = table_word(fd);
    while (word_kind(word) == KIND_CANDIDATE && ((word >> shift) & WORD_COUNT_MASK) < WORD_COUNT_MASK)
        if (atomic_compare_exchange_weak(&fd_words[fd], &word, word + (1ull << shift))) return;
}

/* ---------------------------------------------------------------- threads in kernel calls */

/* Waits until another thread's upgrade is done. It sleeps on the lock: that thread may have a lower real-time priority than this one. */
static void await_upgrade(int fd)
{
    while (word_kind(table_word(fd)) == KIND_UPGRADING) {
        table_lock();
        table_unlock();
    }
}

bool candidate_kernel_enter(int fd)
{
    atomic_fetch_add(&fd_sleepers[fd], 1); /* SLEEPER */
    if (LIKELY(word_kind(atomic_load(&fd_words[fd])) == KIND_CANDIDATE)) return true;
    atomic_fetch_sub(&fd_sleepers[fd], 1);
    await_upgrade(fd);
    return false;
}

void candidate_kernel_leave(int fd) { atomic_fetch_sub(&fd_sleepers[fd], 1); }

/* ---------------------------------------------------------------- the upgrade */

static bool ipv4_address(const struct sockaddr_storage *from, uint32_t *host)
{
    if (from->ss_family == AF_INET) {
        *host = ((const struct sockaddr_in *)from)->sin_addr.s_addr;
        return true;
    }
    const struct in6_addr *ipv6 = &((const struct sockaddr_in6 *)from)->sin6_addr;
    if (from->ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(ipv6)) return false;
    memcpy(host, ipv6->s6_addr + 12, sizeof *host);
    return true;
}

static bool same_address(const struct sockaddr_storage *own, const struct sockaddr_storage *peer)
{
    uint32_t a, b;
    if (ipv4_address(own, &a) && ipv4_address(peer, &b)) return a == b || ((ntohl(a) >> 24) == 127 && (ntohl(b) >> 24) == 127);
    if (own->ss_family != AF_INET6 || peer->ss_family != AF_INET6) return false;
    return memcmp(&((const struct sockaddr_in6 *)own)->sin6_addr, &((const struct sockaddr_in6 *)peer)->sin6_addr, 16) == 0;
}

/* True for an address of this network namespace: only to those can a socket be bound. */
static bool is_local(struct sockaddr_storage *address, socklen_t length)
{
    if (address->ss_family == AF_INET) ((struct sockaddr_in *)address)->sin_port = 0;
    if (address->ss_family == AF_INET6) ((struct sockaddr_in6 *)address)->sin6_port = 0;
    int probe = REAL(socket)(address->ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool local = probe >= 0 && bind(probe, (struct sockaddr *)address, length) == 0;
    if (probe >= 0) REAL(close)(probe);
    return local;
}

/* Why the ends of the connection cannot be processes that share memory, as far as their addresses say. */
static enum tcp_reason distance(int fd)
{
    struct sockaddr_storage own, peer;
    socklen_t own_length = sizeof own, peer_length = sizeof peer;
    if (getsockname(fd, (struct sockaddr *)&own, &own_length) || getpeername(fd, (struct sockaddr *)&peer, &peer_length)) return REASON_PEER_GONE;
    if (same_address(&own, &peer)) return REASON_NONE;
    return is_local(&peer, peer_length) ? REASON_TWO_ADDRESSES : REASON_OTHER_HOST;
}

/* The descriptors that refer to the same socket as `fd`, `fd` first. Returns their number; 0 when they are more than `capacity`: the socket
 * stays a candidate. */
static int find_duplicates(int fd, uint64_t word, int *members, int capacity)
{
    int count = 0;
    members[count++] = fd;
    if (word_extra(word) == 0) return count;
    for (int other = 0; other <= atomic_load(&fd_top); other++) {
        uint64_t seen = atomic_load(&fd_words[other]);
        if (other == fd || word_kind(seen) != KIND_CANDIDATE || word_extra(seen) != word_extra(word)) continue;
        if (count == capacity) return 0;
        members[count++] = other;
    }
    return count;
}

/* True when the program uses what only the kernel's queue provides: data about received bytes, readiness by signal, or SO_RCVLOWAT. The
 * options may have been set before the connection was tracked, or inherited from a listener. */
static bool needs_kernel_semantics(int fd)
{
    int low_water = 1;
    socklen_t length = sizeof low_water;
    if (getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low_water, &length) == 0 && low_water > 1) return true;
    static const int options[][2] = {{SOL_SOCKET, SO_TIMESTAMP}, {SOL_SOCKET, SO_TIMESTAMPNS}, {SOL_SOCKET, SO_TIMESTAMPING},
                                     {IPPROTO_TCP, TCP_INQ},     {SOL_SOCKET, SO_PEEK_OFF}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        int on = 0;
        length = sizeof on;
        bool offset = options[i][1] == SO_PEEK_OFF; /* SO_PEEK_OFF: -1 is off */
        if (getsockopt(fd, options[i][0], options[i][1], &on, &length) == 0 && (offset ? on >= 0 : on != 0)) return true;
    }
    return (REAL(fcntl)(fd, F_GETFL) & O_ASYNC) != 0;
}

struct upgrade_request {
    int fd;
    const struct motet_upgrade_options *options;
    motet_stream *stream;
    int failed;
};

static void upgrade_on_scratch_stack(void *of)
{
    struct upgrade_request *x = of;
    x->failed = engine.upgrade(x->fd, x->options, x->stream);
}

static void upgrade(int fd)
{
    int members[16];
    table_lock();
    uint64_t word = table_word(fd);
    int count = word_kind(word) == KIND_CANDIDATE ? find_duplicates(fd, word, members, 16) : 0;
    bool may_upgrade = count > 0 && fork_shared_is_sole_owner(fd, word), never = false;
    uint64_t before[16];
    for (int i = 0; i < count; i++) {
        before[i] = atomic_load(&fd_words[members[i]]);
        while (!atomic_compare_exchange_weak(&fd_words[members[i]], &before[i], (before[i] & ~WORD_KIND) | KIND_UPGRADING)) {}
        enum upgradable answer = interest_may_upgrade(members[i]);
        never |= answer == UPGRADABLE_NEVER;
        may_upgrade &= answer == UPGRADABLE && atomic_load(&fd_sleepers[members[i]]) == 0; /* SLEEPER */
    }
    motet_stream s = 0;
    int failed = 0;
    if (may_upgrade || (never && fork_shared_is_sole_owner(fd, word))) {
        struct motet_upgrade_options options = {.size = sizeof options};
        options.role = word & WORD_ACCEPTED ? MOTET_ROLE_ACCEPTED : MOTET_ROLE_CONNECTED;
        options.flags = MOTET_UPGRADE_LAZY;
        struct upgrade_request upgrade_request = {fd, &options, &s, 0};
        ENGINE_DO(scratch_call(upgrade_on_scratch_stack, &upgrade_request));
        failed = upgrade_request.failed;
        if (s != 0 && never) ENGINE(engine.set_tcp_only(s, REASON_NESTED_EPOLL)); /* `motet why` reports the reason */
    } else if (word_sends(word) == WORD_COUNT_MASK || word_receives(word) == WORD_COUNT_MASK) {
        failed = 1; /* some thread is always in a kernel call on it: no further attempts */
    }
    if ((s != 0 || failed) && fork_shared_is_sole_owner(fd, word)) fork_shared_release(table_handle(fd));
    for (int i = 0; i < count; i++) {
        uint64_t rest = before[i] & (WORD_NONBLOCK | WORD_NONBLOCK_KNOWN | WORD_SHARED | WORD_DUPLICATED);
        if (s != 0) {
            atomic_store(&fd_handles[members[i]], s);
            interest_upgraded(members[i], s);
            table_replace(members[i], KIND_STREAM | rest);
        } else {
            interest_upgrade_aborted(members[i]);
            if (failed) interest_forget(members[i]);
            table_replace(members[i], failed ? 0 : before[i]);
        }
    }
    table_unlock();
}

/* How many messages make an upgrade due. Setting up shared memory costs about as much as ten short exchanges gain. So the first upgrade is
 * due after a few messages; each stream that ends before it has carried much doubles the threshold, and one that carried enough resets it. */
static _Atomic unsigned upgrade_threshold = SHIM_UPGRADE_MESSAGES_MIN;

void candidate_stream_closing(motet_stream s)
{
    struct motet_stream_info info = {.size = sizeof info};
    if (ENGINE(engine.info(s, &info)) != 0) return;
    unsigned now = atomic_load_explicit(&upgrade_threshold, memory_order_relaxed), next = now;
    if (info.sent_fast + info.received_fast >= SHIM_UPGRADE_WORTH_BYTES)
        next = SHIM_UPGRADE_MESSAGES_MIN;
    else if (now < SHIM_UPGRADE_MESSAGES_MAX)
        next = now * 2;
    if (next != now) atomic_store_explicit(&upgrade_threshold, next, memory_order_relaxed);
}

/* In an exchange the connected end upgrades first, in the send whose message makes the accepted end due: the accepted end then finds it
 * listening. An upgrade that found a thread in a kernel call is tried again by the next call. */
static bool is_due(uint64_t word, enum direction direction)
{
    unsigned most = atomic_load_explicit(&upgrade_threshold, memory_order_relaxed);
    if (word & WORD_ACCEPTED) return word_receives(word) >= most || word_sends(word) / SHIM_REVERSE_MESSAGES >= most;
    return word_sends(word) + (direction == SENDING) >= most || word_receives(word) / SHIM_REVERSE_MESSAGES >= most;
}

uint64_t candidate_upgrade_if_due(int fd, enum direction direction)
{
    uint64_t word = table_word(fd);
    if (UNLIKELY(word_kind(word) == KIND_CLOSED_IN_HANDLER) && reentrancy_depth == 0 && table_in_own_process()) {
        int kept = errno;
        table_set(fd, KIND_NONE);
        errno = kept;
        word = table_word(fd);
    }
    if (word_kind(word) == KIND_CANDIDATE && is_due(word, direction) && reentrancy_depth == 0 && !signals_in_handler() && fork_shared_is_sole_owner(fd, word)) {
        int kept = errno;
        enum tcp_reason reason = engine_disabled() ? REASON_NONE : go_runtime_present() ? REASON_GO : distance(fd);
        if (engine_disabled() || (!engine_open() && engine_failed()) || needs_kernel_semantics(fd))
            table_force_tcp(fd, REASON_NONE);
        else if (reason != REASON_NONE)
            table_force_tcp(fd, reason); /* the engine only counts it */
        else if (engine_is_open())
            upgrade(fd);
        errno = kept;
        word = table_word(fd);
    }
    if (UNLIKELY(word_kind(word) == KIND_UPGRADING)) {
        await_upgrade(fd);
        word = table_word(fd);
    }
    return word;
}
