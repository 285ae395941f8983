/* exec_handover.c: hand-over of connections whose descriptors reach code without this object.
 *
 * What it is:   one rule for everything that passes a descriptor: exec, posix_spawn, system, popen, wordexp, SCM_RIGHTS, a copy made in a
 *               vfork child, a copy onto descriptors 0 to 2 (which stdio uses without calling this object). The connection stays on TCP from
 *               then on, in this process and in the other one, and unread bytes of rings move back to TCP (motet_hand_over). The next
 *               program image needs no knowledge of the connection's past.
 * What it isn't: a transfer of the fast path. A forked child keeps the fast path, as it runs the same image (fork_shared.c, the engine).
 *
 * A vfork child, or a clone with CLONE_VM, runs this code in its parent's memory with a descriptor table of its own. So motet_hand_over()
 * checks that the kernel's socket under the number is the stream's.
 *
 * Signal safety: exec may be called in a handler; one that interrupted the engine (reentrancy_depth > 0) hands nothing over. No allocation.
 * Fork safety: usable in a vfork child, whose parent's thread is suspended. errno: kept. */
#include "sockets.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/single_threaded.h>
#include <sys/syscall.h>
#include <wordexp.h>

static bool may_hand_over(uint64_t word)
{
    enum kind kind = word_kind(word);
    return (kind == KIND_UNCONNECTED || (kind >= KIND_CANDIDATE && kind <= KIND_STREAM)) && !(word & WORD_HANDED_OVER);
}

void handover_fd(int fd, enum tcp_reason reason)
{
    uint64_t word = table_word(fd);
    if (!may_hand_over(word) || reentrancy_depth > 0) return;
    int kept = errno;
    while (word_kind(word) == KIND_UPGRADING) word = candidate_upgrade_if_due(fd, SENDING);
    if (word_kind(word) == KIND_STREAM) {
        int done = ENGINE(engine.hand_over(table_handle(fd), fd, reason));
        if (done >= 0) table_set_bits(fd, WORD_OTHER_PROCESS | (done > 0 ? WORD_HANDED_OVER : 0));
    } else {
        table_force_tcp(fd, reason);
    }
    errno = kept;
}

/* A process that receives a descriptor by SCM_RIGHTS may use it without this object: the connection stays on TCP. */
void handover_passed(const struct msghdr *message)
{
    for (struct cmsghdr *control = CMSG_FIRSTHDR(message); control; control = CMSG_NXTHDR((struct msghdr *)message, control)) {
        if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS || control->cmsg_len < CMSG_LEN(0)) continue;
        size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(control) + i * sizeof fd, sizeof fd);
            handover_fd(fd, REASON_PASSED);
        }
    }
}

static bool stays_open(int fd)
{
    int flags = REAL(fcntl)(fd, F_GETFD);
    return flags >= 0 && !(flags & FD_CLOEXEC);
}

static void handover_inherited(bool (*also_inherited)(int))
{
    if (reentrancy_depth > 0 || engine_confined()) return; /* a confined process has no stream and must not make further system calls */
    int kept = errno;
    for (int fd = 0; fd <= atomic_load(&fd_top); fd++)
        if (may_hand_over(table_word(fd)) && (stays_open(fd) || (also_inherited && also_inherited(fd)))) handover_fd(fd, REASON_EXEC);
    errno = kept;
}

/* ---------------------------------------------------------------- exec */

void handover_before_exec(void)
{
    if (reentrancy_depth > 0 || engine_confined()) return;
    int kept = errno;
    if (table_in_own_process()) fork_shared_before_exec();
    handover_inherited(NULL);
    if (engine_is_open()) ENGINE_DO(engine.before_exec());
    errno = kept;
}

void handover_exec_failed(void)
{
    if (reentrancy_depth == 0 && !engine_confined() && table_in_own_process()) fork_shared_exec_failed();
}

/* ---------------------------------------------------------------- spawn */

/* Numbers that some posix_spawn_file_actions_adddup2() named as source: such a descriptor reaches a child although it is close-on-exec. */
static _Atomic uint64_t dup2_sources[SHIM_TRACKED_FDS / 64];

static bool is_dup2_source(int fd) { return atomic_load(&dup2_sources[fd / 64]) >> (fd % 64) & 1; }

SHIM_API int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t *actions, int from, int to)
{
    if ((unsigned)from < SHIM_TRACKED_FDS) atomic_fetch_or(&dup2_sources[from / 64], 1ull << (from % 64));
    return REAL(posix_spawn_file_actions_adddup2)(actions, from, to);
}

void handover_before_spawn(bool with_actions) { handover_inherited(with_actions ? is_dup2_source : NULL); }

/* Other threads may have created connections between the scan and the start of the child. */
void handover_after_spawn(bool with_actions)
{
    if (UNLIKELY(!__libc_single_threaded)) handover_inherited(with_actions ? is_dup2_source : NULL);
}

/* Spawns inside libc, which do not call posix_spawn() of this object. */
#define SPAWNING(type, call)                                                                                            \
    handover_before_spawn(false);                                                                                        \
    type result = call;                                                                                                 \
    handover_after_spawn(false);                                                                                         \
    return result

SHIM_API int system(const char *command) { SPAWNING(int, REAL(system)(command)); }

SHIM_API FILE *popen(const char *command, const char *mode) { SPAWNING(FILE *, REAL(popen)(command, mode)); }

SHIM_API int wordexp(const char *words, wordexp_t *into, int flags) { SPAWNING(int, REAL(wordexp)(words, into, flags)); }
