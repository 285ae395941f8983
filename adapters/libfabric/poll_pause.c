/* poll_pause.c: when an empty read of a completion queue yields the CPU.
 *
 * MPI libraries wait by polling, and not all of their loops yield: Open MPI's blocking sends over libfabric do not, nor does MPICH. Where a host
 * has more ranks than CPUs, such a loop keeps the CPU from the rank that it waits for, for milliseconds. There a read yields after a few empty
 * reads in a row. The ranks of a host are known by the addresses that the program inserts.
 *
 * A read does not sleep unless the user asks for it: others may wait for a rank that polls by means that ring no doorbell here (Open MPI's
 * windows over its own shared memory are served by their owner's polls). With FI_MOTET_WAIT=sleep a read sleeps for a short time on the node's
 * descriptor. A program that reads queues of several domains in turn does not sleep, because a sleep in one domain misses the others.
 * Blocking calls of libfabric (fi_cq_sread, fi_trywait) are not affected.
 *
 * FI_MOTET_WAIT: auto (yield where there are more ranks than CPUs, the default), poll (never yield), sleep (sleep everywhere). */
#include "fabric.h"

#include <poll.h>
#include <sched.h>
#include <time.h>

/* Reads in a row that find nothing before each yield: about a microsecond. Libraries that yield themselves do so at each. */
#define VAIN_BEFORE_TURN 10
/* And before each sleep: Open MPI reads once more after each event, and would sleep there. */
#define VAIN_BEFORE_SLEEP 8
/* How long what rings no bell may wait for a rank that sleeps. */
#define SLEEP_MS 1
/* From read to read a program that waits takes 1 to 4 us of CPU, yields included (Open MPI 4, MPICH 5), and longer once in 100 reads or less;
 * one that takes longer more often than once in so many has something else to do. */
#define ELSEWHERE_NS 8000
#define OUTWEIGHS 32

static int64_t cpu_time(void)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (int64_t)used.tv_sec * 1000000000 + used.tv_nsec;
}

enum wait_mode wait_mode_wanted(void)
{
    const char *said = getenv("FI_MOTET_WAIT");
    if (!said || !*said || strcmp(said, "auto") == 0) return WAIT_AUTO;
    if (strcmp(said, "poll") == 0) return WAIT_POLL;
    return strcmp(said, "sleep") == 0 ? WAIT_SLEEP : WAIT_INVALID;
}

static bool is_here(const struct domain *domain, const struct address *address)
{
    return address->family == 0 ||
           (address->family == domain->address.family && memcmp(address->ip, domain->address.ip, sizeof address->ip) == 0);
}

/* The program has inserted an address (more: 1) or removed it (-1). Where there is no memory it is not counted. The lock is held. */
void pause_count_peers(struct domain *domain, const struct address *address, int more)
{
    if (is_here(domain, address)) {
        intptr_t kept = (intptr_t)hash_map_find(&domain->local_peers_seen, address->node); /* one more than it was inserted; 0: never */
        intptr_t before = kept ? kept - 1 : 0, after = before + more;
        if (after >= 0 && hash_map_put(&domain->local_peers_seen, address->node, (void *)(after + 1)) == 0)
            domain->local_peers += (after > 0) - (before > 0);
    }
    if (domain->cpus == 0) domain->cpus = sysconf(_SC_NPROCESSORS_ONLN); /* not those of this rank, which may be bound; -1: not known */
    bool crowded = domain->cpus > 0 && domain->local_peers > domain->cpus;
    domain->pauses = domain->wait == WAIT_SLEEP || (domain->wait == WAIT_AUTO && crowded);
}

/* The domain whose queue this thread last read and found empty. Compared only, never dereferenced. */
static _Thread_local const struct domain *last_empty_domain;

/* Whether the program computes between its reads, as one does that waits for nothing and lets its library get on now and then. */
static bool is_elsewhere(struct cq *queue)
{
    int64_t before = queue->used;
    queue->used = cpu_time();
    if (before == 0) return false; /* it has just slept, and finds its caches cold */
    if (queue->used - before <= ELSEWHERE_NS) {
        queue->compute_score -= queue->compute_score > 0;
        return false;
    }
    queue->compute_score += OUTWEIGHS;
    if (queue->compute_score <= 2 * OUTWEIGHS) return false;
    queue->compute_score = OUTWEIGHS;
    return true;
}

static bool sleep_is_due(struct cq *queue)
{
    if (last_empty_domain != queue->domain) {
        last_empty_domain = queue->domain;
        queue->empty_reads = 0;
    }
    /* What has been begun may end in a counter, which no read of a queue finds. */
    if (queue->ops_started != queue->domain->ops_started || is_elsewhere(queue)) pause_reset(queue);
    queue->ops_started = queue->domain->ops_started;
    if (++queue->empty_reads < VAIN_BEFORE_SLEEP) return false;
    queue->empty_reads = 0; /* as soon as something is read, too */
    return domain_may_sleep(queue->domain);
}

/* A read found nothing, where such reads are counted. The lock is held. */
enum poll_pause pause_due(struct cq *queue)
{
    if (unlikely(queue->domain->wait == WAIT_SLEEP)) return sleep_is_due(queue) ? PAUSE_SLEEP : PAUSE_NONE;
    if (likely(++queue->empty_reads < VAIN_BEFORE_TURN)) return PAUSE_NONE;
    queue->empty_reads = 0;
    return PAUSE_YIELD;
}

/* Without the lock. Whoever has nothing to read afterwards tells the program so. */
void pause_poll(struct cq *queue, enum poll_pause how)
{
    if (likely(how == PAUSE_YIELD)) {
        sched_yield();
        return;
    }
    struct pollfd descriptor = { motet_node_descriptor(queue->domain->node), POLLIN, 0 };
    poll(&descriptor, 1, SLEEP_MS);
    queue->used = 0;
}
