/* uring.c: io_uring, by which a program uses connections where no library sees it.
 *
 * What it is:   before an operation on a connection is submitted, the connection returns to TCP for good with its unread bytes: nothing would tell
 *               such an operation of bytes in a ring. Programs submit by liburing, whose queue this object reads, or by syscall() or liburing's forms of
 *               the system calls: then the queue is not known, and in such a process only connections that are awaited in epoll sets use Motet.
 * What it isn't: a view of system calls that are inlined, as in a static liburing (docs/sockets.md).
 *
 * liburing may be loaded late, and by dlopen() for one library alone. Its functions are found behind this object, or from the caller's object.
 *
 * Signal safety: none, as in liburing. Fork safety: a child inherits what the process is, and liburing's functions. errno: kept. */
#include "sockets.h"

#include "epoll_interest.h"

#include <dlfcn.h>
#include <link.h>
#include <linux/io_uring.h>
#include <stddef.h>
#include <sys/epoll.h>

atomic_bool uring_by_system_call;

/* The beginning of liburing's struct io_uring: its queue of submissions, the same in all versions from 0.1 on, and what follows from 2.0 on. */
struct io_uring {
    unsigned *head, *tail, *mask, *size, *flags, *dropped, *array;
    struct io_uring_sqe *entries;
    unsigned first, end; /* places of the entries that the program has filled and not submitted */
    size_t bytes[4];
    void *results[11];
    unsigned setup; /* IORING_SETUP flags */
};
_Static_assert(offsetof(struct io_uring, setup) == 192, "as in liburing 2");

static void leave(int fd)
{
    enum kind kind = word_kind(table_word(fd));
    if (UNLIKELY(kind >= KIND_CANDIDATE)) handover_fd(fd, REASON_UNSEEN_WAIT);
    if (UNLIKELY(kind == KIND_EPOLL)) interest_epoll_nested(fd); /* as if another set had it */
}

/* What is registered may be connected later. */
static void leave_files(const int *files, unsigned count)
{
    for (unsigned i = 0; files && i < count; i++) {
        leave(files[i]);
        if (word_kind(table_word(files[i])) == KIND_UNCONNECTED) handover_fd(files[i], REASON_UNSEEN_WAIT);
    }
}

static void leave_for(const struct io_uring_sqe *entry)
{
    switch (entry->opcode) {
    case IORING_OP_NOP:
    case IORING_OP_ACCEPT:
    case IORING_OP_CONNECT: return; /* the connection that these make is not tracked */
    case IORING_OP_EPOLL_CTL:
        if (entry->len != EPOLL_CTL_DEL) leave((int)entry->off);
        return;
    case IORING_OP_FILES_UPDATE: leave_files((const int *)(uintptr_t)entry->addr, entry->len); return;
    case IORING_OP_SPLICE:
    case IORING_OP_TEE:
        if (!(entry->splice_flags & SPLICE_F_FD_IN_FIXED)) leave(entry->splice_fd_in);
        break;
    case IORING_OP_SENDMSG:
    case IORING_OP_SENDMSG_ZC: handover_passed((const struct msghdr *)(uintptr_t)entry->addr); break;
    default: break;
    }
    if (!(entry->flags & IOSQE_FIXED_FILE)) leave(entry->fd);
}

/* Whether the library of this function has rings of entries of 128 bytes, and so all of struct io_uring: from 2.2 on. */
static bool has_large_entries(void *function)
{
    static _Atomic(void *) known;
    static atomic_bool is_known_to_have;
    Dl_info where;
    if (LIKELY(atomic_load_explicit(&known, memory_order_acquire) == function)) return atomic_load(&is_known_to_have);
    void *library = dladdr(function, &where) != 0 ? dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    bool has = library && dlsym(library, "io_uring_register_ring_fd");
    if (library) dlclose(library);
    atomic_store(&is_known_to_have, has);
    atomic_store_explicit(&known, function, memory_order_release);
    return has;
}

/* `function`: liburing's, which submits what the program has filled. */
static void leave_submitted(const struct io_uring *ring, void *function)
{
    if (table_is_empty() || reentrancy_depth > 0 || !ring->entries || !ring->mask) return;
    unsigned entries = has_large_entries(function) && ring->setup & IORING_SETUP_SQE128 ? 2 : 1;
    for (unsigned at = ring->first; at != ring->end; at++) leave_for(&ring->entries[(at & *ring->mask) * entries]);
}

void uring_set_up_by_system_call(void)
{
    if (atomic_exchange(&uring_by_system_call, true) || reentrancy_depth > 0) return;
    int kept = errno;
    for (int fd = 0; fd <= atomic_load(&fd_top); fd++)
        if (word_kind(table_word(fd)) == KIND_STREAM && !interest_first_of(fd)) leave(fd);
    errno = kept;
}

void uring_before_wait(int fd)
{
    if (!interest_first_of(fd)) leave(fd);
}

