/* rest.c: when a program that polls gives its CPU away in its poll.
 *
 * What it is:   MPI libraries wait by polling, and not every loop of theirs yields: Open MPI's blocking sends over libfabric do not, nor does
 *               anything of MPICH's. That is best where each rank has a CPU; where a host has more ranks than CPUs, such a loop keeps the CPU
 *               from the rank that it waits for, for milliseconds. So there a queue that has been read in vain a few times in a row has its
 *               reader yield, and look again. Ranks of a host are known by the addresses that the program inserts.
 *               It does not sleep, unless the user says so: a rank that polls may be the one whom others wait for, by a way that rings no bell
 *               here (Open MPI's windows over its own shared memory are served by polls of their owner).
 *               A user who has said so gets short sleeps in the node's descriptor, until progress would do something. A program that reads
 *               queues of several domains in turn does not sleep: a sleep in one is deaf to the others.
 * What it isn't: a wait of libfabric's (fi_cq_sread, fi_trywait): those are the program's own choice, and as ever.
 *
 * FI_MOTET_WAIT: auto (yields where there are more ranks than CPUs, the default), poll (neither), sleep (sleeps everywhere). */
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

static bool sleep_is_due(struct queue *queue)
{
    if (reads_in_vain != queue->domain) {
        reads_in_vain = queue->domain;
        queue->vain = 0;
    }
    /* What has been begun may end in a counter, which no read of a queue finds. */
    if (queue->begun != queue->domain->begun || is_elsewhere(queue)) rest_is_over(queue);
    queue->begun = queue->domain->begun;
    if (++queue->vain < VAIN_BEFORE_SLEEP) return false;
    queue->vain = 0; /* as soon as something is read, too */
    return domain_may_sleep(queue->domain);
}

/* A read found nothing, where such reads are counted. The lock is held. */
enum rest rest_due(struct queue *queue)
{
    if (unlikely(queue->domain->wait == RESTS_ALWAYS)) return sleep_is_due(queue) ? REST_SLEEP : REST_NOT;
    if (likely(++queue->vain < VAIN_BEFORE_TURN)) return REST_NOT;
    queue->vain = 0;
    return REST_TURN;
}

/* Without the lock. Whoever has nothing to read afterwards tells the program so. */
void rest(struct queue *queue, enum rest how)
{
    if (likely(how == REST_TURN)) {
        sched_yield();
        return;
    }
    struct pollfd descriptor = { motet_node_descriptor(queue->domain->node), POLLIN, 0 };
    poll(&descriptor, 1, SLEEP_MS);
    queue->used = 0;
}
