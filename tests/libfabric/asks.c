/* asks.c: what a program may request of the provider `motet`, and what the provider reports: capabilities, sources, data, counters; the first send to an
 * endpoint; and atomics on several pieces. One domain, one thread, and one endpoint that sends to itself.
 * Ends with the line "asked and answered". */
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(got, expected)                                                                                       \
    do {                                                                                                           \
        long long got_ = (long long)(got), expected_ = (long long)(expected);                                      \
        if (got_ != expected_) {                                                                                   \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #got, got_, expected_);           \
            exit(1);                                                                                               \
        }                                                                                                          \
    } while (0)

#define REMOTE (FI_RMA | FI_ATOMIC | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)

static struct fi_info *hints_of(uint64_t caps, int mr_mode)
{
    struct fi_info *hints = fi_allocinfo();
    hints->caps = caps;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = mr_mode;
    hints->fabric_attr->prov_name = strdup("motet");
    return hints;
}

static int ask(const char *node, const char *service, uint64_t flags, struct fi_info *hints, struct fi_info **info)
{
    int result = fi_getinfo(FI_VERSION(1, 9), node, service, flags, hints, info);
    fi_freeinfo(hints);
    return result;
}

/* ---------------------------------------------------------------- what is offered */

static void capabilities(void)
{
    struct fi_info *info;
    /* Hints without capabilities get all that the program can use. Remote memory needs FI_MR_PROV_KEY. */
    for (int modes = 0; modes < 256; modes++) {
        int mode = (modes & 1 ? FI_MR_LOCAL : 0) | (modes & 2 ? FI_MR_RAW : 0) | (modes & 4 ? FI_MR_VIRT_ADDR : 0) | (modes & 8 ? FI_MR_ALLOCATED : 0) |
                   (modes & 16 ? FI_MR_PROV_KEY : 0) | (modes & 32 ? FI_MR_MMU_NOTIFY : 0) | (modes & 64 ? FI_MR_RMA_EVENT : 0) |
                   (modes & 128 ? FI_MR_ENDPOINT : 0);
        CHECK(ask(NULL, NULL, 0, hints_of(0, mode), &info), 0);
        CHECK(info->domain_attr->mr_mode & ~mode, 0);
        CHECK((info->caps & REMOTE) == REMOTE, (mode & FI_MR_PROV_KEY) != 0);
        CHECK(info->caps & FI_MSG && info->caps & FI_TAGGED, 1);
        fi_freeinfo(info);
    }
    CHECK(ask(NULL, NULL, 0, hints_of(FI_RMA, 0), &info), -FI_ENODATA);

    /* Only messages carry data. */
    struct fi_info *hints = hints_of(FI_RMA, FI_MR_PROV_KEY);
    CHECK(ask(NULL, NULL, 0, fi_dupinfo(hints), &info), 0);
    CHECK(info->domain_attr->cq_data_size, 0);
    fi_freeinfo(info);
    hints->domain_attr->cq_data_size = 4;
    CHECK(ask(NULL, NULL, 0, hints, &info), -FI_ENODATA);
    hints = hints_of(FI_RMA | FI_TAGGED, FI_MR_PROV_KEY);
    hints->domain_attr->cq_data_size = 8;
    CHECK(ask(NULL, NULL, 0, hints, &info), 0);
    CHECK(info->domain_attr->cq_data_size, 8);
    fi_freeinfo(info);
}

static void sources(void)
{
    static const struct { const char *node, *service; uint64_t flags; int result; } asked[] = {
        { NULL, NULL, 0, 0 },           { NULL, "9228", FI_SOURCE, 0 },      { "localhost", NULL, FI_SOURCE, 0 },
        { "127.0.0.1", "9228", FI_SOURCE, 0 }, { "nosuchhost.invalid", NULL, FI_SOURCE, -FI_ENODATA },
        { "203.0.113.7", NULL, FI_SOURCE, -FI_ENODATA }, /* a documentation address, of no host */
        { "localhost", "9228", 0, -FI_ENODATA },
    };
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        struct fi_info *info = NULL;
        CHECK(ask(asked[i].node, asked[i].service, asked[i].flags, hints_of(FI_MSG, 0), &info), asked[i].result);
        if (asked[i].result != 0) continue;
        CHECK(info->src_addr != NULL, 1);
        CHECK(info->src_addrlen > 0 && info->src_addrlen <= 64, 1); /* FI_NAME_MAX */
        fi_freeinfo(info);
    }
}

