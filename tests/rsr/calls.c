/* calls.c: what motet_rsr.h says of each call. Two nodes of this process, and a child process that takes a startpoint up from its text. */
#include "../messages/check.h"
#include <motet_rsr.h>

#include <stdatomic.h>

static atomic_long sum;
static char user[] = "user";

/* Adds all numbers of an array to the sum. */
static void add(struct motet_rsr_reader *request, void *given)
{
    double numbers[1000];
    ssize_t count = motet_rsr_get_array(request, MOTET_RSR_F64, numbers, 1000);
    CHECK(given == user, 1);
    for (ssize_t at = 0; at < count; at++)
        atomic_fetch_add(&sum, (long)numbers[at]);
    CHECK(motet_rsr_remaining(request), 0);
}

/* Answers with the string, its block and twice the long; "forget" gets no answer. */
static void answer(struct motet_rsr_reader *request, void *given)
{
    motet_rsr_buffer buffer;
    const void *text, *more;
    long number;
    CHECK(given == user, 1);
    ssize_t length = motet_rsr_get_block(request, &text);
    if (length == 6 && memcmp(text, "forget", 6) == 0)
        return;
    CHECK(length, 5);
    CHECK(memcmp(text, "Hallo", 5), 0);
    CHECK(motet_rsr_get(request, MOTET_RSR_LONG, &number, 1), 0);
    CHECK(motet_rsr_get(request, MOTET_RSR_U64, &number, 1), -EBADMSG);
    CHECK(motet_rsr_get_block(request, &more), -EBADMSG);
    CHECK(motet_rsr_buffer_new(&buffer), 0);
    number *= 2;
    CHECK(motet_rsr_put(buffer, MOTET_RSR_LONG, &number, 1), 0);
    CHECK(motet_rsr_reply(request, buffer), 0);
    CHECK(motet_rsr_reply(request, buffer), -EINVAL);
    CHECK(motet_rsr_buffer_free(buffer), 0);
}

/* Sends 7 to the startpoint in the request. */
static motet_rsr own;
static void back(struct motet_rsr_reader *request, void *given)
{
    motet_rsr_startpoint to;
    motet_rsr_buffer buffer;
    double seven = 7;
    CHECK(given == user, 1);
    CHECK(motet_rsr_get_startpoint(request, &to), 0);
    CHECK(motet_rsr_buffer_new(&buffer), 0);
    CHECK(motet_rsr_put_array(buffer, MOTET_RSR_F64, &seven, 1), 0);
    CHECK(motet_rsr_request(own, to, "add", 0, buffer, SOON), 0);
    CHECK(motet_rsr_buffer_free(buffer), 0);
    CHECK(motet_rsr_startpoint_close(to), 0);
}

static motet_rsr_endpoint endpoint_of(motet_rsr rsr)
{
    struct motet_rsr_handler handlers[] = {
        {.size = sizeof handlers[0], .name = "add", .function = add},
        {.size = sizeof handlers[0], .name = NULL, .number = 3, .function = answer},
        {.size = sizeof handlers[0], .name = "back", .threaded = 1, .function = back},
    };
    motet_rsr_endpoint endpoint;
    CHECK(motet_rsr_endpoint_open(rsr, handlers, 3, user, &endpoint), 0);
    return endpoint;
}

static void wait_for(long wanted)
{
    int64_t until = SOON;
    while (atomic_load(&sum) != wanted && in(0) < until)
        usleep(1000);
    CHECK(atomic_load(&sum), wanted);
}

/* Another process: takes the startpoint up from its text. */
static void child(const char *text)
{
    motet_node node;
    motet_rsr rsr;
    motet_rsr_startpoint start;
    double numbers[] = {100, 200};
    motet_rsr_buffer buffer;
    struct motet_rsr_options polling = MOTET_INIT(struct motet_rsr_options);
    polling.reception = MOTET_RSR_CALLER;
    CHECK(motet_node_open(NULL, &node), 0);
    CHECK(motet_rsr_attach(node, &polling, &rsr), 0);
    CHECK(motet_rsr_startpoint_from_text(text, &start), 0);
    CHECK(motet_rsr_buffer_new(&buffer), 0);
    CHECK(motet_rsr_put_array(buffer, MOTET_RSR_F64, numbers, 2), 0);
    CHECK(motet_rsr_request(rsr, start, "add", 0, buffer, SOON), 0);
    CHECK(motet_rsr_poll(rsr, 0), 0);
    CHECK(motet_rsr_detach(rsr), 0);
    CHECK(motet_node_close(node), 0);
    exit(0);
}

