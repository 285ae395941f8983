/* process_lifecycle.c: events of the process: fork, threads, descriptor tables, confinement, exit. (exec and spawn: exec.c.)
 *
 * What it is:   fork handlers that lock the table and the engine across the copy; the call of confined.c before a seccomp filter is
 *               installed, or a thread gets a descriptor table of its own; the engine's shutdown at exit.
 *
 * Signal safety: _exit() may be called in a handler; one that interrupted the engine (reentrancy_depth > 0) makes the system call only. Fork
 * safety: in a vfork child every function here makes the system call only. errno: kept on success. */
#include "sockets.h"

#include <linux/membarrier.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/single_threaded.h>
#include <sys/syscall.h>

/* ---------------------------------------------------------------- fork */

void lifecycle_before_fork(void)
{
    table_lock_for_fork();
    if (engine_is_open() && !engine_confined()) ENGINE_DO(engine.fork_prepare());
}

void lifecycle_after_fork(bool child)
{
    bool acts = engine_is_open() && !engine_confined();
    if (acts && child) ENGINE_DO(engine.fork_child());
    if (acts && !child) ENGINE_DO(engine.fork_parent());
    table_unlock_after_fork(child);
}

static void fork_parent(void) { lifecycle_after_fork(false); }

static void fork_child(void) { lifecycle_after_fork(true); }

/* For ways to fork that run no handlers of pthread_atfork(): the child is a member of the fork group as well. */
static bool forks_unseen(void) { return reentrancy_depth == 0 && table_in_own_process(); }

SHIM_API pid_t _Fork(void)
{
    if (!forks_unseen()) return REAL(_Fork)();
    lifecycle_before_fork();
    pid_t child = REAL(_Fork)();
    int kept = errno;
    lifecycle_after_fork(child == 0);
    errno = kept;
    return child;
}

struct clone_request {
    int (*run)(void *);
    void *argument;
};

static int run_in_clone(void *clone_request)
{
    struct clone_request *x = clone_request;
    lifecycle_after_fork(true);
    return x->run(x->argument);
}

/* A child with memory of its own is forked. One that shares the memory is a thread, or will execute a program (exec_handover.c). */
SHIM_API int clone(int (*run)(void *), void *stack, int flags, void *argument, ...)
{
    va_list list;
    va_start(list, argument);
    void *parent_id = va_arg(list, void *), *storage = va_arg(list, void *), *child_id = va_arg(list, void *);
    va_end(list);
    lifecycle_before_clone((unsigned)flags);
    if ((flags & CLONE_VM) || !run || !forks_unseen()) return REAL(clone)(run, stack, flags, argument, parent_id, storage, child_id);
    struct clone_request clone_request = {run, argument};
    lifecycle_before_fork();
    int child = REAL(clone)(run_in_clone, stack, flags, &clone_request, parent_id, storage, child_id);
    int kept = errno;
    lifecycle_after_fork(false);
    errno = kept;
    return child;
}

__attribute__((constructor(102))) static void lifecycle_begin(void)
{
    int kept = errno;
    table_record_initial_process();
    pthread_atfork(lifecycle_before_fork, fork_parent, fork_child);
    errno = kept;
}

/* ---------------------------------------------------------------- threads */

/* Registers the process for membarrier(2), which the engine would otherwise do at its first use. Both registrations take 4 us in a process
 * with one thread, and usually 30 ms in one with more, because the kernel waits for every CPU (synchronize_rcu). If the kernel refuses, the
 * engine tries again and works without. */
static void register_membarriers(void)
{
    int kept = errno;
    syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
    syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0);
    errno = kept;
}

SHIM_API int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    if (UNLIKELY(__libc_single_threaded) && !engine_disabled()) {
        fd_reserve_private_range();
        register_membarriers();
    }
    return REAL(pthread_create)(thread, attributes, run, argument);
}

/* ---------------------------------------------------------------- descriptor tables */

/* The table of this object is one for the process. Before a thread gets descriptors of its own, where a number means another connection, every
 * connection returns to TCP. A process with one thread only leaves a table that it shares with other processes, if any. */
void lifecycle_before_unshare(void)
{
    if (reentrancy_depth == 0 && table_in_own_process() && engine_process_has_threads()) confined_begin(REASON_OWN_DESCRIPTORS);
}

SHIM_API int unshare(int flags)
{
    if (flags & CLONE_FILES) lifecycle_before_unshare();
    return REAL(unshare)(flags);
}

/* A thread that is made without CLONE_FILES has a table of its own from the beginning. */
void lifecycle_before_clone(unsigned long flags)
{
    if ((flags & CLONE_THREAD) && !(flags & CLONE_FILES)) confined_begin(REASON_OWN_DESCRIPTORS);
}

/* ---------------------------------------------------------------- confinement */

/* Under a seccomp filter, a system call that the program itself never makes may end the process. From just before it is installed, every
 * connection is on TCP (confined.c). PR_SET_NO_NEW_PRIVS alone restricts no call: HAProxy sets it and installs no filter. */
SHIM_API int prctl(int option, ...)
{
    va_list list;
    va_start(list, option);
    unsigned long a = va_arg(list, unsigned long), b = va_arg(list, unsigned long);
    unsigned long c = va_arg(list, unsigned long), d = va_arg(list, unsigned long);
    va_end(list);
    if (confined_prctl(option, a)) confined_begin(REASON_CONFINED);
    return REAL(prctl)(option, a, b, c, d);
}

/* ---------------------------------------------------------------- exit */

void lifecycle_exit(void)
{
    if (reentrancy_depth > 0 || !table_in_own_process() || engine_confined()) return;
    static _Atomic bool left;
    if (atomic_exchange(&left, true)) return;
    fork_shared_exit();
    if (!engine_is_open()) return;
    int kept = errno;
    for (int fd = 0; fd <= atomic_load(&fd_top); fd++) {
        uint64_t word = table_word(fd);
        if (word_kind(word) != KIND_STREAM) continue;
        engine_report(table_handle(fd), fd);
        if (!(word & WORD_OTHER_PROCESS) && ENGINE(engine.rx_bytes(table_handle(fd))) > 0) table_reset_at_close(fd);
    }
    ENGINE_DO(engine.before_exit());
    errno = kept;
}

__attribute__((destructor)) static void lifecycle_end(void) { lifecycle_exit(); }

SHIM_API void _exit(int status)
{
    lifecycle_exit();
    REAL(_exit)(status);
    __builtin_unreachable();
}

SHIM_API void _Exit(int status) __attribute__((alias("_exit")));