/* ---------------------------------------------------------------- an endpoint */

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_cntr *all;
static struct fid_ep *ep;
static struct fid_mr *region;
static fi_addr_t self;
static int64_t memory[32];

static void begin(void)
{
    struct fi_cq_attr queue = { .format = FI_CQ_FORMAT_TAGGED };
    struct fi_av_attr vector = { .type = FI_AV_MAP };
    struct fi_cntr_attr counter = { .events = FI_CNTR_EVENTS_COMP };
    char name[64];
    size_t length = sizeof name;
    CHECK(ask(NULL, NULL, 0, hints_of(FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC, FI_MR_PROV_KEY), &info), 0);
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL), 0);
    CHECK(fi_domain(fabric, info, &domain, NULL), 0);
    CHECK(fi_av_open(domain, &vector, &av, NULL), 0);
    CHECK(fi_cq_open(domain, &queue, &cq, NULL), 0);
    CHECK(fi_cntr_open(domain, &counter, &all, NULL), 0);
    CHECK(fi_endpoint(domain, info, &ep, NULL), 0);
    CHECK(fi_ep_bind(ep, &av->fid, 0), 0);
    CHECK(fi_ep_bind(ep, &cq->fid, FI_SEND | FI_RECV), 0);
    /* Some programs bind one counter for all operations. A counter only for remote accesses, which are never counted, is refused. */
    CHECK(fi_ep_bind(ep, &all->fid, FI_REMOTE_READ | FI_REMOTE_WRITE), -FI_EINVAL);
    CHECK(fi_ep_bind(ep, &all->fid, FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE), 0);
    CHECK(fi_enable(ep), 0);
    CHECK(fi_getname(&ep->fid, name, &length), 0);
    CHECK(fi_av_insert(av, name, 1, &self, 0, NULL), 1);
    CHECK(fi_mr_reg(domain, memory, sizeof memory, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &region, NULL), 0);
}

static void end(void)
{
    CHECK(fi_close(&ep->fid), 0);
    CHECK(fi_close(&region->fid), 0);
    CHECK(fi_close(&all->fid), 0);
    CHECK(fi_close(&cq->fid), 0);
    CHECK(fi_close(&av->fid), 0);
    CHECK(fi_close(&domain->fid), 0);
    CHECK(fi_close(&fabric->fid), 0);
    fi_freeinfo(info);
}

