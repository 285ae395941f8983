/* waits.c: yields and sleeps of the provider `motet` in empty reads of a queue: with as many ranks on the host as CPUs, and with one more.
 *
 *   waits auto|poll|sleep    (the value of FI_MOTET_WAIT)
 *
 * The program replaces sysconf() to report 2 CPUs, and counts calls of sched_yield() and poll(). Ends with the line "waits as asked". */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include <dlfcn.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CPUS 2
#define READS 1000

#define CHECK(holds)                                                              \
    do {                                                                          \
        if (!(holds)) {                                                           \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #holds);   \
            fprintf(stderr, "%d yields, %d sleeps of %d ms\n", yields, sleeps, longest); \
            exit(1);                                                              \
        }                                                                         \
    } while (0)

static _Thread_local int reads; /* calls of this thread are counted */
static int yields, sleeps, longest;

/* ---------------------------------------------------------------- replacements of libc functions, which the provider calls, too */

int sched_yield(void)
{
    int (*next)(void) = (int (*)(void))dlsym(RTLD_NEXT, "sched_yield");
    yields += reads;
    return next();
}

int poll(struct pollfd *descriptors, nfds_t count, int timeout)
{
    int (*next)(struct pollfd *, nfds_t, int) = (int (*)(struct pollfd *, nfds_t, int))dlsym(RTLD_NEXT, "poll");
    if (reads && timeout != 0) {
        sleeps++;
        if (timeout < 0 || timeout > longest) longest = timeout < 0 ? 1 << 30 : timeout;
    }
    return next(descriptors, count, timeout);
}

long sysconf(int name)
{
    long (*next)(int) = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
    return name == _SC_NPROCESSORS_ONLN ? CPUS : next(name);
}

/* ---------------------------------------------------------------- ranks */

struct rank {
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    char name[64];
};

static struct fi_info *info;
static struct fid_fabric *fabric;

static void begin(struct rank *rank)
{
    struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_NONE };
    struct fi_av_attr av = { .type = FI_AV_MAP };
    size_t length = sizeof rank->name;
    CHECK(fi_domain(fabric, info, &rank->domain, NULL) == 0);
    CHECK(fi_av_open(rank->domain, &av, &rank->av, NULL) == 0);
    CHECK(fi_cq_open(rank->domain, &cq, &rank->cq, NULL) == 0);
    CHECK(fi_endpoint(rank->domain, info, &rank->ep, NULL) == 0);
    CHECK(fi_ep_bind(rank->ep, &rank->av->fid, 0) == 0);
    CHECK(fi_ep_bind(rank->ep, &rank->cq->fid, FI_SEND | FI_RECV) == 0);
    CHECK(fi_enable(rank->ep) == 0);
    CHECK(fi_getname(&rank->ep->fid, rank->name, &length) == 0);
}

static void end(struct rank *rank)
{
    CHECK(fi_close(&rank->ep->fid) == 0);
    CHECK(fi_close(&rank->cq->fid) == 0);
    CHECK(fi_close(&rank->av->fid) == 0);
    CHECK(fi_close(&rank->domain->fid) == 0);
}

static void read_empty_queue(struct rank *rank)
{
    struct fi_cq_tagged_entry entry;
    yields = sleeps = longest = 0;
    reads = 1;
    for (int i = 0; i < READS; i++)
        CHECK(fi_cq_read(rank->cq, &entry, 1) == -FI_EAGAIN);
    reads = 0;
}

int main(int count, char **words)
{
    struct rank ranks[CPUS + 1];
    struct fi_info *hints = fi_allocinfo();
    const char *how = count > 1 ? words[1] : "";
    CHECK(setenv("FI_MOTET_WAIT", how, 1) == 0);
    hints->caps = FI_MSG | FI_TAGGED;
    hints->ep_attr->type = FI_EP_RDM;
    hints->fabric_attr->prov_name = strdup("motet");
    CHECK(fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &info) == 0);
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL) == 0);
    for (int i = 0; i <= CPUS; i++) begin(&ranks[i]);

    struct rank *first = &ranks[0];
    for (int i = 0; i < CPUS; i++) CHECK(fi_av_insert(first->av, ranks[i].name, 1, NULL, 0, NULL) == 1);
    read_empty_queue(first);
    if (strcmp(how, "sleep") != 0) CHECK(yields == 0 && sleeps == 0);

    CHECK(fi_av_insert(first->av, ranks[CPUS].name, 1, NULL, 0, NULL) == 1);
    read_empty_queue(first);
    if (strcmp(how, "auto") == 0) CHECK(yields >= READS / 20 && yields <= READS && sleeps == 0);
    else if (strcmp(how, "poll") == 0) CHECK(yields == 0 && sleeps == 0);
    else CHECK(sleeps > 0 && longest <= 1);

    for (int i = 0; i <= CPUS; i++) end(&ranks[i]);
    fi_close(&fabric->fid);
    fi_freeinfo(info);
    fi_freeinfo(hints);
    puts("waits as asked");
    return 0;
}
