/* signals.c: when signal handlers of the program run.
 *
 * What it is:   a deferral of handlers while their thread is in the engine. sigaction() and its variants install `handler_entry` instead of
 *               the program's handler. A signal that finds its thread in the engine (reentrancy_depth > 0) is queued to the thread again,
 *               with all signals blocked, and the kernel delivers it when the thread has left the engine. So a handler may make any call,
 *               and leave by siglongjmp(). While a handler runs no upgrade begins, and the engine allocates nothing from libc, whose
 *               malloc() the handler may have interrupted. siglongjmp() and its variants close the engine operations of the frames that they
 *               leave.
 * What it isn't: a change of what the program sees. sigaction() returns the program's own handler and flags; order, siginfo, context,
 *               alternate stack and mask are the kernel's. Faults (SIGSEGV and the like) are not deferred. Handlers that were installed by
 *               raw system calls are not seen: in them a call on a stream that its thread is using fails with EAGAIN.
 *
 * Signal safety: everything here is async-signal-safe and lock-free. Fork safety: a child has its parent's handlers and the thread-local
 * state of the thread that forked. In a vfork child, whose memory is the parent's, handlers are installed without deferral. errno: kept on
 * success. */
#include "sockets.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>

#define SIGNAL_COUNT 65

__thread volatile int signals_pending;
__thread int signals_handler_depth;
__thread unsigned signals_handled;
static __thread bool in_long_sleep; /* the thread is in a long sleep of the engine */
static __thread uint64_t unblocked; /* signals to unblock when the thread leaves the engine */

static _Atomic(void *) handlers[SIGNAL_COUNT];
static _Atomic bool with_info[SIGNAL_COUNT];

static uint64_t bit(int number) { return 1ull << (number - 1); }

/* Faults are handled where they occur. Signals 32 and 33 are libc's. */
static bool is_deferrable(int number)
{
    const uint64_t not_ours = bit(SIGKILL) | bit(SIGSTOP) | bit(SIGSEGV) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGILL) | bit(SIGTRAP) |
                              bit(SIGSYS) | bit(32) | bit(33);
    return number > 0 && number < SIGNAL_COUNT && !(not_ours & bit(number));
}

static uint64_t all_deferrable(void)
{
    uint64_t all = 0;
    for (int number = 1; number < SIGNAL_COUNT; number++)
        if (is_deferrable(number)) all |= bit(number);
    return all;
}

/* ---------------------------------------------------------------- open engine operations */

/* Stack frames of the handlers that run in this thread, and the engine operations whose kernel call is in progress. */
static __thread void *frames[SHIM_HANDLER_DEPTH_MAX];
__thread struct signals_cleanup signals_cleanups[SHIM_HANDLER_DEPTH_MAX];
__thread int signals_cleanup_count;

/* ---------------------------------------------------------------- delivery */

void signals_deliver(void)
{
    int kept = errno;
    uint64_t mask = ~unblocked;
    unblocked = 0;
    signals_pending = 0;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, NULL, sizeof mask);
    errno = kept;
}

static void handler_entry(int number, siginfo_t *info, void *context);

/* Installs handler_entry again after the kernel removed it for SA_RESETHAND: the handler has not run yet. */
static void rearm_resethand(int number)
{
    struct sigaction now;
    if (REAL(sigaction)(number, NULL, &now) != 0 || !(now.sa_flags & SA_RESETHAND) || now.sa_handler != SIG_DFL) return;
    now.sa_sigaction = handler_entry;
    REAL(sigaction)(number, &now, NULL);
}

/* Real-time signals of one number queue in order. A signal that is queued again comes after those that were sent meanwhile, so the order is
 * kept here: `postponed` holds the signals in their order of arrival, `sent_again` in the kernel's order. A signal that arrives while others
 * of its number are postponed goes to the end of the list, and the first of the list is handled instead. All of this runs with signals
 * blocked. */
#define POSTPONED 4
static __thread siginfo_t postponed[POSTPONED], sent_again[POSTPONED];
static __thread int postponed_count;
static __thread long postponed_in; /* process number: a forked child has none of its parent's pending signals */

