/* jacobi.c: the temperature of a square plate, hot at its upper edge, by Jacobi's method. The rows are distributed over processes that link by name and
 * exchange the rows at their borders as messages, while they compute the rows between.
 *
 *   cc -O2 -I include examples/c/jacobi.c -L target/release -lmotet -lm -o jacobi
 *   LD_LIBRARY_PATH=target/release ./jacobi [processes] [points along an edge] [sweeps]
 *
 * Prints the time of a sweep and compares every point, to the last bit, with a run in one process. */
#define _GNU_SOURCE
#include <motet.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Services: BELOW of every process for its lower neighbour, GATHER of the first process for all the others. */
enum { BELOW = 1, GATHER = 2 };
enum { TIMEOUT_S = 30 };

static int rank, ranks;
static size_t edge;
static long sweeps;
static char run_name[32]; /* node names are RUN_NAME-RANK */

static void check(int result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "jacobi: process %d: %s: %s\n", rank, what, strerror(-result));
        exit(1);
    }
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int64_t soon(void) { return now_ns() + TIMEOUT_S * INT64_C(1000000000); }

/* The first row of a process; the upper and lower edge belong to none. */
static size_t first_row(int of) { return 1 + (edge - 2) * (size_t)of / (size_t)ranks; }

/* Computes the rows from `first` up to, but not including, `last`. Index 0 of `from` and `to` is row `row`. Returns the largest change. */
static double sweep(double *to, const double *from, size_t row, size_t first, size_t last)
{
    double change = 0;
    for (size_t y = first; y < last; y++) {
        const double *here = from + (y - row) * edge;
        double *there = to + (y - row) * edge;
        for (size_t x = 1; x + 1 < edge; x++) {
            there[x] = 0.25 * (here[x - 1] + here[x + 1] + here[x - edge] + here[x + edge]);
            change = fmax(change, fabs(there[x] - here[x]));
        }
    }
    return change;
}

/* Memory for `rows` rows from `row` on, with the edges of the plate. */
static double *plate(size_t row, size_t rows)
{
    double *points = calloc(rows * edge, sizeof *points);
    if (!points)
        check(-ENOMEM, "calloc");
    for (size_t x = 0; row == 0 && x < edge; x++)
        points[x] = 100;
    return points;
}

/* ---- links and channels */

struct world {
    motet_node node;
    motet_context gather; /* of the first process: receives from all the others */
    motet_cq cq;
    uint64_t started;       /* operations of the queue */
    motet_channel above, below, first;
};

static motet_channel reach(struct world *world, int other, uint64_t service)
{
    char name[64];
    motet_link link;
    motet_channel channel;
    struct motet_receive_mode mode = MOTET_INIT(struct motet_receive_mode);
    int result;
    snprintf(name, sizeof name, "%s-%d", run_name, other);
    mode.kind = MOTET_RECEIVE_QUEUE;
    check(motet_link_open(world->node, name, soon(), &link), "motet_link_open");
    /* The node exists before its services are open. */
    while ((result = motet_channel_open(world->node, link, service, &mode, soon(), &channel)) == -ECONNREFUSED)
        usleep(1000);
    check(result, "motet_channel_open");
    return channel;
}

static void meet(struct world *world)
{
    char name[64];
    struct motet_node_options options = MOTET_INIT(struct motet_node_options);
    struct motet_receive_mode queue = MOTET_INIT(struct motet_receive_mode), tagged = MOTET_INIT(struct motet_receive_mode);
    snprintf(name, sizeof name, "%s-%d", run_name, rank);
    options.name = name;
    options.flags = MOTET_NODE_SINGLE;
    check(motet_node_open(&options, &world->node), "motet_node_open");
    check(motet_context_new(world->node, &world->gather), "motet_context_new");
    check(motet_cq_new(world->node, &world->cq), "motet_cq_new");
    queue.kind = MOTET_RECEIVE_QUEUE;
    tagged.kind = MOTET_RECEIVE_TAGGED;
    tagged.target = world->gather;
    check(motet_service_open(world->node, BELOW, &queue), "motet_service_open");
    check(motet_service_open(world->node, GATHER, &tagged), "motet_service_open");
    if (rank > 0) {
        world->above = reach(world, rank - 1, BELOW);
        world->first = reach(world, 0, GATHER);
    }
    if (rank + 1 < ranks)
        check(motet_channel_accept(world->node, BELOW, soon(), &world->below), "motet_channel_accept");
}

/* Starts to exchange a border row with a neighbour. Both rows stay in use until finish(). */
static void begin(struct world *world, motet_channel with, double *ours, double *theirs)
{
    struct motet_completion_options counted = MOTET_INIT(struct motet_completion_options);
    struct motet_source source = MOTET_INIT(struct motet_source);
    struct motet_outgoing row = MOTET_INIT(struct motet_outgoing);
    struct iovec body = { ours, edge * sizeof *ours };
    motet_operation operation;
    counted.cq = world->cq;
    counted.flags = MOTET_COMPLETION_ERRORS_ONLY; /* a successful operation is only counted */
    row.channel = source.channel = with;
    check(motet_message_post(world->node, &source, theirs, body.iov_len, &counted, &operation), "motet_message_post");
    int result;
    while ((result = motet_message_send_start(world->node, &row, &body, 1, &counted, &operation)) == -EAGAIN)
        check(motet_node_progress(world->node), "motet_node_progress");
    check(result, "motet_message_send_start");
    world->started += 2;
}

