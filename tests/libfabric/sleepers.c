/* sleepers.c: a thread that sleeps for one completion queue of a domain with two is woken for every completion.
 *
 *   sleepers MESSAGES
 *
 * Another thread, with its own domain, sends one message to each of the two endpoints. The reader sleeps for one queue until its message has
 * arrived, then for the other. Ends with the line "every sleeper was woken". */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WAKE_TIMEOUT_MS = 5000, MAX_PAUSE_LOOPS = 2000 };

#define CHECK(holds)                                                            \
    do {                                                                        \
        if (!(holds)) {                                                         \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #holds); \
            exit(1);                                                            \
        }                                                                       \
    } while (0)

/* An endpoint and its own queue. */
struct end {
    struct fid_cq *cq;
    struct fid_ep *ep;
    uint64_t buffer;
    char name[64];
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct end ends[2];
static long messages;
static atomic_long read_so_far;

static void begin(struct end *end, struct fid_domain *domain, struct fid_av *av)
{
    struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_FD };
    size_t length = sizeof end->name;
    CHECK(fi_cq_open(domain, &cq, &end->cq, NULL) == 0);
    CHECK(fi_endpoint(domain, info, &end->ep, NULL) == 0);
    CHECK(fi_ep_bind(end->ep, &av->fid, 0) == 0);
    CHECK(fi_ep_bind(end->ep, &end->cq->fid, FI_SEND | FI_RECV) == 0);
    CHECK(fi_enable(end->ep) == 0);
    CHECK(fi_getname(&end->ep->fid, end->name, &length) == 0);
}

static void open_domain(struct fid_domain **domain, struct fid_av **av)
{
    struct fi_av_attr attr = { .type = FI_AV_MAP };
    CHECK(fi_domain(fabric, info, domain, NULL) == 0);
    CHECK(fi_av_open(*domain, &attr, av, NULL) == 0);
}

static void *sends(void *unused)
{
    struct fid_domain *domain;
    struct fid_av *av;
    struct end own;
    fi_addr_t to[2];
    unsigned seed = 1;
    open_domain(&domain, &av);
    begin(&own, domain, av);
    for (int i = 0; i < 2; i++) CHECK(fi_av_insert(av, ends[i].name, 1, &to[i], 0, NULL) == 1);
    for (long n = 0; n < messages; n++) {
        while (atomic_load(&read_so_far) < n) {}
        for (int pause = rand_r(&seed) % MAX_PAUSE_LOOPS; pause > 0; pause--) __asm__ volatile("");
        for (int i = 0; i < 2; i++) {
            struct fi_cq_tagged_entry entry;
            ssize_t sent;
            while ((sent = fi_tinject(own.ep, &n, sizeof n, to[i], (uint64_t)n)) == -FI_EAGAIN) (void)fi_cq_read(own.cq, &entry, 1);
            CHECK(sent == 0);
        }
    }
    while (atomic_load(&read_so_far) < messages) {
        struct fi_cq_tagged_entry entry;
        (void)fi_cq_read(own.cq, &entry, 1);
    }
    CHECK(fi_close(&own.ep->fid) == 0 && fi_close(&own.cq->fid) == 0 && fi_close(&av->fid) == 0 && fi_close(&domain->fid) == 0);
    return unused;
}

static void post(struct end *end, long n)
{
    CHECK(fi_trecv(end->ep, &end->buffer, sizeof end->buffer, NULL, FI_ADDR_UNSPEC, (uint64_t)n, 0, NULL) == 0);
}

/* Reads one message; sleeps until it has arrived. */
static void take(struct end *end, long n)
{
    struct fid *fid = &end->cq->fid;
    struct fi_cq_tagged_entry entry;
    ssize_t count;
    while ((count = fi_cq_read(end->cq, &entry, 1)) == -FI_EAGAIN) {
        struct pollfd descriptor = { .events = POLLIN };
        CHECK(fi_control(fid, FI_GETWAIT, &descriptor.fd) == 0);
        if (fi_trywait(fabric, &fid, 1) == 0) CHECK(poll(&descriptor, 1, WAKE_TIMEOUT_MS) == 1);
    }
    CHECK(count == 1 && entry.tag == (uint64_t)n && end->buffer == (uint64_t)n);
}

int main(int count, char **words)
{
    struct fi_info *hints = fi_allocinfo();
    struct fid_domain *domain;
    struct fid_av *av;
    pthread_t sender;
    messages = count > 1 ? atol(words[1]) : 0;
    hints->caps = FI_MSG | FI_TAGGED;
    hints->ep_attr->type = FI_EP_RDM;
    hints->fabric_attr->prov_name = strdup("motet");
    CHECK(fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &info) == 0);
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL) == 0);
    open_domain(&domain, &av);
    for (int i = 0; i < 2; i++) {
        begin(&ends[i], domain, av);
        post(&ends[i], 0);
    }
    CHECK(pthread_create(&sender, NULL, sends, NULL) == 0);
    for (long n = 0; n < messages; n++) {
        for (int i = 0; i < 2; i++) {
            int first = (int)(n % 2) ^ i;
            take(&ends[first], n);
            post(&ends[first], n + 1);
        }
        atomic_store(&read_so_far, n + 1);
    }
    CHECK(pthread_join(sender, NULL) == 0);
    for (int i = 0; i < 2; i++) CHECK(fi_close(&ends[i].ep->fid) == 0 && fi_close(&ends[i].cq->fid) == 0);
    CHECK(fi_close(&av->fid) == 0 && fi_close(&domain->fid) == 0 && fi_close(&fabric->fid) == 0);
    fi_freeinfo(info);
    fi_freeinfo(hints);
    puts("every sleeper was woken");
    return 0;
}
