/* progress_gate.c: how Motet's stand-in gets into a domain.
 *
 * What it is:   the program is inside nearly always, so it pays a store and a look at a flag. The stand-in, which comes once in a while, pays for both:
 *               it says that it is there, reaches every CPU with a barrier (membarrier), and looks whether the program is inside. It goes
 *               away then; who comes later sees the flag and waits.
 * What it isn't: a lock between threads of the program: that is the domain's `lock`, or the program's own promise. */
#include "fabric.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>

/* Motet has said of the process that it uses this kind (for its own locks). */
static bool barrier(void) { return syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0; }

void gate_wait(struct domain *domain)
{
    static const struct timespec nap = { 0, 20000 };
    while (atomic_load_explicit(&domain->progress_thread_in, memory_order_acquire) && getpid() == domain->process) /* a forked child has no stand-in */
        nanosleep(&nap, NULL);
}

bool gate_enter(struct domain *domain)
{
    bool nobody = false;
    if (domain->locked) return pthread_mutex_trylock(&domain->lock) == 0;
    if (!atomic_compare_exchange_strong(&domain->progress_thread_in, &nobody, true)) return false; /* a wait of its own has brought it here again */
    if (barrier() && !atomic_load_explicit(&domain->inside, memory_order_acquire)) return true; /* edge guest <-> inside */
    atomic_store_explicit(&domain->progress_thread_in, false, memory_order_release);
    return false;
}

void gate_leave(struct domain *domain)
{
    if (domain->locked) pthread_mutex_unlock(&domain->lock);
    else atomic_store_explicit(&domain->progress_thread_in, false, memory_order_release);
}

/* By whoever makes progress next: the stand-in, if the program makes none. While the program is inside that does nothing, and the
 * program's leave() puts it off again. */
static void read_mail(motet_node node, void *user)
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
    if (!atomic_exchange(&domain->put_off, true) && motet_node_defer(domain->node, read_mail, domain) != 0)
        atomic_store(&domain->put_off, false);
}