static void finish(struct world *world)
{
    struct motet_cq_counters counts = MOTET_INIT(struct motet_cq_counters);
    check(motet_cq_wait_counts(world->node, world->cq, world->started, 0, soon()), "motet_cq_wait_counts");
    check(motet_cq_counts(world->node, world->cq, &counts), "motet_cq_counts");
    if (counts.failed)
        check(-ECONNRESET, "a neighbour is gone");
}

/* Returns the largest number of all processes in the first one. */
static double largest(struct world *world, double ours)
{
    if (rank > 0) {
        check(motet_message_send(world->node, world->first, 0, &ours, sizeof ours, soon()), "motet_message_send");
        return ours;
    }
    for (int other = 1; other < ranks; other++) {
        struct motet_source any = MOTET_INIT(struct motet_source);
        double theirs;
        any.context = world->gather;
        check(motet_message_receive_from(world->node, &any, &theirs, sizeof theirs, soon(), NULL), "motet_message_receive_from");
        ours = fmax(ours, theirs);
    }
    return ours;
}

/* ---- one process */

static int compare(const double *points)
{
    double *from = plate(0, edge), *to = plate(0, edge);
    for (long n = 0; n < sweeps; n++) {
        sweep(to, from, 0, 1, edge - 1);
        double *swap = from;
        from = to;
        to = swap;
    }
    int differs = memcmp(points, from, edge * edge * sizeof *from) != 0;
    free(from);
    free(to);
    return differs;
}

static int work(void)
{
    struct world world = { 0 };
    size_t first = first_row(rank), last = first_row(rank + 1), rows = last - first + 2;
    double *from = plate(first - 1, rows), *to = plate(first - 1, rows), change = 0;
    meet(&world);
    int64_t start = now_ns();
    for (long n = 0; n < sweeps; n++) {
        if (rank > 0)
            begin(&world, world.above, from + edge, from);
        if (rank + 1 < ranks)
            begin(&world, world.below, from + (rows - 2) * edge, from + (rows - 1) * edge);
        change = last - first > 2 ? sweep(to, from, first - 1, first + 1, last - 1) : 0;
        finish(&world);
        change = fmax(change, sweep(to, from, first - 1, first, first + 1));
        if (last - first > 1)
            change = fmax(change, sweep(to, from, first - 1, last - 1, last));
        double *swap = from;
        from = to;
        to = swap;
    }
    double seconds = (double)(now_ns() - start) / 1e9;
    change = largest(&world, change);

    /* The first process gathers all rows: the tag is the sender's rank. */
    int wrong = 0;
    if (rank > 0) {
        check(motet_message_send(world.node, world.first, (uint64_t)rank, from + edge, (last - first) * edge * sizeof *from, soon()),
              "motet_message_send");
        check(motet_message_receive(world.node, world.first, NULL, 0, soon(), NULL), "the message to exit");
    } else {
        double *whole = plate(0, edge);
        motet_channel *others = calloc((size_t)ranks, sizeof *others);
        memcpy(whole, from, rows * edge * sizeof *from);
        for (int other = 1; other < ranks; other++) {
            struct motet_source source = MOTET_INIT(struct motet_source);
            struct motet_completion end = MOTET_INIT(struct motet_completion);
            size_t bytes = (first_row(other + 1) - first_row(other)) * edge * sizeof *whole;
            source.context = world.gather;
            source.tag = (uint64_t)other;
            check(motet_message_receive_from(world.node, &source, whole + first_row(other) * edge, bytes, soon(), &end), "rows");
            wrong |= end.length != bytes;
            others[other] = end.channel;
        }
        for (int other = 1; other < ranks; other++)
            check(motet_message_send(world.node, others[other], 0, NULL, 0, soon()), "the message to exit");
        memset(whole + (edge - 1) * edge, 0, edge * sizeof *whole);
        wrong |= compare(whole);
        printf("%d processes, %zu x %zu points, %ld sweeps: %.1f us each; last change %.3g; %s\n", ranks, edge, edge, sweeps,
               seconds * 1e6 / (double)sweeps, change, wrong ? "NOT the serial result" : "the serial result, to the last bit");
        free(whole);
        free(others);
    }
    motet_node_close(world.node);
    free(from);
    free(to);
    return wrong;
}

int main(int argc, char **argv)
{
    ranks = argc > 1 ? atoi(argv[1]) : 4;
    edge = argc > 2 ? strtoul(argv[2], NULL, 0) : 512;
    sweeps = argc > 3 ? atol(argv[3]) : 500;
    if (ranks < 1 || edge < (size_t)ranks + 2 || edge > 1 << 14 || sweeps < 1) {
        fprintf(stderr, "jacobi [processes] [points along an edge, more than processes + 1] [sweeps]\n");
        return 2;
    }
    snprintf(run_name, sizeof run_name, "jacobi-%d", getpid());
    for (int other = 1; other < ranks; other++) {
        pid_t child = fork();
        check(child < 0 ? -errno : 0, "fork");
        if (child == 0) {
            rank = other;
            exit(work());
        }
    }
    int wrong = work(), status;
    while (wait(&status) > 0)
        wrong |= status != 0;
    return wrong;
}
