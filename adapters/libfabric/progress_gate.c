/* progress_gate.c: how Motet's progress thread enters a domain.
 *
 * The program is inside nearly always, so it pays a store and a load of a flag. The progress thread enters rarely and pays for both sides: it
 * sets its flag, reaches every CPU with a barrier (membarrier), and checks whether the program is inside; if so it leaves. A program that
 * enters later sees the flag and waits. This is no lock between threads of the program: those use the domain's `lock`, or the program has
 * promised to make one call at a time. */
#include "fabric.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>

/* Motet has said of the process that it uses this kind (for its own locks). */
static bool barrier(void) { return syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0; }

void gate_wait(struct domain *domain)
{
    static const struct timespec nap = { 0, 20000 };
    while (atomic_load_explicit(&domain->progress_thread_in, memory_order_acquire) && getpid() == domain->process) /* a forked child has no progress thread */
        nanosleep(&nap, NULL);
}

bool gate_enter(struct domain *domain)
{
    bool absent = false;
    if (domain->locked) return pthread_mutex_trylock(&domain->lock) == 0;
    if (!atomic_compare_exchange_strong(&domain->progress_thread_in, &absent, true)) return false; /* a wait of its own has brought it here again */
    if (barrier() && !atomic_load_explicit(&domain->inside, memory_order_acquire)) return true; /* edge guest <-> inside */
    atomic_store_explicit(&domain->progress_thread_in, false, memory_order_release);
    return false;
}

void gate_leave(struct domain *domain)
{
    if (domain->locked) pthread_mutex_unlock(&domain->lock);
    else atomic_store_explicit(&domain->progress_thread_in, false, memory_order_release);
}

/* Runs in the next thread that makes progress: the progress thread if the program makes none. While the program is inside this does nothing, and
 * the program's leave() defers it again. */
static void read_pending_hellos(motet_node node, void *user)
{
    struct domain *domain = user;
    atomic_store(&domain->put_off, false);
    while (atomic_load(&domain->pending_hellos) && gate_enter(domain)) {
        hellos_read(domain);
        gate_leave(domain);
    }
}

void gate_request_hellos(struct domain *domain)
{
    if (!atomic_exchange(&domain->put_off, true) && motet_node_defer(domain->node, read_pending_hellos, domain) != 0)
        atomic_store(&domain->put_off, false);
}
