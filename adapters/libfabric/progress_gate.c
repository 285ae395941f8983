/* progress_gate.c: how Motet's progress thread enters a domain.
 *
 * The program is inside nearly always, so it pays a store and a load of a flag. The progress thread enters rarely and pays for both sides: it
 * sets its flag, reaches every CPU with a barrier (membarrier), and checks whether the program is inside; if so it leaves. A program that
 * enters later sees the flag and waits. This is no lock between threads of the program: those use the domain's `lock`, or the program has
 * promised to make one call at a time. The engine has the same pair of fences (motet-sys, asymmetric_fence.rs), but the program's side must be
 * inlined here, and a function of the library for the other side would be longer than its one system call. */
#include "fabric.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>

/* A barrier on every CPU that runs a thread of this process. Motet has registered the process for this kind, for its own locks. */
static bool membarrier_all(void) { return syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0; }

void gate_wait(struct domain *domain)
{
    static const struct timespec poll_interval = { 0, 20000 };
    while (atomic_load_explicit(&domain->progress_thread_in, memory_order_acquire) && getpid() == domain->pid) /* a forked child has no progress thread */
        nanosleep(&poll_interval, NULL);
}

bool gate_enter(struct domain *domain)
{
    bool expected = false;
    if (domain->uses_mutex) return pthread_mutex_trylock(&domain->lock) == 0;
    if (!atomic_compare_exchange_strong(&domain->progress_thread_in, &expected, true)) return false; /* already inside: a call made there makes progress, too */
    if (membarrier_all() && !atomic_load_explicit(&domain->program_inside, memory_order_acquire)) return true; /* edge program_inside <-> progress_thread_in */
    atomic_store_explicit(&domain->progress_thread_in, false, memory_order_release);
    return false;
}

void gate_leave(struct domain *domain)
{
    if (domain->uses_mutex) pthread_mutex_unlock(&domain->lock);
    else atomic_store_explicit(&domain->progress_thread_in, false, memory_order_release);
}

/* Runs in the next thread that makes progress: the progress thread if the program makes none. While the program is inside this does nothing, and
 * the program's domain_unlock() defers it again. */
static void handle_hellos_task(motet_node node, void *user)
{
    struct domain *domain = user;
    atomic_store(&domain->hello_task_deferred, false);
    while (atomic_load(&domain->pending_hellos) && gate_enter(domain)) {
        hellos_read(domain);
        gate_leave(domain);
    }
}

void gate_request_hellos(struct domain *domain)
{
    if (!atomic_exchange(&domain->hello_task_deferred, true) && motet_node_defer(domain->node, handle_hellos_task, domain) != 0)
        atomic_store(&domain->hello_task_deferred, false);
}
