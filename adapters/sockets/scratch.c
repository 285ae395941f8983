/* scratch.c: memory for calls that need more than a small stack offers.
 *
 * What it is:   pieces of SHIM_SCRATCH_BYTES bytes. A piece is mapped when first needed and kept for the next call of any thread. It may
 *               serve as a stack, for what the loader and the engine do at their start. Below each piece is a guard page.
 * What it isn't: an allocator. A call takes one piece and frees it.
 *
 * Signal safety: lock-free; a handler that interrupts a call gets another piece. A handler that leaves a call by siglongjmp() leaks the
 * piece. Fork safety: pieces that other threads of the parent held are lost to the child. errno: kept by scratch_alloc() and scratch_free(). */
#include "sockets.h"

#include <sys/mman.h>
#include <sys/syscall.h>

#define GUARD 4096

static _Atomic(void *) spare_pieces[4];

/* Returns NULL when there is no memory. */
void *scratch_alloc(void)
{
    for (size_t i = 0; i < sizeof spare_pieces / sizeof *spare_pieces; i++) {
        void *piece = atomic_load_explicit(&spare_pieces[i], memory_order_relaxed) ? atomic_exchange(&spare_pieces[i], NULL) : NULL;
        if (piece) return piece;
    }
    int kept = errno;
    long at = syscall(SYS_mmap, NULL, (size_t)(GUARD + SHIM_SCRATCH_BYTES), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
    if (at != -1 && syscall(SYS_mprotect, at + GUARD, (size_t)SHIM_SCRATCH_BYTES, PROT_READ | PROT_WRITE) != 0) {
        syscall(SYS_munmap, at, (size_t)(GUARD + SHIM_SCRATCH_BYTES));
        at = -1;
    }
    errno = kept;
    return at == -1 ? NULL : (char *)at + GUARD;
}

void scratch_free(void *piece)
{
    int kept = errno;
    for (size_t i = 0; i < sizeof spare_pieces / sizeof *spare_pieces; i++) {
        void *none = NULL;
        if (atomic_compare_exchange_strong(&spare_pieces[i], &none, piece)) return;
    }
    syscall(SYS_munmap, (char *)piece - GUARD, (size_t)(GUARD + SHIM_SCRATCH_BYTES));
    errno = kept;
}

/* ---------------------------------------------------------------- use as a stack */

/* Calls work(with) with the stack pointer at `top`. The frame can be unwound. */
void scratch_call_on(void (*work)(void *), void *with, void *top) __attribute__((visibility("hidden")));

#if defined(__x86_64__)
__asm__(".text\n"
        ".hidden scratch_call_on\n"
        ".globl scratch_call_on\n"
        ".type scratch_call_on, @function\n"
        "scratch_call_on:\n"
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
        ".size scratch_call_on, . - scratch_call_on\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".hidden scratch_call_on\n"
        ".globl scratch_call_on\n"
        ".type scratch_call_on, %function\n"
        "scratch_call_on:\n"
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
        ".size scratch_call_on, . - scratch_call_on\n");
#endif

void scratch_call(void (*work)(void *), void *with)
{
    char *piece = scratch_alloc();
    if (!piece) {
        work(with);
        return;
    }
    scratch_call_on(work, with, piece + SHIM_SCRATCH_BYTES);
    scratch_free(piece);
}
