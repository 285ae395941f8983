/* room.c: memory for calls that need more of it than a stack may have.
 *
 * What it is:   pieces of SHIM_ROOM bytes, mapped when first needed and kept for the next call, whichever thread makes it; one may
 *               serve as a stack, for what the loader and the engine do when they begin something. A page that cannot be
 *               touched lies below each.
 * What it isn't: an allocator. A call takes one piece and gives it back.
 *
 * Signal safety: lock-free; a handler that interrupts a call gets a piece of its own. One that leaves a call by siglongjmp()
 * leaves its piece behind. Fork safety: a child has what its parent's other threads had taken, and cannot use it. */
#include "shim.h"

#include <sys/mman.h>
#include <sys/syscall.h>

#define GUARD 4096

static _Atomic(void *) spare[4];

/* NULL: there is no memory. */
void *room_take(void)
{
    for (size_t i = 0; i < sizeof spare / sizeof *spare; i++) {
        void *room = atomic_load_explicit(&spare[i], memory_order_relaxed) ? atomic_exchange(&spare[i], NULL) : NULL;
        if (room) return room;
    }
    int kept = errno;
    long at = syscall(SYS_mmap, NULL, (size_t)(GUARD + SHIM_ROOM), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
    if (at != -1 && syscall(SYS_mprotect, at + GUARD, (size_t)SHIM_ROOM, PROT_READ | PROT_WRITE) != 0) {
        syscall(SYS_munmap, at, (size_t)(GUARD + SHIM_ROOM));
        at = -1;
    }
    errno = kept;
    return at == -1 ? NULL : (char *)at + GUARD;
}

void room_give_back(void *room)
{
    int kept = errno;
    for (size_t i = 0; i < sizeof spare / sizeof *spare; i++) {
        void *none = NULL;
        if (atomic_compare_exchange_strong(&spare[i], &none, room)) return;
    }
    syscall(SYS_munmap, (char *)room - GUARD, (size_t)(GUARD + SHIM_ROOM));
    errno = kept;
}

/* ---------------------------------------------------------------- as a stack */

/* Calls work(with) with the stack pointer at `top`. The frame that it leaves behind can be unwound. */
void room_call_on(void (*work)(void *), void *with, void *top) __attribute__((visibility("hidden")));

#if defined(__x86_64__)
__asm__(".text\n"
        ".hidden room_call_on\n"
        ".globl room_call_on\n"
        ".type room_call_on, @function\n"
        "room_call_on:\n"
        ".cfi_startproc\n"
        "    endbr64\n"
        "    push %rbp\n"
        ".cfi_def_cfa_offset 16\n"
        ".cfi_offset %rbp, -16\n"
        "    mov %rsp, %rbp\n"
        ".cfi_def_cfa_register %rbp\n"
        "    mov %rdx, %rsp\n"
        "    mov %rdi, %rax\n"
        "    mov %rsi, %rdi\n"
        "    call *%rax\n"
        "    mov %rbp, %rsp\n"
        "    pop %rbp\n"
        ".cfi_def_cfa %rsp, 8\n"
        "    ret\n"
        ".cfi_endproc\n"
        ".size room_call_on, . - room_call_on\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".hidden room_call_on\n"
        ".globl room_call_on\n"
        ".type room_call_on, %function\n"
        "room_call_on:\n"
        ".cfi_startproc\n"
        "    stp x29, x30, [sp, #-16]!\n"
        ".cfi_def_cfa_offset 16\n"
        ".cfi_offset x29, -16\n"
        ".cfi_offset x30, -8\n"
        "    mov x29, sp\n"
        ".cfi_def_cfa_register x29\n"
        "    mov sp, x2\n"
        "    mov x8, x0\n"
        "    mov x0, x1\n"
        "    blr x8\n"
        "    mov sp, x29\n"
        "    ldp x29, x30, [sp], #16\n"
        ".cfi_def_cfa sp, 0\n"
        "    ret\n"
        ".cfi_endproc\n"
        ".size room_call_on, . - room_call_on\n");
#endif

void room_call(void (*work)(void *), void *with)
{
    char *room = room_take();
    if (!room) {
        work(with);
        return;
    }
    room_call_on(work, with, room + SHIM_ROOM);
    room_give_back(room);
}
