/* room.c: memory for calls that need more of it than a stack may have.
 *
 * What it is:   pieces of SHIM_ROOM bytes, mapped when first needed and kept for the next call, whichever thread makes it.
 * What it isn't: an allocator. A call takes one piece and gives it back.
 *
 * Signal safety: lock-free; a handler that interrupts a call gets a piece of its own. One that leaves a call by siglongjmp()
 * leaves its piece behind. Fork safety: a child has what its parent's other threads had taken, and cannot use it. */
#include "shim.h"

#include <sys/mman.h>
#include <sys/syscall.h>

static _Atomic(void *) spare[4];

/* NULL: there is no memory. */
void *room_take(void)
{
    for (size_t i = 0; i < sizeof spare / sizeof *spare; i++) {
        void *room = atomic_load_explicit(&spare[i], memory_order_relaxed) ? atomic_exchange(&spare[i], NULL) : NULL;
        if (room) return room;
    }
    int kept = errno;
    long at = syscall(SYS_mmap, NULL, (size_t)SHIM_ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
    errno = kept;
    return at == -1 ? NULL : (void *)at;
}

void room_give_back(void *room)
{
    int kept = errno;
    for (size_t i = 0; i < sizeof spare / sizeof *spare; i++) {
        void *none = NULL;
        if (atomic_compare_exchange_strong(&spare[i], &none, room)) return;
    }
    syscall(SYS_munmap, room, (size_t)SHIM_ROOM);
    errno = kept;
}
