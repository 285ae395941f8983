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

/* Empty reads in a row before each yield: about a microsecond. Libraries that yield themselves do so at each read. */
#define EMPTY_READS_BEFORE_YIELD 10
/* Empty reads in a row before each sleep. One is not enough: Open MPI reads once more after each event. */
#define EMPTY_READS_BEFORE_SLEEP 8
/* The longest sleep: peers that ring no doorbell wait this long for a rank that sleeps. */
#define SLEEP_MS 1
/* A program that waits takes 1 to 4 us of CPU from read to read, yields included (Open MPI 4, MPICH 5), and more at most once in 100 reads.
 * A program that takes more than COMPUTE_NS more often than once in COMPUTE_WEIGHT reads has other work to do. */
#define COMPUTE_NS 8000
#define COMPUTE_WEIGHT 32

static int64_t read_thread_cpu_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (int64_t)used.tv_sec * 1000000000 + used.tv_nsec;
}

enum wait_mode wait_mode_wanted(void)
{
    const char *value = getenv("FI_MOTET_WAIT");
    if (!value || !*value || strcmp(value, "auto") == 0) return WAIT_AUTO;
    if (strcmp(value, "poll") == 0) return WAIT_POLL;
    return strcmp(value, "sleep") == 0 ? WAIT_SLEEP : WAIT_INVALID;
}

static bool is_local(const struct domain *domain, const struct address *address)
{
    return address->family == 0 ||
           (address->family == domain->address.family && memcmp(address->ip, domain->address.ip, sizeof address->ip) == 0);
}

/* The program has inserted an address (delta 1) or removed one (-1). Without memory the address is not counted. The lock is held. */
void pause_count_peers(struct domain *domain, const struct address *address, int delta)
{
    if (is_local(domain, address)) {
        intptr_t stored = (intptr_t)hash_map_find(&domain->local_peers_seen, address->node); /* insertions plus one; 0: never inserted */
        intptr_t before = stored ? stored - 1 : 0, after = before + delta;
        if (after >= 0 && hash_map_put(&domain->local_peers_seen, address->node, (void *)(after + 1)) == 0)
            domain->local_peers += (after > 0) - (before > 0);
    }
    if (domain->cpus == 0) domain->cpus = sysconf(_SC_NPROCESSORS_ONLN); /* of the host, not of this rank, which may be bound; -1: unknown */
    bool oversubscribed = domain->cpus > 0 && domain->local_peers > domain->cpus;
    domain->pauses = domain->wait_mode == WAIT_SLEEP || (domain->wait_mode == WAIT_AUTO && oversubscribed);
}

/* The domain whose queue this thread last read and found empty. Compared only, never dereferenced. */
static _Thread_local const struct domain *last_empty_domain;

/* Whether the program computes between its reads: it does not wait, but calls its library from time to time to make progress. */
static bool computes_between_reads(struct cq *cq)
{
    int64_t before = cq->thread_cpu_ns;
    cq->thread_cpu_ns = read_thread_cpu_ns();
    if (before == 0) return false; /* the thread has just slept, and its caches are cold */
    if (cq->thread_cpu_ns - before <= COMPUTE_NS) {
        cq->compute_score -= cq->compute_score > 0;
        return false;
    }
    cq->compute_score += COMPUTE_WEIGHT;
    if (cq->compute_score <= 2 * COMPUTE_WEIGHT) return false;
    cq->compute_score = COMPUTE_WEIGHT;
    return true;
}

static bool sleep_is_due(struct cq *cq)
{
    if (last_empty_domain != cq->domain) {
        last_empty_domain = cq->domain;
        cq->empty_reads = 0;
    }
    /* An operation that was started may complete in a counter, which no read of a queue finds. */
    if (cq->ops_started != cq->domain->ops_started || computes_between_reads(cq)) pause_reset(cq);
    cq->ops_started = cq->domain->ops_started;
    if (++cq->empty_reads < EMPTY_READS_BEFORE_SLEEP) return false;
    cq->empty_reads = 0; /* pause_reset() does the same after a read that finds something */
    return domain_arm(cq->domain);
}

/* What to do after an empty read. The lock is held. */
enum poll_pause pause_due(struct cq *cq)
{
    if (unlikely(cq->domain->wait_mode == WAIT_SLEEP)) return sleep_is_due(cq) ? PAUSE_SLEEP : PAUSE_NONE;
    if (likely(++cq->empty_reads < EMPTY_READS_BEFORE_YIELD)) return PAUSE_NONE;
    cq->empty_reads = 0;
    return PAUSE_YIELD;
}

/* Yields or sleeps, without the lock. The caller reads once more afterwards. */
void pause_poll(struct cq *cq, enum poll_pause pause)
{
    if (likely(pause == PAUSE_YIELD)) {
        sched_yield();
        return;
    }
    struct pollfd descriptor = { motet_node_descriptor(cq->domain->node), POLLIN, 0 };
    poll(&descriptor, 1, SLEEP_MS);
    cq->thread_cpu_ns = 0;
}
