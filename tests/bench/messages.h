/* messages.h: measurements of an interface for messages, over a few functions that the file of each interface supplies.
 *
 *   latency    half a round trip
 *   any        half a round trip; receives name no source, at both ends
 *   rate       one way, in windows of 64 messages or as many as the caller says, each window answered by 4 bytes (as OSU's osu_mbw_mr
 *              with one pair)
 *   bandwidth  as rate; a window has at most 16 MiB; one buffer at each end
 *   stream     as rate; a window has at most 512 MiB (as OSU's osu_bw, whose windows of 64 have no such limit)
 *   cold       one message after the other, each from and into the next of four buffers: more than the caches hold
 *   server     one end receives from any of several others that send windows of 16, each window answered
 *
 * Every figure is a line "MEDIAN MEAN COUNT" as peer.h says: ns for one way of a message; for `server` ns between two messages.
 * The number of operations of a block depends on the size only: a number found by a trial would be too small if the other end waited for
 * its CPU meanwhile. A block that would take longer than the whole time has fewer (of a stream always whole windows).
 *
 * An end polls while it waits. If it shares its CPU with another end it yields between two polls. */
#ifndef MESSAGES_H
#define MESSAGES_H

#include "peer.h"

#include <sched.h>
#include <sys/prctl.h>

/* The default number of messages of a window; the number of slots, which is the most that a window can have. */
enum { WINDOW = 64, SLOTS = 256 };
enum { OF_CLIENT = 16, BUFFERS = 4, ANSWER_SIZE = 4, ANY = -1, MOST_ENDS = 1 + WINDOW / OF_CLIENT };
enum { DATA = 1, PLAN, ANSWER, END };

/* --- functions that an interface supplies: ends are numbered, 0 is the server or the caller of a pair ------------------------------- */

/* Sends a message, whose buffer may be reused on return; receives a message. */
static void deliver(int to, int tag, const void *data, size_t size);
static void take(int from, int tag, void *into, size_t size);

/* Starts to send or to receive a message in a free slot (0 to SLOTS - 1). */
static void begin_deliver(int slot, int to, int tag, const void *data, size_t size);
static void begin_take(int slot, int from, int tag, void *into, size_t size);

/* Waits for slots 0 to count - 1, all started; or for any started slot of the first `count`. Returns which, and the sender. */
static void finish(int count);
static int finish_any(int count, int *from);

/* --- both ends of a pair --------------------------------------------------------------------------------------------------- */

/* The plan of the caller. A count of 0 ends the other end. */
struct plan {
    uint64_t what, size, count, buffers, window;
};
enum { PING, PING_ANY, FLOOD, STREAM };

struct run {
    struct plan plan;
    char *memory;
    int other;
};

static char *touched(size_t size)
{
    char *memory = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    if (!memory) fail("memory");
    memset(memory, 1, size);
    return memory;
}

static long least(double a, double b) { return (long)(a < b ? a : b); }

static int is_ping(const struct plan *plan) { return plan->what == PING || plan->what == PING_ANY; }

/* The source that receives name. */
static int source_of(const struct run *run) { return run->plan.what == PING_ANY ? ANY : run->other; }

static long window_of(const struct plan *plan)
{
    long fits = least(plan->window, (double)(plan->what == STREAM ? 512 << 20 : 16 << 20) / plan->size);
    return plan->buffers > 1 || fits < 1 ? 1 : fits;
}

static void flood_window(struct run *run, long first, int count, int sends)
{
    for (int i = 0; i < count; i++) {
        char *data = run->memory + (first + i) % run->plan.buffers * run->plan.size;
        if (sends)
            begin_deliver(i, run->other, DATA, data, run->plan.size);
        else
            begin_take(i, run->other, DATA, data, run->plan.size);
    }
    finish(count);
}

/* A block at the end that measures. */
static void caller_block(void *context, long count)
{
    struct run *run = context;
    char answer[ANSWER_SIZE];
    run->plan.count = count;
    deliver(run->other, PLAN, &run->plan, sizeof run->plan);
    if (is_ping(&run->plan)) {
        while (count-- > 0) {
            deliver(run->other, DATA, run->memory, run->plan.size);
            take(source_of(run), DATA, run->memory, run->plan.size);
        }
        return;
    }
    for (long done = 0, window = window_of(&run->plan); done < count; done += window) {
        flood_window(run, done, least(window, count - done), 1);
        take(run->other, ANSWER, answer, sizeof answer);
    }
}

/* The other end: follows plans until one has a count of 0. */
static void answer_plans(int other)
{
    struct run run = {.other = other};
    size_t have = 0;
    char answer[ANSWER_SIZE] = {0};
    for (;;) {
        take(other, PLAN, &run.plan, sizeof run.plan);
        if (run.plan.count == 0) break;
        if (have < run.plan.size * run.plan.buffers) {
            free(run.memory);
            run.memory = touched(have = run.plan.size * run.plan.buffers);
        }
        if (is_ping(&run.plan)) {
            for (uint64_t i = 0; i < run.plan.count; i++) {
                take(source_of(&run), DATA, run.memory, run.plan.size);
                deliver(other, DATA, run.memory, run.plan.size);
            }
            continue;
        }
        long count = run.plan.count;
        for (long done = 0, window = window_of(&run.plan); done < count; done += window) {
            flood_window(&run, done, least(window, count - done), 0);
            deliver(other, ANSWER, answer, sizeof answer);
        }
    }
    free(run.memory);
}