static void block(uint64_t signals, uint64_t *before) { syscall(SYS_rt_sigprocmask, SIG_BLOCK, &signals, before, sizeof signals); }

static bool are_the_same(const siginfo_t *one, const siginfo_t *other)
{
    return one->si_signo == other->si_signo && one->si_code == other->si_code && one->si_pid == other->si_pid &&
           one->si_uid == other->si_uid && one->si_value.sival_ptr == other->si_value.sival_ptr;
}

static int place_of_sent(const siginfo_t *info)
{
    int at = 0;
    while (at < postponed_count && !are_the_same(&sent_again[at], info)) at++;
    return at;
}

static int place_of_first(int number)
{
    int at = 0;
    while (at < postponed_count && postponed[at].si_signo != number) at++;
    return at;
}

static void take_out(siginfo_t *list, int at) { memmove(list + at, list + at + 1, (size_t)(postponed_count - 1 - at) * sizeof *list); }

static void forget(int number)
{
    for (int first; (first = place_of_first(number)) < postponed_count; postponed_count--) {
        int sent = 0;
        while (sent_again[sent].si_signo != number) sent++;
        take_out(postponed, first);
        take_out(sent_again, sent);
    }
}

/* Records a deferred signal. When the list is full the signal is not recorded: its order among others of its number may change. */
static void postpone(int number, const siginfo_t *info, long process)
{
    if (postponed_in != process) postponed_count = 0;
    postponed_in = process;
    if (number < 34 || postponed_count == POSTPONED || place_of_sent(info) < postponed_count) return;
    postponed[postponed_count] = sent_again[postponed_count] = *info;
    postponed_count++;
}

/* Replaces the handler's siginfo by that of the signal whose turn it is. */
static void take_turn(int number, siginfo_t *info)
{
    uint64_t before, pending = 0;
    siginfo_t first;
    int kept = errno, at, sent;
    block(all_deferrable(), &before);
    if ((at = place_of_first(number)) < postponed_count && postponed_in == syscall(SYS_getpid)) {
        first = postponed[at];
        sent = place_of_sent(info);
        syscall(SYS_rt_sigpending, &pending, sizeof pending);
        if (sent < postponed_count) {
            take_out(postponed, at);
            take_out(sent_again, sent);
            postponed_count--;
            *info = first;
        } else if (pending & bit(number)) {
            take_out(postponed, at);
            postponed[postponed_count - 1] = *info;
            *info = first;
        } else
            forget(number); /* the program has consumed them by other means, or ignored them for a while */
    }
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof before);
    errno = kept;
}

/* Queues the signal again and blocks all signals until the thread has left the engine. Several signals may arrive before the first has
 * blocked all of them; each finds a mask to which the earlier ones have only added. False: the handler must run now. */
static bool defer_signal(int number, siginfo_t *info, ucontext_t *context)
{
    uint64_t before, mask;
    int kept = errno;
    if (engine_confined()) return false;
    block(all_deferrable(), &before);
    long process = syscall(SYS_getpid), thread = syscall(SYS_gettid);
    bool sent = syscall(SYS_rt_tgsigqueueinfo, process, thread, number, info) == 0;
    if (sent) {
        postpone(number, info, process);
        rearm_resethand(number);
        memcpy(&mask, &context->uc_sigmask, sizeof mask); /* the kernel's mask is shorter than libc's */
        unblocked |= ~mask;
        signals_pending = 1;
        mask |= all_deferrable();
        memcpy(&context->uc_sigmask, &mask, sizeof mask);
    } else
        syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof before);
    errno = kept;
    return sent;
}

static void restore_depth(int *level) { signals_handler_depth = *level; }

static void handler_entry(int number, siginfo_t *info, void *context)
{
    if (UNLIKELY(reentrancy_depth > 0) && !in_long_sleep && defer_signal(number, info, context)) return;
    if (UNLIKELY(postponed_count > 0) && !engine_confined()) take_turn(number, info);
    int level __attribute__((cleanup(restore_depth))) = signals_handler_depth;
    if (level < SHIM_HANDLER_DEPTH_MAX) frames[level] = __builtin_frame_address(0);
    signals_handler_depth = level + 1;
    signals_handled++;
    void (*handler)(int, siginfo_t *, void *) = (void (*)(int, siginfo_t *, void *))(uintptr_t)atomic_load(&handlers[number]);
    handler(number, info, context);
}

