/* receive_buffer.cc: memory into which large sequences are received.
 *
 * What it is:   the receive allocator of HP-CORBA (section 4.5) by other means. A stub allocates a new sequence for each call. libc maps and
 *               unmaps a large one, and its first use costs a page fault for every 4 KiB, which takes longer than the copy. Here huge pages
 *               are requested for memory that is about to be filled: one fault for 2 MiB.
 * What it isn't: an allocator. The program's memory stays where it was allocated. */
#include "receive_buffer.h"

#include <sys/mman.h>

namespace motet_omniorb {

static constexpr uintptr_t PAGE_BYTES = 4096;

std::atomic<bool> ReceiveBuffer::huge_pages{true};

void ReceiveBuffer::advise_huge_pages(uintptr_t begin, size_t size)
{
    if (begin == next_ || !huge_pages.load(std::memory_order_relaxed)) return; /* the rest of a block that is received in parts */
    const uintptr_t first = begin & ~(PAGE_BYTES - 1), end = (begin + size + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
    madvise((void *)first, end - first, MADV_HUGEPAGE);
}

} // namespace motet_omniorb