/* The number of operations of a block: enough that the clock and the plan do not count. */
static long operations(const struct plan *plan)
{
    if (is_ping(plan)) return plan->size > 4096 ? (4 << 20) / plan->size + 4 : 1000;
    if (plan->buffers > 1) return 1;
    if (plan->what == STREAM) return window_of(plan);
    long fits = (16 << 20) / plan->size;
    return fits < 1 ? 1 : fits > 16384 ? 16384 : fits;
}

/* The first size of a list "8,64,…", and the place of the next one; 0 if there is none. */
static size_t next_size(const char **at)
{
    char *end;
    *at += strspn(*at, ",");
    size_t size = strtoull(*at, &end, 10);
    if (end == *at) return 0;
    *at = end;
    return size;
}

/* All ends exit together, so that none leaves files that others have to remove. */
static int are_sizes(const char *at)
{
    do {
        if (next_size(&at) == 0) return 0;
    } while (*at);
    return 1;
}

static uint64_t pattern_of(const char *what)
{
    return !strcmp(what, "latency") ? PING : !strcmp(what, "any") ? PING_ANY : !strcmp(what, "stream") ? STREAM : FLOOD;
}

/* Measures with every size of a list and windows of this many messages. Prints a line for each. */
static void call_with(const char *what, const char *sizes, double ms, int other, int window)
{
    int is_cold = !strcmp(what, "cold");
    for (const char *at = sizes; *at;) {
        size_t size = next_size(&at);
        struct run run = {.plan = {pattern_of(what), size, 0, is_cold ? BUFFERS : 1, window}, .other = other};
        run.memory = touched(size * run.plan.buffers);
        long count = operations(&run.plan), few = least(4, count);
        double shortest = 1e300;
        for (int i = 0; i < 5 && run.plan.what != STREAM; i++) {
            double begun = now();
            caller_block(&run, few);
            double took = (now() - begun) / few;
            if (took < shortest) shortest = took;
        }
        if (run.plan.what != STREAM && shortest * count > ms * 1e6) count = least(count, ms * 1e6 / shortest + 1);
        if (run.plan.what == FLOOD && count > window) count -= count % window_of(&run.plan); /* whole windows */
        measure(caller_block, &run, count, ms, is_ping(&run.plan) ? 2 : 1);
        fflush(stdout);
        free(run.memory);
    }
    struct plan over = {0};
    deliver(other, PLAN, &over, sizeof over);
}

/* --- one server of several clients ------------------------------------------------------------------------------------------
 * Every receive is posted before its message arrives. That is best for all interfaces, and shm of libfabric 1.17 loses messages otherwise. */

struct serving {
    size_t size;
    char *memory;
    int clients, over;
    long owed;                           /* messages that clients may send and that have not arrived */
    int begun, of_window[MOST_ENDS];     /* receives that are posted; messages of each client's window that have arrived */
    int free_slots[WINDOW], free_count;
};

static void serve_begin(struct serving *serving)
{
    while (serving->free_count > 0 && serving->begun < serving->owed) {
        int slot = serving->free_slots[--serving->free_count];
        begin_take(slot, ANY, DATA, serving->memory + slot * serving->size, serving->size);
        serving->begun++;
    }
}

static void serve_block(void *context, long count)
{
    struct serving *serving = context;
    while (count-- > 0 && serving->owed > 0) {
        int from, slot;
        serve_begin(serving);
        slot = finish_any(WINDOW, &from);
        serving->free_slots[serving->free_count++] = slot;
        serving->begun--;
        serving->owed--;
        if (++serving->of_window[from] == OF_CLIENT) {
            char answer[ANSWER_SIZE] = {(char)serving->over};
            serving->of_window[from] = 0;
            if (!serving->over) serving->owed += OF_CLIENT;
            serve_begin(serving);
            deliver(from, ANSWER, answer, sizeof answer);
        }
    }
}

/* End 0, with `clients` further ends. Every client gets an answer before each window. */
static void serve_clients(int clients, size_t size, double ms)
{
    struct serving serving = {.size = size, .clients = clients, .memory = touched(size * WINDOW)};
    char answer[ANSWER_SIZE] = {0};
    for (int i = 0; i < WINDOW; i++) serving.free_slots[serving.free_count++] = i;
    serving.owed = clients * OF_CLIENT;
    serve_begin(&serving);
    for (int client = 1; client <= clients; client++) deliver(client, ANSWER, answer, sizeof answer);
    measure(serve_block, &serving, 64, ms, 1);
    fflush(stdout);
    serving.over = 1;
    while (serving.owed > 0) serve_block(&serving, serving.owed);
    free(serving.memory);
}

static void be_client(size_t size)
{
    char answer[ANSWER_SIZE], *memory = touched(size);
    for (take(0, ANSWER, answer, sizeof answer); !answer[0]; take(0, ANSWER, answer, sizeof answer)) {
        for (int i = 0; i < OF_CLIENT; i++) begin_deliver(i, 0, DATA, memory, size);
        finish(OF_CLIENT);
    }
    free(memory);
}

/* --- processes --------------------------------------------------------------------------------------------------------------- */

static void give_up(int signal)
{
    (void)signal;
    kill(getpid(), SIGTERM);
}

/* An end exits with its parent, and after a minute at the latest, so that one that hangs ends. The signal is SIGTERM, for which
 * interfaces clean up. */
static void begin_process(void)
{
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) || signal(SIGALRM, give_up) == SIG_ERR) fail("a process");
    alarm(60);
}

#endif
