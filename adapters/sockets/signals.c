/* signals.c: handlers of the program's, and where they run.
 *
 * What it is:   a handler never runs in the middle of the engine. sigaction() and its kin install `entry` in the handler's place. A
 *               signal that finds its thread in the engine (shim_depth > 0) is sent to the thread once more, blocked with all
 *               others, and delivered by the kernel when the thread has left the engine. So a handler may make any call, and leave
 *               by siglongjmp(). It is known, too, that a thread is in a handler: no hand-over begins there, and the engine takes no
 *               memory from the C library, whose malloc() the handler may have interrupted.
 *                 siglongjmp() and its kin end what the frames that are left have open in the engine, and say so here.
 * What it isn't: a change of what the program sees: sigaction() answers with the program's own handler and flags, and order, siginfo,
 *               context, alternate stack and mask are the kernel's. Faults (SIGSEGV and the like) are handled as they were. Handlers
 *               that were installed by bare system calls are not seen: there a call on a stream that its thread was busy with
 *               fails with EAGAIN.
 *
 * Signal safety: all of it; lock-free. Fork safety: a child has its parent's handlers, and the thread-local words of the thread that
 * forked. In a vfork child handlers are installed bare, as this memory is the parent's. */
#include "shim.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>

#define SIGNALS 65

__thread volatile int shim_pending;
__thread int shim_level;
static __thread bool lingers; /* the thread sleeps in the engine, for long */
static __thread uint64_t unblocked; /* after the engine: signals that were not blocked before */

static _Atomic(void *) handlers[SIGNALS];
static _Atomic bool with_info[SIGNALS];

static uint64_t bit(int number) { return 1ull << (number - 1); }

/* Faults are answered where they happen; 32 and 33 are the C library's. */
static bool is_ours(int number)
{
    const uint64_t not_ours = bit(SIGKILL) | bit(SIGSTOP) | bit(SIGSEGV) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGILL) | bit(SIGTRAP) |
                              bit(SIGSYS) | bit(32) | bit(33);
    return number > 0 && number < SIGNALS && !(not_ours & bit(number));
}

static uint64_t all_of_ours(void)
{
    uint64_t all = 0;
    for (int number = 1; number < SIGNALS; number++)
        if (is_ours(number)) all |= bit(number);
    return all;
}

/* ---------------------------------------------------------------- what is open */

/* Frames of handlers that run in this thread, and engine operations whose kernel call is under way. */
static __thread void *frames[SHIM_LEVELS];
__thread struct shim_open shim_opened[SHIM_LEVELS];
__thread int shim_opened_count;

/* ---------------------------------------------------------------- delivery */

void signals_deliver(void)
{
    int kept = errno;
    uint64_t mask = ~unblocked;
    unblocked = 0;
    shim_pending = 0;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, NULL, sizeof mask);
    errno = kept;
}

static void entry(int number, siginfo_t *info, void *context);

/* A handler that the kernel has removed as it was called (SA_RESETHAND) is still to come. */
static void renew(int number)
{
    struct sigaction now;
    if (REAL(sigaction)(number, NULL, &now) != 0 || !(now.sa_flags & SA_RESETHAND) || now.sa_handler != SIG_DFL) return;
    now.sa_sigaction = entry;
    REAL(sigaction)(number, &now, NULL);
}

/* Signals of a real-time number queue in order. One that is sent once more comes behind those that were sent meanwhile, so the order
 * is kept here: `postponed` in the order in which they came, and `sent_again` as the kernel has them. One that comes while others of
 * its number are postponed takes its place behind them, and the first of them is handled instead. All of it with signals blocked. */
#define POSTPONED 4
static __thread siginfo_t postponed[POSTPONED], sent_again[POSTPONED];
static __thread int postponed_count;
static __thread long postponed_in; /* a process that was forked has none of its parent's signals */

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

/* Where there is no room it keeps no place: its order among others of its number may change. */
static void postpone(int number, const siginfo_t *info, long process)
{
    if (postponed_in != process) postponed_count = 0;
    postponed_in = process;
    if (number < 34 || postponed_count == POSTPONED || place_of_sent(info) < postponed_count) return;
    postponed[postponed_count] = sent_again[postponed_count] = *info;
    postponed_count++;
}

/* Before a handler is called: what it is told is of the signal whose turn it is. */
static void take_turn(int number, siginfo_t *info)
{
    uint64_t before, pending = 0;
    siginfo_t first;
    int kept = errno, at, sent;
    block(all_of_ours(), &before);
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
            forget(number); /* the program took them by other means, or ignored them for a while */
    }
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof before);
    errno = kept;
}

