/* fork_shared.c: what the processes of a fork group share about connections that are not streams yet.
 *
 * What it is:   one page of shared memory for a fork group. For each connection that was a candidate at a fork it counts the processes that
 *               have it: while there are several, the connection stays on TCP, because each process would upgrade it independently. The page
 *               also counts changes of O_NONBLOCK, which belongs to the socket and not to the descriptor.
 * What it isn't: exact about killed processes. A killed process stays counted, and its candidates stay on TCP. So do candidates for which
 *               the page has no place. Processes that have a stream are counted by the engine.
 *
 * A candidate's place in the page is stored where a stream has its handle (fd_handles). All but the counting itself happens under the table
 * lock, which every fork holds: a process that finds itself the sole owner stays the sole owner.
 * Signal safety: functions that take the table lock defer signal handlers; the others are lock-free. Fork safety: fd_table.c. errno:
 * functions may change it. */
#include "sockets.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define PLACES 1023
#define NO_PLACE UINT64_MAX /* a connection for which the page has no place */

struct shared_page {
    _Atomic uint32_t changes;
    _Atomic uint32_t holders_of[PLACES]; /* processes that have the candidate; 0: the place is free */
};

static struct shared_page *shared_page;
static int page_file = -1;
static _Atomic uint32_t own_changes, seen_changes;

static _Atomic uint32_t *changes(void) { return shared_page ? &shared_page->changes : &own_changes; }

/* ---------------------------------------------------------------- candidates */

/* One of several duplicates represents them all. */
static bool is_first(int fd, uint64_t word)
{
    for (int other = 0; word_extra(word) != 0 && other < fd; other++)
        if (word_kind(table_word(other)) == KIND_CANDIDATE && word_extra(table_word(other)) == word_extra(word)) return false;
    return true;
}

static void map_page(int file)
{
    void *memory = mmap(NULL, sizeof *shared_page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory != MAP_FAILED) shared_page = memory;
    page_file = shared_page ? fd_move_private(file) : -1;
}

static void make_page(void)
{
    struct rlimit limit; /* growing a file beyond RLIMIT_FSIZE raises a signal */
    bool fits = getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur >= sizeof *shared_page;
    long file = shared_page || !fits ? -1 : syscall(SYS_memfd_create, "motet-fork-group", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0) {
        void *memory = shared_page ? MAP_FAILED : mmap(NULL, sizeof *shared_page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return;
        shared_page = memory; /* forked processes inherit it, the next program image does not */
        atomic_store(&shared_page->changes, atomic_load(&own_changes));
        return;
    }
    if (ftruncate((int)file, sizeof *shared_page) == 0 && REAL(fcntl)((int)file, F_ADD_SEALS, F_SEAL_SHRINK) == 0) map_page((int)file);
    if (shared_page) atomic_store(&shared_page->changes, atomic_load(&own_changes));
    else syscall(SYS_close, (int)file);
}

static uint64_t new_place(void)
{
    for (uint32_t i = 0; shared_page && i < PLACES; i++) {
        uint32_t none = 0;
        if (atomic_compare_exchange_strong(&shared_page->holders_of[i], &none, 1)) return i + 1;
    }
    return NO_PLACE;
}

static uint64_t place_of(int fd, uint64_t word)
{
    uint64_t place = table_handle(fd);
    if (place != 0) return place;
    place = new_place();
    for (int other = fd; other <= atomic_load(&fd_top); other++)
        if (other == fd || (word_extra(word) != 0 && word_kind(table_word(other)) == KIND_CANDIDATE &&
                            word_extra(table_word(other)) == word_extra(word)))
            atomic_store(&fd_handles[other], place);
    return place;
}

static _Atomic uint32_t *holders_of(uint64_t place) { return shared_page && place - 1 < PLACES ? &shared_page->holders_of[place - 1] : NULL; }

void fork_shared_before_fork(void)
{
    for (int fd = 0; fd <= atomic_load(&fd_top); fd++) {
        uint64_t word = table_word(fd);
        if (word_kind(word) < KIND_CANDIDATE) continue; /* O_NONBLOCK of other kinds is not tracked either */
        make_page();
        if (word_kind(word) != KIND_CANDIDATE || !is_first(fd, word)) continue;
        _Atomic uint32_t *count = holders_of(place_of(fd, word));
        if (count) atomic_fetch_add(count, 1);
    }
}

bool fork_shared_is_sole_owner(int fd, uint64_t word)
{
    if (LIKELY(!(word & WORD_OTHER_PROCESS))) return true;
    _Atomic uint32_t *count = holders_of(table_handle(fd));
    return count && atomic_load(count) == 1;
}

void fork_shared_release(uint64_t place)
{
    _Atomic uint32_t *count = holders_of(place);
    if (count) atomic_fetch_sub(count, 1);
}

static void add_to_holders(bool closing_only, int by)
{
    if (!shared_page) return;
    table_lock();
    for (int fd = 0; fd <= atomic_load(&fd_top); fd++) {
        uint64_t word = table_word(fd);
        if (word_kind(word) != KIND_CANDIDATE || !is_first(fd, word)) continue;
        if (closing_only && !(REAL(fcntl)(fd, F_GETFD) & FD_CLOEXEC)) continue;
        _Atomic uint32_t *count = holders_of(table_handle(fd));
        if (count) atomic_fetch_add(count, (uint32_t)by);
    }
    table_unlock();
}

void fork_shared_exit(void) { add_to_holders(false, -1); }

void fork_shared_before_exec(void) { add_to_holders(true, -1); }

void fork_shared_exec_failed(void) { add_to_holders(true, 1); }

/* ---------------------------------------------------------------- O_NONBLOCK */

void fork_shared_nonblock_changed(void) { atomic_fetch_add(changes(), 1); }

/* True when O_NONBLOCK has not changed since it was recorded. Otherwise what was recorded of shared descriptors is dropped. */
bool fork_shared_nonblock_is_current(void)
{
    uint32_t now = atomic_load_explicit(changes(), memory_order_acquire);
    if (LIKELY(now == atomic_load_explicit(&seen_changes, memory_order_relaxed))) return true;
    for (int fd = 0; fd <= atomic_load(&fd_top); fd++) {
        uint64_t word = table_word(fd);
        while (word_kind(word) >= KIND_CANDIDATE && (word & WORD_SHARED) && (word & WORD_NONBLOCK_KNOWN))
            if (atomic_compare_exchange_weak(&fd_words[fd], &word, word & ~WORD_NONBLOCK_KNOWN)) break;
    }
    atomic_store(&seen_changes, now);
    return false;
}
