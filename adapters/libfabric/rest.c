/* rest.c: when a program that polls sleeps in its poll instead.
 *
 * What it is:   MPI libraries wait by polling. That is best where each rank has a CPU; where a host has more ranks than CPUs, each poll is
 *               time that the rank does not get for whom it waits. So there a queue that has been read in vain many times has its reader
 *               sleep in the node's descriptor until progress would do something. Not for long at first, as the program may be waiting for
 *               something else; each sleep in vain lets the next one be longer and begin sooner, as many that wake for nothing hold each
 *               other up. Ranks of a host are known by the addresses that the program inserts.
 *               A program that reads queues of several domains in turn does not rest: a sleep in one is deaf to the others.
 * What it isn't: a wait of libfabric's (fi_cq_sread, fi_trywait): those are the program's own choice, and as ever.
 *
 * FI_MOTET_WAIT: auto (as above, the default), poll (never), sleep (always). */
#include "fabric.h"

#include <poll.h>
#include <time.h>

/* Reads in a row that found nothing before each sleep. In a crowd many: to sleep and be woken takes longer than a few turns of ranks that
 * yield, above all where an idle CPU is a virtual one. */
#define VAIN_IN_A_CROWD 1000
#define VAIN_ALWAYS 8
/* And after two sleeps that nothing has ended: 256 ranks that polled 1000 times between sleeps of 32 ms would need ten CPUs. */
#define VAIN_AGAIN 8
/* From read to read a program that waits takes 1 to 4 us of CPU, yields included (Open MPI 4, MPICH 5), and longer once in 100 reads or less;
 * one that takes longer more often than once in so many has something else to do. */
#define ELSEWHERE_NS 8000
#define OUTWEIGHS 32
#define SHORTEST_MS 1
#define LONGEST_MS 32

static int64_t cpu_time(void)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (int64_t)used.tv_sec * 1000000000 + used.tv_nsec;
}

enum rests rests_wanted(void)
{
    const char *said = getenv("FI_MOTET_WAIT");
    if (!said || !*said || strcmp(said, "auto") == 0) return RESTS_IN_A_CROWD;
    if (strcmp(said, "poll") == 0) return RESTS_NEVER;
    return strcmp(said, "sleep") == 0 ? RESTS_ALWAYS : RESTS_WRONG;
}

static bool is_here(const struct domain *domain, const struct address *address)
{
    return address->family == 0 ||
           (address->family == domain->address.family && memcmp(address->ip, domain->address.ip, sizeof address->ip) == 0);
}

/* The program has inserted an address (more: 1) or removed it (-1). Where there is no memory it is not counted. The lock is held. */
void rest_count(struct domain *domain, const struct address *address, int more)
{
    if (is_here(domain, address)) {
        intptr_t kept = (intptr_t)map_find(&domain->neighbours_seen, address->node); /* one more than it was inserted; 0: never */
        intptr_t before = kept ? kept - 1 : 0, after = before + more;
        if (after >= 0 && map_put(&domain->neighbours_seen, address->node, (void *)(after + 1)) == 0)
            domain->neighbours += (after > 0) - (before > 0);
    }
    if (domain->cpus == 0) domain->cpus = sysconf(_SC_NPROCESSORS_ONLN); /* not those of this rank, which may be bound; -1: not known */
    bool crowded = domain->cpus > 0 && domain->neighbours > domain->cpus;
    domain->rests = domain->wait == RESTS_ALWAYS || (domain->wait == RESTS_IN_A_CROWD && crowded);
}

static unsigned reads_before_rest(const struct queue *queue)
{
    if (queue->domain->wait == RESTS_ALWAYS) return VAIN_ALWAYS;
    return queue->rest_ms > 2 * SHORTEST_MS ? VAIN_AGAIN : VAIN_IN_A_CROWD;
}

/* Whose queue this thread has read in vain before. Nothing is read through it. */
static _Thread_local const struct domain *reads_in_vain;

/* Whether the program computes between its reads, as one does that waits for nothing and lets its library get on now and then. */
static bool is_elsewhere(struct queue *queue)
{
    int64_t before = queue->used;
    queue->used = cpu_time();
    if (before == 0) return false; /* it has just slept, and finds its caches cold */
    if (queue->used - before <= ELSEWHERE_NS) {
        queue->elsewhere -= queue->elsewhere > 0;
        return false;
    }
    queue->elsewhere += OUTWEIGHS;
    if (queue->elsewhere <= 2 * OUTWEIGHS) return false;
    queue->elsewhere = OUTWEIGHS;
    return true;
}

/* A read found nothing: whether the node was armed, and its reader is to rest. The lock is held. */
bool rest_is_due(struct queue *queue)
{
    if (likely(!queue->domain->rests)) return false;
    if (reads_in_vain != queue->domain) {
        reads_in_vain = queue->domain;
        queue->vain = 0;
    }
    /* What has been begun may end in a counter, which no read of a queue finds. */
    if (queue->begun != queue->domain->begun || is_elsewhere(queue)) rest_is_over(queue);
    queue->begun = queue->domain->begun;
    if (++queue->vain < reads_before_rest(queue)) return false;
    queue->vain = 0; /* as soon as something is read, too */
    return domain_may_sleep(queue->domain);
}

/* Without the lock. Whoever has nothing to read afterwards tells the program so. */
void rest(struct queue *queue)
{
    struct pollfd descriptor = { motet_node_descriptor(queue->domain->node), POLLIN, 0 };
    int ms = queue->rest_ms ? queue->rest_ms : SHORTEST_MS;
    bool woken = poll(&descriptor, 1, ms) > 0;
    queue->used = 0;
    queue->rest_ms = woken ? SHORTEST_MS : ms * 2 < LONGEST_MS ? ms * 2 : LONGEST_MS;
}