/* liburing's function of this name, if the library is in the global scope. It stays loaded. */
static void *find_behind(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    Dl_info where;
    if (found && dladdr(found, &where) != 0) dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    return found;
}

/* liburing's function of this name as the object of `caller` finds it, which dlopen() has loaded with liburing for itself. */
static void *find_from(void *caller, const char *name)
{
    Dl_info where;
    struct link_map *object;
    if (dladdr1(caller, &where, (void **)&object, RTLD_DL_LINKMAP) == 0) return NULL;
    void *handle = dlopen(object->l_name, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle) return NULL;
    void *found = dlsym(handle, name);
    dlclose(handle);
    return found;
}

/* Defines a function of liburing that does `first` before. */
#define BEFORE(first, name, parameters, arguments)                                                                      \
    SHIM_API int name parameters;                                                                                       \
    SHIM_API int name parameters                                                                                        \
    {                                                                                                                   \
        static void *_Atomic behind;                                                                                    \
        int kept = errno;                                                                                               \
        void *real = atomic_load_explicit(&behind, memory_order_acquire);                                               \
        if (UNLIKELY(!real) && (real = find_behind(#name))) atomic_store_explicit(&behind, real, memory_order_release); \
        if (UNLIKELY(!real)) real = find_from(__builtin_return_address(0), #name);                                      \
        if (UNLIKELY(!real)) return -ENOSYS;                                                                            \
        first;                                                                                                          \
        errno = kept;                                                                                                   \
        return ((__typeof__(&name))real)arguments;                                                                      \
    }

struct io_uring_cqe;
struct __kernel_timespec;

BEFORE(leave_submitted(ring, real), io_uring_submit, (struct io_uring *ring), (ring))
BEFORE(leave_submitted(ring, real), io_uring_submit_and_wait, (struct io_uring *ring, unsigned count), (ring, count))
BEFORE(leave_submitted(ring, real), io_uring_submit_and_get_events, (struct io_uring *ring), (ring))
BEFORE(leave_submitted(ring, real), io_uring_submit_and_wait_timeout,
       (struct io_uring *ring, struct io_uring_cqe **results, unsigned count, struct __kernel_timespec *time, sigset_t *mask),
       (ring, results, count, time, mask))
BEFORE(leave_submitted(ring, real), io_uring_wait_cqes,
       (struct io_uring *ring, struct io_uring_cqe **results, unsigned count, struct __kernel_timespec *time, sigset_t *mask),
       (ring, results, count, time, mask))
BEFORE(leave_submitted(ring, real), io_uring_wait_cqe_timeout,
       (struct io_uring *ring, struct io_uring_cqe **result, struct __kernel_timespec *time), (ring, result, time))
BEFORE(leave_submitted(ring, real), io_uring_submit_and_wait_min_timeout,
       (struct io_uring *ring, struct io_uring_cqe **results, unsigned count, struct __kernel_timespec *time, unsigned least, sigset_t *mask),
       (ring, results, count, time, least, mask))
BEFORE(leave_submitted(ring, real), io_uring_submit_and_wait_reg,
       (struct io_uring *ring, struct io_uring_cqe **results, unsigned count, int index), (ring, results, count, index))
BEFORE(leave_submitted(ring, real), io_uring_wait_cqes_min_timeout,
       (struct io_uring *ring, struct io_uring_cqe **results, unsigned count, struct __kernel_timespec *time, unsigned least, sigset_t *mask),
       (ring, results, count, time, least, mask))
BEFORE(leave_files(files, count), io_uring_register_files, (struct io_uring *ring, const int *files, unsigned count), (ring, files, count))
BEFORE(leave_files(files, count), io_uring_register_files_tags,
       (struct io_uring *ring, const int *files, const uint64_t *tags, unsigned count), (ring, files, tags, count))
BEFORE(leave_files(files, count), io_uring_register_files_update,
       (struct io_uring *ring, unsigned from, const int *files, unsigned count), (ring, from, files, count))
BEFORE(leave_files(files, count), io_uring_register_files_update_tag,
       (struct io_uring *ring, unsigned from, const int *files, const uint64_t *tags, unsigned count), (ring, from, files, tags, count))
BEFORE(uring_set_up_by_system_call(), io_uring_setup, (unsigned count, struct io_uring_params *at), (count, at))
BEFORE(uring_set_up_by_system_call(), io_uring_enter,
       (unsigned ring, unsigned submitted, unsigned count, unsigned flags, sigset_t *mask), (ring, submitted, count, flags, mask))
BEFORE(uring_set_up_by_system_call(), io_uring_enter2,
       (unsigned ring, unsigned submitted, unsigned count, unsigned flags, sigset_t *mask, size_t size), (ring, submitted, count, flags, mask, size))
BEFORE(uring_set_up_by_system_call(), io_uring_register, (unsigned ring, unsigned what, const void *of, unsigned count), (ring, what, of, count))