int signals_poll(struct pollfd *descriptor, const struct timespec *limit, unsigned handled)
{
    uint64_t before;
    sigset_t mask;
    signals_deliver_pending();
    block(all_deferrable(), &before);
    sigemptyset(&mask);
    memcpy(&mask, &before, sizeof before); /* the kernel's mask is shorter than libc's */
    int ready = signals_handled == handled ? REAL(ppoll)(descriptor, 1, limit, &mask) : -1;
    int kept = errno;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof before);
    errno = kept;
    return ready;
}

/* ---------------------------------------------------------------- callbacks of the engine */

/* Handlers are not deferred over long sleeps of the engine, for example while a stopped process must still write to a receiver's memory. In
 * such a handler calls on the stream fail with EAGAIN, and they keep failing in this thread if the handler leaves by a jump. */
#define LONG_SLEEP_PAUSES 64

static void pause_of_engine(void)
{
    static __thread int pauses;
    if (LIKELY(!signals_pending)) {
        pauses = 0;
        return;
    }
    if (++pauses < LONG_SLEEP_PAUSES) return;
    pauses = 0;
    in_long_sleep = true;
    signals_deliver();
    in_long_sleep = false;
}

static int in_handler(void) { return signals_handler_depth > 0; }

void signals_attach_engine(void *library)
{
    __typeof__(&motet_signal_hooks) handlers_of = (__typeof__(handlers_of))dlsym(library, "motet_signal_hooks");
    if (handlers_of) handlers_of(in_handler, pause_of_engine);
    else dlerror();
}

/* ---------------------------------------------------------------- installing */

static bool is_function(const struct sigaction *action)
{
    return (uintptr_t)action->sa_handler > (uintptr_t)SIG_HOLD && action->sa_handler != SIG_ERR && action->sa_sigaction != handler_entry;
}

static bool installs(void) { return !engine_disabled() && table_in_own_process(); }

/* Replaces handler_entry in `action` by what the program had installed. */
static void as_installed(struct sigaction *action, void *handler, bool info)
{
    if (action->sa_sigaction != handler_entry) return;
    action->sa_sigaction = (void (*)(int, siginfo_t *, void *))(uintptr_t)handler;
    if (!info) action->sa_flags &= ~SA_SIGINFO;
}

SHIM_API int sigaction(int number, const struct sigaction *action, struct sigaction *old)
{
    if (!is_deferrable(number)) return REAL(sigaction)(number, action, old);
    void *handler = atomic_load(&handlers[number]);
    bool info = atomic_load(&with_info[number]), installed = action && is_function(action) && installs();
    struct sigaction ours, before;
    if (installed) {
        ours = *action;
        handler = atomic_exchange(&handlers[number], (void *)(uintptr_t)ours.sa_sigaction);
        info = atomic_exchange(&with_info[number], (ours.sa_flags & SA_SIGINFO) != 0);
        ours.sa_sigaction = handler_entry;
        ours.sa_flags |= SA_SIGINFO;
    }
    int result = REAL(sigaction)(number, installed ? &ours : action, &before);
    if (result == 0 && old) {
        as_installed(&before, handler, info);
        *old = before;
    }
    return result;
}

/* Takes over a handler that libc's function has just installed. Returns what `old` means to the program. */
static void *adopt(int number, void *old)
{
    int kept = errno;
    struct sigaction now;
    void *before = is_deferrable(number) ? atomic_load(&handlers[number]) : NULL;
    if (is_deferrable(number) && REAL(sigaction)(number, NULL, &now) == 0 && is_function(&now) && installs()) sigaction(number, &now, NULL);
    errno = kept;
    return old == (void *)(uintptr_t)handler_entry ? before : old;
}

#define ADOPT(name)                                                                                                  \
    SHIM_API sighandler_t name(int number, sighandler_t handler)                                                        \
    {                                                                                                                   \
        return (sighandler_t)(uintptr_t)adopt(number, (void *)(uintptr_t)REAL(name)(number, handler));                  \
    }

