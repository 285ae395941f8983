/* workqueue.c: a master gives tasks to worker processes; the tasks of a worker that is killed go to the others.
 *
 *   cc -O2 -I include examples/c/workqueue.c -L target/release -lmotet -o workqueue
 *   LD_LIBRARY_PATH=target/release ./workqueue [workers] [tasks] [workers that are killed]
 *
 * A task counts the primes in a range of numbers. Prints the tasks of each worker, and checks the sum. */
#define _GNU_SOURCE
#include <motet.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SERVICE = 1, NUMBERS = 2000, AHEAD = 3, MAX_WORKERS = 64, BATCH = 16, TIMEOUT_S = 30 };

static void check(int result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "workqueue: %s: %s\n", what, strerror(-result));
        exit(1);
    }
}

static int64_t soon(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (t.tv_sec + TIMEOUT_S) * INT64_C(1000000000) + t.tv_nsec;
}

static uint32_t primes(uint64_t task)
{
    uint32_t found = 0;
    for (uint64_t n = task * NUMBERS; n < (task + 1) * NUMBERS; n++) {
        uint64_t divisor = 2;
        while (divisor * divisor <= n && n % divisor)
            divisor++;
        found += n > 1 && divisor * divisor > n;
    }
    return found;
}

/* ---- a worker: the tag of a task and of its answer is the task's number; kills itself after `dies` tasks, if that is not 0 */

static int worker(const char *master, int dies)
{
    motet_node node;
    motet_link link;
    motet_channel channel;
    struct motet_receive_mode mode = MOTET_INIT(struct motet_receive_mode);
    struct motet_completion end = MOTET_INIT(struct motet_completion);
    int result;
    mode.kind = MOTET_RECEIVE_QUEUE;
    check(motet_node_open(NULL, &node), "motet_node_open");
    check(motet_link_open(node, master, soon(), &link), "motet_link_open");
    while ((result = motet_channel_open(node, link, SERVICE, &mode, soon(), &channel)) == -ECONNREFUSED)
        usleep(1000); /* the node exists before its service is open */
    check(result, "motet_channel_open");
    for (int done = 0; (result = motet_message_receive(node, channel, NULL, 0, INT64_MAX, &end)) == 0; done++) {
        if (dies && done == dies)
            raise(SIGKILL); /* during this task, with others queued */
        uint32_t found = primes(end.tag);
        check(motet_message_send(node, channel, end.tag, &found, sizeof found, INT64_MAX), "an answer");
    }
    motet_node_close(node);
    return result != -EPIPE && result != -ECONNRESET; /* there is no more work */
}

/* ---- the master */

struct task {
    int with; /* the worker that has it; -1: none; -2: it is done */
    uint32_t found;
};

struct crew {
    motet_channel channel;
    int alive, in_hand, done;
    uint32_t answers[AHEAD]; /* receive buffers, used in turn */
    int turn;
};

static struct task *tasks;
static struct crew crew[MAX_WORKERS];
static motet_node node;
static motet_cq cq;
static long count, next_task, reassigned;

/* Gives a worker free tasks, up to AHEAD at a time, so that it never waits for the master. */
static void feed(int to)
{
    struct crew *member = &crew[to];
    while (member->alive && member->in_hand < AHEAD) {
        while (next_task < count && tasks[next_task].with != -1)
            next_task++;
        if (next_task == count)
            return;
        struct motet_source source = MOTET_INIT(struct motet_source);
        struct motet_completion_options receive_options = MOTET_INIT(struct motet_completion_options);
        motet_operation operation;
        source.channel = member->channel;
        receive_options.cq = cq;
        receive_options.user_data = (uint64_t)to;
        /* Answers arrive in the order of tasks, so each buffer is free again when it is used next. */
        int result = motet_message_send(node, member->channel, (uint64_t)next_task, NULL, 0, soon());
        if (result < 0) { /* it has died: its receives complete with an error, which is handled there */
            if (member->in_hand == 0)
                member->alive = 0;
            return;
        }
        check(motet_message_post(node, &source, &member->answers[member->turn], sizeof(uint32_t), &receive_options, &operation),
              "motet_message_post");
        member->turn = (member->turn + 1) % AHEAD;
        member->in_hand++;
        tasks[next_task].with = to;
    }
}