/* Several signals may come before the first has blocked them all. Each finds a mask to which the earlier ones have but added. */
static bool put_off(int number, siginfo_t *info, ucontext_t *context)
{
    uint64_t before, mask;
    int kept = errno;
    if (engine_confined()) return false;
    block(all_of_ours(), &before);
    long process = syscall(SYS_getpid), thread = syscall(SYS_gettid);
    bool sent = syscall(SYS_rt_tgsigqueueinfo, process, thread, number, info) == 0;
    if (sent) {
        postpone(number, info, process);
        renew(number);
        memcpy(&mask, &context->uc_sigmask, sizeof mask); /* the kernel's is shorter than the C library's */
        unblocked |= ~mask;
        shim_pending = 1;
        mask |= all_of_ours();
        memcpy(&context->uc_sigmask, &mask, sizeof mask);
    } else
        syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof before);
    errno = kept;
    return sent;
}

static void left(int *level) { shim_level = *level; }

static void entry(int number, siginfo_t *info, void *context)
{
    if (UNLIKELY(shim_depth > 0) && !lingers && put_off(number, info, context)) return;
    if (UNLIKELY(postponed_count > 0) && !engine_confined()) take_turn(number, info);
    int level __attribute__((cleanup(left))) = shim_level;
    if (level < SHIM_LEVELS) frames[level] = __builtin_frame_address(0);
    shim_level = level + 1;
    void (*handler)(int, siginfo_t *, void *) = (void (*)(int, siginfo_t *, void *))(uintptr_t)atomic_load(&handlers[number]);
    handler(number, info, context);
}

/* ---------------------------------------------------------------- the engine */

/* Long sleeps of the engine: a receive into whose memory a stopped process is about to write, say. Handlers do not wait for that. What
 * they do with the stream fails with EAGAIN, and a jump out of one leaves this thread's streams so. */
#define PAUSES 64

static void pause_of_engine(void)
{
    static __thread int pauses;
    if (LIKELY(!shim_pending)) {
        pauses = 0;
        return;
    }
    if (++pauses < PAUSES) return;
    pauses = 0;
    lingers = true;
    signals_deliver();
    lingers = false;
}

static int in_handler(void) { return shim_level > 0; }

void signals_of_engine(void *library)
{
    __typeof__(&motet_handlers) handlers_of = (__typeof__(handlers_of))dlsym(library, "motet_handlers");
    if (handlers_of) handlers_of(in_handler, pause_of_engine);
    else dlerror();
}

/* ---------------------------------------------------------------- installing */

static bool is_function(const struct sigaction *action)
{
    return (uintptr_t)action->sa_handler > (uintptr_t)SIG_HOLD && action->sa_handler != SIG_ERR && action->sa_sigaction != entry;
}

static bool installs(void) { return !engine_disabled() && table_in_own_process(); }

/* What the program calls the action; `handler` and `info` are what it had installed. */
static void as_installed(struct sigaction *action, void *handler, bool info)
{
    if (action->sa_sigaction != entry) return;
    action->sa_sigaction = (void (*)(int, siginfo_t *, void *))(uintptr_t)handler;
    if (!info) action->sa_flags &= ~SA_SIGINFO;
}

SHIM_API int sigaction(int number, const struct sigaction *action, struct sigaction *old)
{
    if (!is_ours(number)) return REAL(sigaction)(number, action, old);
    void *handler = atomic_load(&handlers[number]);
    bool info = atomic_load(&with_info[number]), installed = action && is_function(action) && installs();
    struct sigaction ours, before;
    if (installed) {
        ours = *action;
        handler = atomic_exchange(&handlers[number], (void *)(uintptr_t)ours.sa_sigaction);
        info = atomic_exchange(&with_info[number], (ours.sa_flags & SA_SIGINFO) != 0);
        ours.sa_sigaction = entry;
        ours.sa_flags |= SA_SIGINFO;
    }
    int result = REAL(sigaction)(number, installed ? &ours : action, &before);
    if (result == 0 && old) {
        as_installed(&before, handler, info);
        *old = before;
    }
    return result;
}

/* The same for calls that have installed a handler by themselves; returns what `old` means to the program. */
static void *adopt(int number, void *old)
{
    int kept = errno;
    struct sigaction now;
    void *before = is_ours(number) ? atomic_load(&handlers[number]) : NULL;
    if (is_ours(number) && REAL(sigaction)(number, NULL, &now) == 0 && is_function(&now) && installs()) sigaction(number, &now, NULL);
    errno = kept;
    return old == (void *)(uintptr_t)entry ? before : old;
}