int main(int count, char **words)
{
    if (count > 1)
        child(words[1]);
    motet_node near, far;
    motet_rsr client;
    motet_rsr_startpoint start, copy, both, wrong;
    motet_rsr_buffer buffer;
    struct motet_rsr_reader *reply;
    struct motet_rsr_options options = MOTET_INIT(struct motet_rsr_options);
    struct motet_rsr_counts counts = MOTET_INIT(struct motet_rsr_counts);
    struct motet_rsr_way way = MOTET_INIT(struct motet_rsr_way);
    char text[4096];
    unsigned char bytes[4096];
    long number = 21;

    CHECK(motet_node_open(NULL, &near), 0);
    CHECK(motet_node_open(NULL, &far), 0);
    CHECK(motet_rsr_attach(far, NULL, &own), 0);
    CHECK(motet_rsr_attach(far, NULL, &wrong), -EINVAL);
    options.reception = 9;
    CHECK(motet_rsr_attach(near, &options, &client), -EINVAL);
    options.reception = MOTET_RSR_THREAD_PER_CHANNEL;
    CHECK(motet_rsr_attach(near, &options, &client), 0);
    CHECK(motet_node_close(near), -EBUSY);
    CHECK(motet_rsr_poll(client, 0), -EINVAL);
    motet_rsr_endpoint endpoint = endpoint_of(own), second = endpoint_of(client);
    CHECK(motet_rsr_detach(own), -EBUSY);

    /* startpoints */
    CHECK(motet_rsr_startpoint_open(endpoint, &start), 0);
    ssize_t length = motet_rsr_startpoint_text(start, NULL, 0);
    CHECK(length > 40 && length < (ssize_t)sizeof text, 1);
    CHECK(motet_rsr_startpoint_text(start, text, sizeof text), length);
    CHECK(strlen(text), length);
    CHECK(motet_rsr_startpoint_from_text(text, &copy), 0);
    CHECK(motet_rsr_startpoint_from_text("nonsense", &wrong), -EBADMSG);
    length = motet_rsr_startpoint_bytes(copy, bytes, sizeof bytes);
    CHECK(motet_rsr_startpoint_close(copy), 0);
    CHECK(motet_rsr_startpoint_close(copy), -EBADF);
    CHECK(motet_rsr_startpoint_from_bytes(bytes, length, &copy), 0);
    CHECK(motet_rsr_startpoint_from_bytes(bytes, length - 1, &wrong), -EBADMSG);
    CHECK(motet_rsr_choose(copy, "no driver"), -EINVAL);
    CHECK(motet_rsr_choose(copy, "shm"), 0);
    CHECK(motet_rsr_way_of(client, copy, 0, SOON, &way), 0);
    CHECK(strcmp(way.driver, "shm"), 0);
    CHECK(way.chosen, 1);
    CHECK(way.endpoints, 1);
    CHECK(motet_rsr_way_of(client, copy, 1, SOON, &way), -EINVAL);

    /* requests */
    double numbers[] = {1, 2, 3};
    CHECK(motet_rsr_buffer_new(&buffer), 0);
    CHECK(motet_rsr_put_array(buffer, MOTET_RSR_LONG, numbers, 3), -EINVAL);
    CHECK(motet_rsr_put_array(buffer, MOTET_RSR_F64, numbers, 3), 0);
    CHECK(motet_rsr_request(client, copy, "add", 0, buffer, SOON), 0);
    wait_for(6);
    CHECK(motet_rsr_startpoint_open(second, &both), 0);
    CHECK(motet_rsr_startpoint_bind(both, start), 0);
    CHECK(motet_rsr_request(client, both, "add", 0, buffer, SOON), 0);
    wait_for(18);
    CHECK(motet_rsr_call(client, both, "add", 0, buffer, SOON, &reply), -EINVAL);

    /* replies */
    CHECK(motet_rsr_buffer_clear(buffer), 0);
    CHECK(motet_rsr_put_string(buffer, "Hallo"), 0);
    CHECK(motet_rsr_put(buffer, MOTET_RSR_LONG, &number, 1), 0);
    CHECK(motet_rsr_call(client, start, NULL, 3, buffer, SOON, &reply), 0);
    CHECK(motet_rsr_remaining(reply), sizeof number);
    CHECK(motet_rsr_get(reply, MOTET_RSR_LONG, &number, 1), 0);
    CHECK(number, 42);
    CHECK(motet_rsr_reply(reply, 0), -EINVAL);
    motet_rsr_reader_free(reply);
    CHECK(motet_rsr_call(client, start, NULL, 4, buffer, SOON, &reply), -ENOSYS);
    CHECK(motet_rsr_call(client, start, "nothing", 0, 0, SOON, &reply), -ENOSYS);
    CHECK(motet_rsr_buffer_clear(buffer), 0);
    CHECK(motet_rsr_put_string(buffer, "forget"), 0);
    CHECK(motet_rsr_call(client, start, NULL, 3, buffer, SOON, &reply), -EIO);
    CHECK(reply == NULL, 1);

    /* a startpoint in a request */
    CHECK(motet_rsr_buffer_clear(buffer), 0);
    CHECK(motet_rsr_put_startpoint(buffer, both), 0);
    CHECK(motet_rsr_request(client, start, "back", 0, buffer, SOON), 0);
    wait_for(32);

    /* another process */
    pid_t pid = fork();
    if (pid == 0) {
        CHECK(motet_rsr_request(client, start, "add", 0, 0, SOON), -ECHILD);
        execl("/proc/self/exe", words[0], text, NULL);
        _exit(127);
    }
    int status;
    CHECK(waitpid(pid, &status, 0), pid);
    CHECK(status, 0);
    wait_for(332);

    /* the end */
    CHECK(motet_rsr_endpoint_close(endpoint), 0);
    CHECK(motet_rsr_call(client, start, NULL, 3, 0, SOON, &reply), -ENOENT);
    CHECK(motet_rsr_count(own, &counts), 0);
    CHECK(counts.no_endpoint, 1);
    CHECK(counts.no_handler, 2);
    CHECK(counts.malformed, 0);
    CHECK(motet_rsr_endpoint_close(second), 0);
    CHECK(motet_rsr_detach(client), 0);
    CHECK(motet_rsr_detach(own), 0);
    CHECK(motet_rsr_request(own, start, "add", 0, 0, SOON), -EBADF);
    CHECK(motet_rsr_buffer_free(buffer), 0);
    CHECK(motet_node_close(near), 0);
    CHECK(motet_node_close(far), 0);
    puts("all calls did what they should");
    return 0;
}
