/* go_runtime.c: whether the process has a Go runtime.
 *
 * What it is:   Go makes its system calls itself, also in a program that is linked to libc (cgo). There both may use one socket in turn, and the
 *               bytes that Go moves pass this object by. So every connection of such a process stays on TCP, with its own reason.
 * What it isn't: a search for other languages. Bytes that a program moves by system calls of its own are noticed by their counts
 *               (docs/sockets-internals.md).
 *
 * Every object that Go's linker makes has a note with its build identifier. Objects are looked at once, at the first connection that is worth
 * an upgrade. Not for signal handlers. Fork safety: no state but the answer. errno: may change. */
#include "sockets.h"

#include <elf.h>
#include <link.h>
#include <string.h>

#define GO_BUILD_ID 4 /* type of the note; its name is "Go" */

static size_t padded(size_t bytes) { return (bytes + 3) & ~(size_t)3; }

static bool has_go_note(const char *at, size_t left)
{
    while (left >= sizeof(ElfW(Nhdr))) {
        const ElfW(Nhdr) *note = (const ElfW(Nhdr) *)(const void *)at;
        size_t size = sizeof *note + padded(note->n_namesz) + padded(note->n_descsz);
        if (note->n_namesz > left || note->n_descsz > left || size > left) return false;
        if (note->n_type == GO_BUILD_ID && note->n_namesz == 4 && memcmp(note + 1, "Go\0", 4) == 0) return true;
        at += size;
        left -= size;
    }
    return false;
}

static int look(struct dl_phdr_info *object, size_t size, void *found)
{
    (void)size;
    for (int i = 0; i < object->dlpi_phnum && !*(bool *)found; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type == PT_NOTE) *(bool *)found = has_go_note((const char *)object->dlpi_addr + part->p_vaddr, part->p_memsz);
    }
    return *(bool *)found;
}

bool go_runtime_present(void)
{
    static _Atomic int known = -1;
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (LIKELY(answer >= 0)) return answer != 0;
    bool found = false;
    dl_iterate_phdr(look, &found);
    atomic_store_explicit(&known, found, memory_order_relaxed);
    return found;
}