/* A worker is gone: the others get its tasks. */
static void reassign(int dead)
{
    crew[dead].alive = 0;
    for (long task = 0; task < count; task++)
        if (tasks[task].with == dead) {
            tasks[task].with = -1;
            reassigned++;
            if (task < next_task)
                next_task = task;
        }
}

static int master(const char *name, int workers, int killed)
{
    struct motet_node_options options = MOTET_INIT(struct motet_node_options);
    struct motet_receive_mode mode = MOTET_INIT(struct motet_receive_mode);
    struct motet_completion ends[BATCH];
    long done = 0;
    options.name = name;
    mode.kind = MOTET_RECEIVE_QUEUE;
    check(motet_node_open(&options, &node), "motet_node_open");
    check(motet_service_open(node, SERVICE, &mode), "motet_service_open");
    check(motet_cq_new(node, &cq), "motet_cq_new");
    for (int i = 0; i < workers; i++) {
        check(motet_channel_accept(node, SERVICE, soon(), &crew[i].channel), "motet_channel_accept");
        crew[i].alive = 1;
    }
    for (int i = 0; i < workers; i++)
        feed(i);
    ends[0].size = sizeof ends[0];
    while (done < count) {
        int living = 0;
        for (int i = 0; i < workers; i++)
            living += crew[i].alive;
        if (living == 0)
            check(-ECONNRESET, "all workers are dead");
        int came = motet_cq_wait(node, cq, ends, BATCH, soon());
        check(came, "motet_cq_wait");
        for (int i = 0; i < came; i++) {
            int from = (int)ends[i].user_data;
            struct crew *member = &crew[from];
            if (ends[i].status) {
                if (member->alive)
                    reassign(from);
                continue;
            }
            /* The buffers are filled in turn, the oldest first. */
            uint32_t found = member->answers[(member->turn + AHEAD - member->in_hand) % AHEAD];
            struct task *task = &tasks[ends[i].tag];
            if (ends[i].tag >= (uint64_t)count || ends[i].length != sizeof found || task->with != from)
                check(-EPROTO, "an answer to nothing");
            task->with = -2;
            task->found = found;
            member->in_hand--;
            member->done++;
            done++;
        }
        for (int i = 0; i < workers; i++)
            feed(i);
    }
    uint64_t sum = 0, serial = 0;
    int dead = 0;
    for (long task = 0; task < count; task++) {
        sum += tasks[task].found;
        serial += primes((uint64_t)task);
    }
    for (int i = 0; i < workers; i++) {
        printf("worker %d: %d tasks%s\n", i, crew[i].done, crew[i].alive ? "" : ", then it was killed");
        dead += !crew[i].alive;
        motet_channel_close(node, crew[i].channel);
    }
    printf("%ld tasks, %ld of them given again; %llu primes, %s\n", count, reassigned, (unsigned long long)sum,
           sum == serial && dead == killed ? "as it should be" : "WRONG");
    motet_node_close(node);
    return sum != serial || dead != killed;
}

int main(int argc, char **argv)
{
    int workers = argc > 1 ? atoi(argv[1]) : 4, killed = argc > 3 ? atoi(argv[3]) : 1, status;
    char name[64];
    count = argc > 2 ? atol(argv[2]) : 400;
    if (workers < 1 || workers > MAX_WORKERS || killed < 0 || killed >= workers || count < 8L * workers) {
        fprintf(stderr, "workqueue [workers] [tasks, at least 8 for each] [workers that are killed, fewer than there are]\n");
        return 2;
    }
    snprintf(name, sizeof name, "workqueue-%d", getpid());
    tasks = calloc((size_t)count, sizeof *tasks);
    for (long task = 0; task < count; task++)
        tasks[task].with = -1;
    for (int i = 0; i < workers; i++) {
        pid_t child = fork();
        check(child < 0 ? -errno : 0, "fork");
        if (child == 0)
            exit(worker(name, i < killed ? 1 + i % 2 : 0));
    }
    int wrong = master(name, workers, killed);
    while (wait(&status) > 0)
        wrong |= !(WIFEXITED(status) && WEXITSTATUS(status) == 0) && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    free(tasks);
    return wrong;
}
