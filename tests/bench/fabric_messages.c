/* fabric_messages.c: tagged messages over libfabric's provider for shared memory. See messages.h and bootstrap.h. */
#define _GNU_SOURCE
#include "bootstrap.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *vector;
static struct fid_cq *completions;
static struct fid_ep *endpoint;
static fi_addr_t peers[MOST_ENDS];

/* An operation in progress. The context is the first member, as a completion has its address. Two more slots are for blocking calls. */
struct slot {
    struct fi_context2 context;
    int begun, done;
    uint64_t tag;
};
static struct slot slots[SLOTS + 2];
enum { SENDING = SLOTS, TAKING };

static void must(ssize_t status, const char *what)
{
    if (status >= 0) return;
    fprintf(stderr, "%s: %s\n", what, fi_strerror((int)-status));
    exit(1);
}

static uint64_t tag_of(int from, int tag) { return (uint64_t)from << 8 | (uint64_t)tag; }

static void turn(void)
{
    struct fi_cq_tagged_entry found[16];
    ssize_t count = fi_cq_read(completions, found, 16);
    if (count == -FI_EAGAIN) {
        idle();
        return;
    }
    if (count == -FI_EAVAIL) {
        struct fi_cq_err_entry error = {0};
        fi_cq_readerr(completions, &error, 0);
        must(-error.err, "a message");
    }
    must(count, "fi_cq_read");
    for (ssize_t i = 0; i < count; i++) {
        struct slot *slot = found[i].op_context;
        slot->done = 1;
        slot->tag = found[i].tag;
    }
}

static void begin_send(struct slot *slot, int to, int tag, const void *data, size_t size)
{
    ssize_t status;
    slot->begun = 1;
    slot->done = 0;
    if (size <= info->tx_attr->inject_size) {
        /* It is copied at once, and no completion is reported. */
        while ((status = fi_tinject(endpoint, data, size, peers[to], tag_of(own_end, tag))) == -FI_EAGAIN) turn();
        must(status, "fi_tinject");
        slot->done = 1;
        return;
    }
    while ((status = fi_tsend(endpoint, data, size, NULL, peers[to], tag_of(own_end, tag), &slot->context)) == -FI_EAGAIN) turn();
    must(status, "fi_tsend");
}

static void begin_receive(struct slot *slot, int from, int tag, void *into, size_t size)
{
    ssize_t status;
    uint64_t wanted = tag_of(from == ANY ? 0 : from, tag), ignored = from == ANY ? ~(uint64_t)0xff : 0;
    slot->begun = 1;
    slot->done = 0;
    while ((status = fi_trecv(endpoint, into, size, NULL, FI_ADDR_UNSPEC, wanted, ignored, &slot->context)) == -FI_EAGAIN) turn();
    must(status, "fi_trecv");
}

static void complete(struct slot *slot)
{
    while (!slot->done) turn();
    slot->begun = 0;
}

static void deliver(int to, int tag, const void *data, size_t size)
{
    begin_send(&slots[SENDING], to, tag, data, size);
    complete(&slots[SENDING]);
}

static void take(int from, int tag, void *into, size_t size)
{
    begin_receive(&slots[TAKING], from, tag, into, size);
    complete(&slots[TAKING]);
}

static void begin_deliver(int slot, int to, int tag, const void *data, size_t size)
{
    begin_send(&slots[slot], to, tag, data, size);
}

static void begin_take(int slot, int from, int tag, void *into, size_t size)
{
    begin_receive(&slots[slot], from, tag, into, size);
}

static void finish(int count)
{
    for (int slot = 0; slot < count; slot++) complete(&slots[slot]);
}

static int finish_any(int count, int *from)
{
    for (;; turn()) {
        for (int slot = 0; slot < count; slot++) {
            if (!slots[slot].begun || !slots[slot].done) continue;
            slots[slot].begun = 0;
            *from = (int)(slots[slot].tag >> 8);
            return slot;
        }
    }
}

static void interface_open(void)
{
    struct fi_info *hints = fi_allocinfo();
    if (!hints) fail("fi_allocinfo");
    hints->caps = FI_TAGGED;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_LOCAL;
    hints->fabric_attr->prov_name = strdup("shm");
    must(fi_getinfo(FI_VERSION(1, 14), NULL, NULL, 0, hints, &info), "fi_getinfo");
    fi_freeinfo(hints);
    must(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
    must(fi_domain(fabric, info, &domain, NULL), "fi_domain");
    struct fi_av_attr of_vector = {.type = FI_AV_TABLE, .count = MOST_ENDS};
    must(fi_av_open(domain, &of_vector, &vector, NULL), "fi_av_open");
    struct fi_cq_attr of_queue = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_NONE, .size = 1024};
    must(fi_cq_open(domain, &of_queue, &completions, NULL), "fi_cq_open");
    must(fi_endpoint(domain, info, &endpoint, NULL), "fi_endpoint");
    must(fi_ep_bind(endpoint, &vector->fid, 0), "fi_ep_bind");
    must(fi_ep_bind(endpoint, &completions->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
    must(fi_enable(endpoint), "fi_enable");
}

static size_t interface_address(void *into, size_t room)
{
    must(fi_getname(&endpoint->fid, into, &room), "fi_getname");
    return room;
}

static void interface_peer(int end, const void *address, size_t size)
{
    (void)size;
    if (fi_av_insert(vector, address, 1, &peers[end], 0, NULL) != 1) must(-FI_EINVAL, "fi_av_insert");
}

static void interface_close(void)
{
    fi_close(&endpoint->fid);
    fi_close(&completions->fid);
    fi_close(&vector->fid);
    fi_close(&domain->fid);
    fi_close(&fabric->fid);
    fi_freeinfo(info);
}

int main(int argc, char **argv) { return bootstrap(argc, argv); }
