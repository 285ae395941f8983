/* hand_on.c: connections whose descriptors something outside of this object may read or write.
 *
 * What it is:   the one rule for whatever passes a descriptor on: exec, posix_spawn, system, popen, wordexp, SCM_RIGHTS, a copy made in a
 *               child of vfork, a copy onto descriptors 0 to 2 (which stdio reads and writes unseen). The connection stays on TCP
 *               from then on, in this process and in the other one, and what was unread in rings goes back to TCP
 *               (motet_hand_on). The next program image knows nothing of its past and needs to know nothing.
 * What it isn't: a hand-over of the fast path. A forked child keeps that: it runs the same image (family.c, the engine).
 *
 * A child of vfork, or of clone with CLONE_VM, runs this code in its parent's memory with a table of descriptors of its own. So a
 * number is only believed where the kernel says that it is the stream's socket (motet_hand_on asks).
 *
 * Signal safety: exec may be called in a handler; one that interrupted the engine (shim_depth > 0) hands nothing on. No allocation.
 * Fork safety: usable in a vfork child, whose parent's thread does not run meanwhile. */
#include "shim.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/single_threaded.h>
#include <sys/syscall.h>
#include <wordexp.h>

static bool may_be_handed_on(uint64_t word)
{
    enum kind kind = word_kind(word);
    return (kind == KIND_FRESH || (kind >= KIND_CANDIDATE && kind <= KIND_STREAM)) && !(word & WORD_HANDED_ON);
}

void hand_on(int fd, enum shim_reason reason)
{
    uint64_t word = table_word(fd);
    if (!may_be_handed_on(word) || shim_depth > 0) return;
    int kept = errno;
    while (word_kind(word) == KIND_UPGRADING) word = candidate_touch(fd, SENDING);
    if (word_kind(word) == KIND_STREAM) {
        int done = ENGINE(engine.hand_on(table_handle(fd), fd, reason));
        if (done >= 0) table_note(fd, WORD_ELSEWHERE | (done > 0 ? WORD_HANDED_ON : 0));
    } else {
        table_make_plain(fd, reason);
    }
    errno = kept;
}

static bool stays_open(int fd)
{
    int flags = REAL(fcntl)(fd, F_GETFD);
    return flags >= 0 && !(flags & FD_CLOEXEC);
}

static void hand_on_open(bool (*also)(int))
{
    if (shim_depth > 0 || engine_confined()) return; /* a confined process has no stream, and may not ask */
    int kept = errno;
    for (int fd = 0; fd <= atomic_load(&shim_top); fd++)
        if (may_be_handed_on(table_word(fd)) && (stays_open(fd) || (also && also(fd)))) hand_on(fd, REASON_EXEC);
    errno = kept;
}

/* ---------------------------------------------------------------- exec */

void hand_on_before_exec(void)
{
    if (shim_depth > 0 || engine_confined()) return;
    int kept = errno;
    if (table_in_own_process()) family_before_exec();
    hand_on_open(NULL);
    if (engine_is_open()) ENGINE_DO(engine.before_exec());
    errno = kept;
}

void hand_on_exec_failed(void)
{
    if (shim_depth == 0 && !engine_confined() && table_in_own_process()) family_exec_failed();
}

/* ---------------------------------------------------------------- spawn */

/* Numbers that file actions were ever told to copy: such a descriptor reaches a child although it closes on exec. */
static _Atomic uint64_t copied_by_actions[SHIM_SLOTS / 64];

static bool is_copied(int fd) { return atomic_load(&copied_by_actions[fd / 64]) >> (fd % 64) & 1; }

SHIM_API int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t *actions, int from, int to)
{
    if ((unsigned)from < SHIM_SLOTS) atomic_fetch_or(&copied_by_actions[from / 64], 1ull << (from % 64));
    return REAL(posix_spawn_file_actions_adddup2)(actions, from, to);
}

void hand_on_before_spawn(bool with_actions) { hand_on_open(with_actions ? is_copied : NULL); }

/* Other threads may have made connections between the look and the child's birth. */
void hand_on_after_spawn(bool with_actions)
{
    if (UNLIKELY(!__libc_single_threaded)) hand_on_open(with_actions ? is_copied : NULL);
}

/* The C library's own spawns, which do not come by way of posix_spawn() here. */
#define SPAWNING(type, call)                                                                                            \
    hand_on_before_spawn(false);                                                                                        \
    type result = call;                                                                                                 \
    hand_on_after_spawn(false);                                                                                         \
    return result

SHIM_API int system(const char *command) { SPAWNING(int, REAL(system)(command)); }

SHIM_API FILE *popen(const char *command, const char *mode) { SPAWNING(FILE *, REAL(popen)(command, mode)); }

SHIM_API int wordexp(const char *words, wordexp_t *into, int flags) { SPAWNING(int, REAL(wordexp)(words, into, flags)); }
