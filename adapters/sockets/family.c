/* family.c: what forked processes know of the connections that they share, before the engine does.
 *
 * What it is:   one page of memory that a family of processes has in common. For each connection that was young (a candidate) at
 *               a fork it counts the processes that have it: while there are several it stays on TCP, as each would upgrade it
 *               for itself. And it counts changes of O_NONBLOCK, which belongs to the socket and not to the descriptor.
 * What it isn't: exact about the dead. A killed process counts for ever, and what it shared stays on TCP; so does what does
 *               not fit. Streams are the engine's to count.
 *
 * A candidate's place in the page stands where a stream has its handle. All but the counting itself happens under the table's
 * lock, which every fork holds, so who finds itself alone stays so. Signal and fork safety: table.c. */
#include "shim.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define PLACES 1023
#define NOWHERE UINT64_MAX /* a connection that got no place */

struct page {
    _Atomic uint32_t changes;
    _Atomic uint32_t holders[PLACES]; /* 0: free */
};

static struct page *page;
static int page_file = -1;
static _Atomic uint32_t own_changes, seen_changes;

static _Atomic uint32_t *changes(void) { return page ? &page->changes : &own_changes; }

/* ---------------------------------------------------------------- young connections */

/* Of several duplicates one stands for all. */
static bool is_first(int fd, uint64_t word)
{
    for (int other = 0; word_extra(word) != 0 && other < fd; other++)
        if (word_kind(table_word(other)) == KIND_CANDIDATE && word_extra(table_word(other)) == word_extra(word)) return false;
    return true;
}

static void map_page(int file)
{
    void *memory = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory != MAP_FAILED) page = memory;
    page_file = page ? shim_private_number(file) : -1;
}

static void make_page(void)
{
    struct rlimit most; /* a file that is larger than it may be is a signal */
    bool fits = getrlimit(RLIMIT_FSIZE, &most) != 0 || most.rlim_cur >= sizeof *page;
    long file = page || !fits ? -1 : syscall(SYS_memfd_create, "motet-family", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0) {
        void *memory = page ? MAP_FAILED : mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return;
        page = memory; /* forked relatives have it, the next program image does not */
        atomic_store(&page->changes, atomic_load(&own_changes));
        return;
    }
    if (ftruncate((int)file, sizeof *page) == 0 && REAL(fcntl)((int)file, F_ADD_SEALS, F_SEAL_SHRINK) == 0) map_page((int)file);
    if (page) atomic_store(&page->changes, atomic_load(&own_changes));
    else syscall(SYS_close, (int)file);
}

static uint64_t new_place(void)
{
    for (uint32_t i = 0; page && i < PLACES; i++) {
        uint32_t none = 0;
        if (atomic_compare_exchange_strong(&page->holders[i], &none, 1)) return i + 1;
    }
    return NOWHERE;
}

static uint64_t place_of(int fd, uint64_t word)
{
    uint64_t place = table_handle(fd);
    if (place != 0) return place;
    place = new_place();
    for (int other = fd; other <= atomic_load(&shim_top); other++)
        if (other == fd || (word_extra(word) != 0 && word_kind(table_word(other)) == KIND_CANDIDATE &&
                            word_extra(table_word(other)) == word_extra(word)))
            atomic_store(&shim_handles[other], place);
    return place;
}

static _Atomic uint32_t *holders(uint64_t place) { return page && place - 1 < PLACES ? &page->holders[place - 1] : NULL; }

void family_before_fork(void)
{
    for (int fd = 0; fd <= atomic_load(&shim_top); fd++) {
        uint64_t word = table_word(fd);
        if (word_kind(word) < KIND_CANDIDATE) continue; /* nor is O_NONBLOCK of others kept */
        make_page();
        if (word_kind(word) != KIND_CANDIDATE || !is_first(fd, word)) continue;
        _Atomic uint32_t *count = holders(place_of(fd, word));
        if (count) atomic_fetch_add(count, 1);
    }
}

bool family_has_alone(int fd, uint64_t word)
{
    if (LIKELY(!(word & WORD_ELSEWHERE))) return true;
    _Atomic uint32_t *count = holders(table_handle(fd));
    return count && atomic_load(count) == 1;
}

void family_close(uint64_t place)
{
    _Atomic uint32_t *count = holders(place);
    if (count) atomic_fetch_sub(count, 1);
}

static void count_all(bool closing_only, int by)
{
    if (!page) return;
    table_lock();
    for (int fd = 0; fd <= atomic_load(&shim_top); fd++) {
        uint64_t word = table_word(fd);
        if (word_kind(word) != KIND_CANDIDATE || !is_first(fd, word)) continue;
        if (closing_only && !(REAL(fcntl)(fd, F_GETFD) & FD_CLOEXEC)) continue;
        _Atomic uint32_t *count = holders(table_handle(fd));
        if (count) atomic_fetch_add(count, (uint32_t)by);
    }
    table_unlock();
}

void family_exit(void) { count_all(false, -1); }

void family_before_exec(void) { count_all(true, -1); }

void family_exec_failed(void) { count_all(true, 1); }

/* ---------------------------------------------------------------- O_NONBLOCK */

void family_flags_changed(void) { atomic_fetch_add(changes(), 1); }

/* What is known of O_NONBLOCK holds: nobody has changed it since. Otherwise all of it is forgotten. */
bool family_flags_hold(void)
{
    uint32_t now = atomic_load_explicit(changes(), memory_order_acquire);
    if (LIKELY(now == atomic_load_explicit(&seen_changes, memory_order_relaxed))) return true;
    for (int fd = 0; fd <= atomic_load(&shim_top); fd++) {
        uint64_t word = table_word(fd);
        while (word_kind(word) >= KIND_CANDIDATE && (word & WORD_SHARED) && (word & WORD_NONBLOCK_KNOWN))
            if (atomic_compare_exchange_weak(&shim_words[fd], &word, word & ~WORD_NONBLOCK_KNOWN)) break;
    }
    atomic_store(&seen_changes, now);
    return false;
}
