/* ucx_messages.c: messages over UCP's tag interface, on the transports that UCX chooses. See messages.h and bootstrap.h. */
#define _GNU_SOURCE
#include "bootstrap.h"

#include <ucp/api/ucp.h>

static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h peers[MOST_ENDS];

/* A request of a slot: NULL where the call had already completed. */
static void *requests[SLOTS];
static ucp_tag_t came_with[SLOTS];
static char is_begun[SLOTS];

static void must(ucs_status_t status, const char *what)
{
    if (status == UCS_OK) return;
    fprintf(stderr, "%s: %s\n", what, ucs_status_string(status));
    exit(1);
}

static ucp_tag_t tag_of(int from, int tag) { return (ucp_tag_t)from << 8 | (ucp_tag_t)tag; }

static void turn(void)
{
    if (!ucp_worker_progress(worker)) idle();
}

static void *checked(void *request, const char *what)
{
    if (UCS_PTR_IS_ERR(request)) must(UCS_PTR_STATUS(request), what);
    return request;
}

static void complete(void *request, const char *what)
{
    if (!request) return;
    while (ucp_request_check_status(request) == UCS_INPROGRESS) turn();
    must(ucp_request_check_status(request), what);
    ucp_request_free(request);
}

static void *send_to(int to, int tag, const void *data, size_t size)
{
    ucp_request_param_t plain = {.op_attr_mask = 0};
    return checked(ucp_tag_send_nbx(peers[to], data, size, tag_of(own_end, tag), &plain), "ucp_tag_send_nbx");
}

static void *receive_from(int from, int tag, void *into, size_t size, ucp_tag_recv_info_t *now_there)
{
    ucp_request_param_t known = {.op_attr_mask = UCP_OP_ATTR_FIELD_RECV_INFO, .recv_info.tag_info = now_there};
    ucp_tag_t wanted = from == ANY ? tag_of(0, tag) : tag_of(from, tag), mask = from == ANY ? 0xff : ~(ucp_tag_t)0;
    return checked(ucp_tag_recv_nbx(worker, into, size, wanted, mask, &known), "ucp_tag_recv_nbx");
}

static void deliver(int to, int tag, const void *data, size_t size)
{
    complete(send_to(to, tag, data, size), "a send");
}

static void take(int from, int tag, void *into, size_t size)
{
    ucp_tag_recv_info_t info;
    complete(receive_from(from, tag, into, size, &info), "a receive");
}

static void begin_deliver(int slot, int to, int tag, const void *data, size_t size)
{
    requests[slot] = send_to(to, tag, data, size);
}

static void begin_take(int slot, int from, int tag, void *into, size_t size)
{
    ucp_tag_recv_info_t info;
    requests[slot] = receive_from(from, tag, into, size, &info);
    if (!requests[slot]) came_with[slot] = info.sender_tag;
    is_begun[slot] = 1;
}

static void finish(int count)
{
    for (int slot = 0; slot < count; slot++) {
        complete(requests[slot], "a window");
        is_begun[slot] = 0;
    }
}

static int finish_any(int count, int *from)
{
    for (;; turn()) {
        for (int slot = 0; slot < count; slot++) {
            if (!is_begun[slot]) continue;
            if (requests[slot]) {
                ucp_tag_recv_info_t info;
                ucs_status_t status = ucp_tag_recv_request_test(requests[slot], &info);
                if (status == UCS_INPROGRESS) continue;
                must(status, "a receive");
                came_with[slot] = info.sender_tag;
                ucp_request_free(requests[slot]);
            }
            is_begun[slot] = 0;
            *from = (int)(came_with[slot] >> 8);
            return slot;
        }
    }
}

static void interface_open(void)
{
    ucp_params_t of_context = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucp_worker_params_t of_worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                     .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucp_config_t *config;
    must(ucp_config_read(NULL, NULL, &config), "ucp_config_read");
    must(ucp_init(&of_context, config, &context), "ucp_init");
    ucp_config_release(config);
    must(ucp_worker_create(context, &of_worker, &worker), "ucp_worker_create");
}

static size_t interface_address(void *into, size_t room)
{
    ucp_address_t *address;
    size_t size;
    must(ucp_worker_get_address(worker, &address, &size), "ucp_worker_get_address");
    if (size > room) must(UCS_ERR_BUFFER_TOO_SMALL, "ucp_worker_get_address");
    memcpy(into, address, size);
    ucp_worker_release_address(worker, address);
    return size;
}

static void interface_peer(int end, const void *address, size_t size)
{
    (void)size;
    if (end == own_end || (own_end != 0 && end != 0)) return; /* nothing is sent there */
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = address};
    must(ucp_ep_create(worker, &params, &peers[end]), "ucp_ep_create");
}

static void interface_close(void)
{
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
}

int main(int argc, char **argv) { return bootstrap(argc, argv); }
