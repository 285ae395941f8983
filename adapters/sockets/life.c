/* life.c: the process's turns: fork, the first thread, confinement, exit. (exec and spawn: exec.c.)
 *
 * What it is:   fork handlers that stop the table and the engine for the moment of the copy; gates closed for good when the
 *               process is about to confine its system calls; the engine's leave at exit.
 *
 * Signal safety: _exit may be called in a handler; one that interrupted the engine (shim_depth > 0) makes only the system
 * call. Fork safety: in a vfork child every function here makes only the system call. */
#include "shim.h"

#include <linux/membarrier.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/single_threaded.h>
#include <sys/syscall.h>

/* ---------------------------------------------------------------- fork */

void life_before_fork(void)
{
    table_lock_for_fork();
    if (engine_is_open() && !engine_confined()) ENGINE_DO(engine.fork_prepare());
}

void life_after_fork(bool child)
{
    bool acts = engine_is_open() && !engine_confined();
    if (acts && child) ENGINE_DO(engine.fork_child());
    if (acts && !child) ENGINE_DO(engine.fork_parent());
    table_unlock_after_fork(child);
}

static void fork_parent(void) { life_after_fork(false); }

static void fork_child(void) { life_after_fork(true); }

/* Births without the handlers of pthread_atfork(): the child is one of the family all the same. */
static bool is_born_unseen(void) { return shim_depth == 0 && table_in_own_process(); }

SHIM_API pid_t _Fork(void)
{
    if (!is_born_unseen()) return REAL(_Fork)();
    life_before_fork();
    pid_t child = REAL(_Fork)();
    int kept = errno;
    life_after_fork(child == 0);
    errno = kept;
    return child;
}

struct birth {
    int (*run)(void *);
    void *argument;
};

static int born(void *birth)
{
    struct birth *x = birth;
    life_after_fork(true);
    return x->run(x->argument);
}

/* A child with memory of its own is forked; one that shares ours is a thread, or executes a program soon (hand_on.c). */
SHIM_API int clone(int (*run)(void *), void *stack, int flags, void *argument, ...)
{
    va_list list;
    va_start(list, argument);
    void *parent_id = va_arg(list, void *), *storage = va_arg(list, void *), *child_id = va_arg(list, void *);
    va_end(list);
    if ((flags & CLONE_VM) || !run || !is_born_unseen()) return REAL(clone)(run, stack, flags, argument, parent_id, storage, child_id);
    struct birth birth = {run, argument};
    life_before_fork();
    int child = REAL(clone)(born, stack, flags, &birth, parent_id, storage, child_id);
    int kept = errno;
    life_after_fork(false);
    errno = kept;
    return child;
}

__attribute__((constructor(102))) static void life_begin(void)
{
    int kept = errno;
    table_note_beginning();
    pthread_atfork(life_before_fork, fork_parent, fork_child);
    errno = kept;
}

/* ---------------------------------------------------------------- threads */

/* Says of the process what the engine says when it needs it. The system takes 4 us for both while there is one thread, and as a rule 30 ms
 * afterwards, as it waits for every CPU (synchronize_rcu). Where it refuses, the engine asks again and does without. */
static void join_barriers(void)
{
    int kept = errno;
    syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
    syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0);
    errno = kept;
}

SHIM_API int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    if (UNLIKELY(__libc_single_threaded) && !engine_disabled()) {
        shim_make_room();
        join_barriers();
    }
    return REAL(pthread_create)(thread, attributes, run, argument);
}

/* ---------------------------------------------------------------- confinement */

/* Under seccomp a system call that the program itself never makes may kill it. Whoever renounces new privileges is about to
 * install a filter; from then on every connection stays, or becomes, plain (confined.c). */
SHIM_API int prctl(int option, ...)
{
    va_list list;
    va_start(list, option);
    unsigned long a = va_arg(list, unsigned long), b = va_arg(list, unsigned long);
    unsigned long c = va_arg(list, unsigned long), d = va_arg(list, unsigned long);
    va_end(list);
    if (confined_prctl(option, a)) confined_begin();
    return REAL(prctl)(option, a, b, c, d);
}

/* ---------------------------------------------------------------- exit */

void life_leave(void)
{
    if (shim_depth > 0 || !table_in_own_process() || engine_confined()) return;
    static _Atomic bool left;
    if (atomic_exchange(&left, true)) return;
    family_exit();
    if (!engine_is_open()) return;
    int kept = errno;
    for (int fd = 0; fd <= atomic_load(&shim_top); fd++) {
        uint64_t word = table_word(fd);
        if (word_kind(word) != KIND_STREAM) continue;
        engine_report(table_handle(fd), fd);
        if (!(word & WORD_ELSEWHERE) && ENGINE(engine.rx_bytes(table_handle(fd))) > 0) table_reset_at_close(fd);
    }
    ENGINE_DO(engine.leave());
    errno = kept;
}

__attribute__((destructor)) static void life_end(void) { life_leave(); }

SHIM_API void _exit(int status)
{
    life_leave();
    REAL(_exit)(status);
    __builtin_unreachable();
}

SHIM_API void _Exit(int status) __attribute__((alias("_exit")));