#define ADOPTING(name)                                                                                                  \
    SHIM_API sighandler_t name(int number, sighandler_t handler)                                                        \
    {                                                                                                                   \
        return (sighandler_t)(uintptr_t)adopt(number, (void *)(uintptr_t)REAL(name)(number, handler));                  \
    }

ADOPTING(signal)
ADOPTING(sigset)
ADOPTING(__sysv_signal)

SHIM_API sighandler_t bsd_signal(int number, sighandler_t handler) __attribute__((alias("signal"), nothrow, leaf));
SHIM_API sighandler_t ssignal(int number, sighandler_t handler) __attribute__((alias("signal"), nothrow, leaf));
SHIM_API sighandler_t sysv_signal(int number, sighandler_t handler) __attribute__((alias("__sysv_signal"), nothrow, leaf));
SHIM_API int __sigaction(int number, const struct sigaction *action, struct sigaction *old) __attribute__((alias("sigaction"), nothrow, leaf));

/* ---------------------------------------------------------------- jumps */

/* Where a jump goes: the C library keeps the stack pointer, disguised. The disguise is looked at once, on a buffer of our own;
 * where it is not the known one no jump is followed. */
int _setjmp(void *buffer) __attribute__((returns_twice));

#if defined(__x86_64__)
#define SP_AT 6
static uintptr_t stack_pointer(void) { uintptr_t sp; __asm__ volatile("mov %%rsp, %0" : "=r"(sp)); return sp; }
static uintptr_t plain(uintptr_t kept) { return kept >> 17 | kept << 47; }
#elif defined(__aarch64__)
#define SP_AT 13
static uintptr_t stack_pointer(void) { uintptr_t sp; __asm__ volatile("mov %0, sp" : "=r"(sp)); return sp; }
static uintptr_t plain(uintptr_t kept) { return kept; }
#endif

static uintptr_t disguise;

static __attribute__((noinline)) uintptr_t try_jump(void)
{
    uintptr_t buffer[64] = {0};
    if (_setjmp(buffer) != 0) return 0;
    uintptr_t near = stack_pointer();
    return plain(buffer[SP_AT]) ^ near;
}

__attribute__((constructor(103))) static void signals_begin(void)
{
    uintptr_t once = try_jump();
    volatile char deeper[512];
    deeper[0] = 0;
    (void)deeper;
    if (once == try_jump()) disguise = once;
}

static bool in_range(uintptr_t at, const stack_t *range)
{
    return at >= (uintptr_t)range->ss_sp && at < (uintptr_t)range->ss_sp + range->ss_size;
}

/* Whether a jump to `to` leaves this frame. The alternate stack lies below all others. */
static bool leaves(const void *frame, uintptr_t to, const stack_t *alternate)
{
    bool on = (alternate->ss_flags & SS_ONSTACK) && in_range((uintptr_t)frame, alternate);
    if ((alternate->ss_flags & SS_ONSTACK) && in_range(to, alternate)) return on && (uintptr_t)frame < to;
    return on || (uintptr_t)frame < to;
}

static __attribute__((noinline)) void jump_from_handler(const void *buffer)
{
    uintptr_t to = plain(((const uintptr_t *)buffer)[SP_AT]) ^ disguise;
    stack_t alternate = {.ss_flags = SS_DISABLE};
    if (disguise == 0 || shim_depth > 0) return;
    syscall(SYS_sigaltstack, NULL, &alternate);
    while (shim_opened_count > 0 && leaves(shim_opened[shim_opened_count - 1].of, to, &alternate)) {
        struct shim_open last = shim_opened[--shim_opened_count];
        last.end(last.of);
    }
    while (shim_level > SHIM_LEVELS || (shim_level > 0 && leaves(frames[shim_level - 1], to, &alternate))) shim_level--;
}

#define JUMP(name)                                                                                                      \
    SHIM_API void name(struct __jmp_buf_tag *buffer, int value)                                                         \
    {                                                                                                                   \
        if (UNLIKELY(shim_level > 0)) jump_from_handler(buffer);                                                        \
        REAL(name)(buffer, value);                                                                                      \
        __builtin_unreachable();                                                                                        \
    }

JUMP(siglongjmp)
JUMP(longjmp)
JUMP(_longjmp)
JUMP(__longjmp_chk)