/* Waits for the next event, which must have this context. */
static struct fi_cq_tagged_entry event(const void *context)
{
    struct fi_cq_tagged_entry entry;
    ssize_t got;
    while ((got = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN) continue;
    CHECK(got, 1);
    CHECK((const char *)entry.op_context - (const char *)context, 0);
    return entry;
}

/* The first call must succeed: some programs take a first FI_EAGAIN for a failure. */
static void first_send(void)
{
    struct fi_context sent, got;
    char text[8] = "";
    uint64_t counted = fi_cntr_read(all);
    CHECK(fi_tsend(ep, "hello", 6, NULL, self, 7, &sent), 0);
    event(&sent);
    CHECK(fi_trecv(ep, text, sizeof text, NULL, FI_ADDR_UNSPEC, 7, 0, &got), 0);
    CHECK(event(&got).len, 6);
    CHECK(strcmp(text, "hello"), 0);
    CHECK(fi_cntr_read(all) - counted, 2);
    CHECK(fi_writedata(ep, text, 1, NULL, 1, self, 0, fi_mr_key(region), NULL), -FI_ENOSYS);
}

static void atomics_in_pieces(void)
{
    struct fi_context context;
    const uint64_t key = fi_mr_key(region);
    int64_t a[3] = { 1, 2, 3 }, b[2] = { 4, 5 }, c[1] = { 6 }, before[6] = { 0 }, wanted[6];
    struct fi_ioc operands[] = { { a, 3 }, { NULL, 0 }, { b, 2 }, { c, 1 } };
    struct fi_ioc results[] = { { before, 1 }, { before + 1, 4 }, { before + 5, 1 } };
    for (int i = 0; i < 32; i++) memory[i] = 100 * i;

    uint64_t counted = fi_cntr_read(all);
    CHECK(fi_atomicv(ep, operands, NULL, 4, self, 8, key, FI_INT64, FI_SUM, &context), 0);
    event(&context);
    for (int i = 0; i < 32; i++) CHECK(memory[i], 100 * i + (i >= 1 && i <= 6 ? i : 0));
    CHECK(fi_cntr_read(all) - counted, 1);

    CHECK(fi_fetch_atomicv(ep, operands, NULL, 4, results, NULL, 3, self, 8, key, FI_INT64, FI_SUM, &context), 0);
    event(&context);
    for (int i = 0; i < 6; i++) CHECK(before[i], 101 * (i + 1));
    for (int i = 0; i < 32; i++) CHECK(memory[i], 100 * i + (i >= 1 && i <= 6 ? 2 * i : 0));

    /* Only elements with the compared value are swapped. */
    for (int i = 0; i < 6; i++) wanted[i] = 102 * (i + 1) + (i == 2);
    struct fi_ioc compared[] = { { wanted, 2 }, { wanted + 2, 4 } };
    CHECK(fi_compare_atomicv(ep, operands, NULL, 4, compared, NULL, 2, results, NULL, 3, self, 8, key, FI_INT64, FI_CSWAP, &context), 0);
    event(&context);
    for (int i = 0; i < 6; i++) CHECK(before[i], 102 * (i + 1));
    for (int i = 0; i < 6; i++) CHECK(memory[i + 1], i == 2 ? 306 : i + 1);

    /* Two remote pieces, read without an operand. */
    struct fi_rma_ioc places[] = { { 16 * 8, 2, key }, { 20 * 8, 4, key } };
    struct fi_msg_atomic message = { .addr = self, .rma_iov = places, .rma_iov_count = 2, .datatype = FI_INT64, .op = FI_ATOMIC_READ, .context = &context };
    CHECK(fi_fetch_atomicmsg(ep, &message, results, NULL, 3, FI_COMPLETION), 0);
    event(&context);
    for (int i = 0; i < 6; i++) CHECK(before[i], 100 * (i < 2 ? 16 + i : 18 + i));

    /* Lists of different lengths and too many elements are refused, and no operation starts. */
    CHECK(fi_fetch_atomicv(ep, operands, NULL, 3, results, NULL, 3, self, 8, key, FI_INT64, FI_SUM, &context), -FI_EINVAL);
    int64_t many[40] = { 0 };
    struct fi_ioc halves[] = { { many, 20 }, { many + 20, 20 } };
    CHECK(fi_atomicv(ep, halves, NULL, 2, self, 0, key, FI_INT64, FI_SUM, &context), -FI_EMSGSIZE);
    struct fi_cq_tagged_entry none;
    for (int i = 0; i < 100; i++) CHECK(fi_cq_read(cq, &none, 1), -FI_EAGAIN);

    /* A key of no region: one failure for all pieces. */
    struct fi_cq_err_entry error = { 0 };
    ssize_t got;
    CHECK(fi_atomicv(ep, operands, NULL, 4, self, 8, key ^ 1, FI_INT64, FI_SUM, &context), 0);
    while ((got = fi_cq_read(cq, &none, 1)) == -FI_EAGAIN) continue;
    CHECK(got, -FI_EAVAIL);
    CHECK(fi_cq_readerr(cq, &error, 0), 1);
    CHECK((char *)error.op_context - (char *)&context, 0);
    for (int i = 0; i < 100; i++) CHECK(fi_cq_read(cq, &none, 1), -FI_EAGAIN);
}

int main(void)
{
    capabilities();
    sources();
    begin();
    first_send();
    atomics_in_pieces();
    end();
    puts("asked and answered");
    return 0;
}