ADOPT(signal)
ADOPT(sigset)
ADOPT(__sysv_signal)

SHIM_API sighandler_t bsd_signal(int number, sighandler_t handler) __attribute__((alias("signal"), nothrow, leaf));
SHIM_API sighandler_t ssignal(int number, sighandler_t handler) __attribute__((alias("signal"), nothrow, leaf));
SHIM_API sighandler_t sysv_signal(int number, sighandler_t handler) __attribute__((alias("__sysv_signal"), nothrow, leaf));
SHIM_API int __sigaction(int number, const struct sigaction *action, struct sigaction *old) __attribute__((alias("sigaction"), nothrow, leaf));

/* ---------------------------------------------------------------- jumps */

/* Finds where a jump leads: libc stores the stack pointer in the jump buffer, mangled with a pointer guard. The guard is computed once from
 * a buffer of this object; if the mangling is not the known one, no jump is followed. */
int _setjmp(void *buffer) __attribute__((returns_twice));

#if defined(__x86_64__)
#define SP_AT 6
static uintptr_t stack_pointer(void) { uintptr_t sp; __asm__ volatile("mov %%rsp, %0" : "=r"(sp)); return sp; }
static uintptr_t demangle(uintptr_t kept) { return kept >> 17 | kept << 47; }
#elif defined(__aarch64__)
#define SP_AT 13
static uintptr_t stack_pointer(void) { uintptr_t sp; __asm__ volatile("mov %0, sp" : "=r"(sp)); return sp; }
static uintptr_t demangle(uintptr_t kept) { return kept; }
#endif

static uintptr_t pointer_guard;

static __attribute__((noinline)) uintptr_t try_jump(void)
{
    uintptr_t buffer[64] = {0};
    if (_setjmp(buffer) != 0) return 0;
    uintptr_t near = stack_pointer();
    return demangle(buffer[SP_AT]) ^ near;
}

__attribute__((constructor(103))) static void signals_begin(void)
{
    uintptr_t first = try_jump();
    volatile char deeper[512];
    deeper[0] = 0;
    (void)deeper;
    if (first == try_jump()) pointer_guard = first;
}

static bool in_range(uintptr_t at, const stack_t *range)
{
    return at >= (uintptr_t)range->ss_sp && at < (uintptr_t)range->ss_sp + range->ss_size;
}

/* True when a jump to `to` leaves this frame. The alternate stack counts as below all others. */
static bool leaves(const void *frame, uintptr_t to, const stack_t *alternate)
{
    bool on = (alternate->ss_flags & SS_ONSTACK) && in_range((uintptr_t)frame, alternate);
    if ((alternate->ss_flags & SS_ONSTACK) && in_range(to, alternate)) return on && (uintptr_t)frame < to;
    return on || (uintptr_t)frame < to;
}

static __attribute__((noinline)) void jump_from_handler(const void *buffer)
{
    uintptr_t to = demangle(((const uintptr_t *)buffer)[SP_AT]) ^ pointer_guard;
    stack_t alternate = {.ss_flags = SS_DISABLE};
    if (pointer_guard == 0 || reentrancy_depth > 0) return;
    syscall(SYS_sigaltstack, NULL, &alternate);
    while (signals_cleanup_count > 0 && leaves(signals_cleanups[signals_cleanup_count - 1].of, to, &alternate)) {
        struct signals_cleanup last = signals_cleanups[--signals_cleanup_count];
        last.end(last.of);
    }
    while (signals_handler_depth > SHIM_HANDLER_DEPTH_MAX ||
           (signals_handler_depth > 0 && leaves(frames[signals_handler_depth - 1], to, &alternate)))
        signals_handler_depth--;
}

#define JUMP(name)                                                                                                      \
    SHIM_API void name(struct __jmp_buf_tag *buffer, int value)                                                         \
    {                                                                                                                   \
        if (UNLIKELY(signals_handler_depth > 0)) jump_from_handler(buffer);                                                        \
        REAL(name)(buffer, value);                                                                                      \
        __builtin_unreachable();                                                                                        \
    }

JUMP(siglongjmp)
JUMP(longjmp)
JUMP(_longjmp)
JUMP(__longjmp_chk)
