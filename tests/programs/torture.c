/* Random socket calls: two processes with several connections use them in every way that programs do, and both ends compare what they sent
 * and received. Usage: torture SEED SECONDS [SEEDS]
 * One schedule for each seed, SEED, SEED + 1 ..., until the time is over, at most SEEDS.
 *
 * The first process supervises: it stops and continues the other two, and prints the state of all threads when nothing moves for
 * TORTURE_HANG seconds (10). TORTURE_VERBOSE=1 prints each seed. */
#include "torture.h"

static bool quiet_signals; /* TORTURE_WITHOUT holds letters of what is left out: s signals, f forks, o forks that take over, t stops, d dup */
static const char *without = "";

static bool with(char what) { return strchr(without, what) == NULL; }

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

/* ---- the two sides ---- */

static void interrupted(int number)
{
    (void)number;
    interruptions++;
}

static void step(struct half *half, unsigned char *data)
{
    if (half->finished) return;
    if (half->sends && half->done == half->quota) {
        half->doing = "shutdown";
        if (shutdown(half->fd, SHUT_WR) != 0) wrong(half, "it failed", 0);
        half->finished = 1;
        return;
    }
    int kept = half->fd, duplicate = with('d') && pick(half, 16) == 0 ? dup(half->fd) : -1;
    if (duplicate >= 0) half->fd = duplicate;
    (half->sends ? send_step : receive_step)(half, data);
    half->fd = kept;
    if (duplicate >= 0 && close(duplicate) != 0) wrong(half, "close of a duplicate", 0);
}

/* A child that does nothing, or one that continues the connection while this process waits for it. */
static void fork_step(struct half *half, unsigned char *data)
{
    bool takes_over = pick(half, 2) && with('o');
    half->doing = takes_over ? "a child takes over" : "a child does nothing";
    half->forks++;
    pid_t child = fork();
    if (child < 0) wrong(half, "fork", 0);
    if (child == 0) {
        for (int i = 0; takes_over && i < 30; i++) step(half, data);
        _exit(0);
    }
    int status = -1;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) wrong(half, "waitpid", child);
    if (status != 0) wrong(half, "the child failed", status);
}

static void *work(void *pointer)
{
    struct half *half = pointer;
    unsigned char *data = malloc(LARGEST + 4096);
    CHECK(data);
    while (!half->finished) {
        pthread_mutex_lock(&half->lock);
        if (!half->finished) {
            if (with('f') && half->forks < 6 && pick(half, 200) == 0) fork_step(half, data);
            else step(half, data);
        }
        bool nap = pick(half, 64) == 0;
        pthread_mutex_unlock(&half->lock);
        if (nap) sched_yield();
    }
    free(data);
    return NULL;
}

/* Sends signals until the workers are done. Most calls see none. */
static void disturb(pthread_t *threads, int count, uint64_t state)
{
    for (;;) {
        bool busy = false;
        for (int c = 0; c < CONNECTIONS; c++)
            for (int way = 0; way < 2; way++) {
                struct half *half = &shared->halves[c][getpid() == shared->sides[1]][way];
                busy |= !half->finished;
            }
        if (!busy) return;
        struct timespec nap = {0, 200000 + next_random(&state) % 3000000};
        nanosleep(&nap, NULL);
        if (!quiet_signals) pthread_kill(threads[next_random(&state) % (uint32_t)count], next_random(&state) % 2 ? SIGUSR1 : SIGUSR2);
    }
}

static void side(int side, int listener, int port)
{
    shared->sides[side] = getpid();
    struct sigaction action = {.sa_handler = interrupted, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    action.sa_flags = 0;
    sigaction(SIGUSR2, &action, NULL);
    int fds[CONNECTIONS];
    for (int c = 0; c < CONNECTIONS; c++) {
        fds[c] = side == 0 ? accept(listener, NULL, NULL) : connect_to("4", port);
        CHECK(fds[c] >= 0);
        struct half *half = shared->halves[c][side];
        half[0].fd = half[1].fd = fds[c];
        if (half->nonblocking) CHECK(fcntl(fds[c], F_SETFL, O_NONBLOCK) == 0);
    }
    close(listener);
    pthread_t threads[CONNECTIONS * 4];
    int count = 0;
    for (int c = 0; c < CONNECTIONS; c++)
        for (int way = 0; way < 2; way++) {
            struct half *half = &shared->halves[c][side][way];
            int several = c % 3 == 2 ? 2 : 1;
            while (several--) CHECK(pthread_create(&threads[count++], NULL, work, half) == 0);
        }
    disturb(threads, count, shared->seed + (uint64_t)side);
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    for (int c = 0; c < CONNECTIONS; c++) close(fds[c]);
    exit(0);
}

/* ---- the supervisor ---- */

static void prepare(uint64_t seed)
{
    memset(shared, 0, sizeof *shared);
    shared->seed = seed;
    uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    for (int c = 0; c < CONNECTIONS; c++)
        for (int from = 0; from < SIDES; from++) {
            next_random(&state);
            uint64_t quota = (1u << (10 + next_random(&state) % 14)) + next_random(&state) % 1000;
            for (int receives = 0; receives < 2; receives++) {
                struct half *half = &shared->halves[c][receives ? !from : from][receives];
                pthread_mutex_init(&half->lock, &attributes);
                half->quota = quota;
                half->stream = seed * 1000003 + (uint64_t)(c * 2 + from) * 0x100000000ull;
                half->state = state + (uint64_t)receives * 7919;
                half->connection = c, half->side = receives ? !from : from, half->sends = !receives;
            }
        }
    for (int c = 0; c < CONNECTIONS; c++)
        for (int s = 0; s < SIDES; s++)
            shared->halves[c][s][0].nonblocking = shared->halves[c][s][1].nonblocking = next_random(&state) % 3 == 0;
}

static void dump(void)
{
    for (int c = 0; c < CONNECTIONS; c++)
        for (int s = 0; s < SIDES; s++)
            for (int way = 0; way < 2; way++) {
                struct half *half = &shared->halves[c][s][way];
                fprintf(stderr, "  connection %d, side %d %s: %llu of %llu, %s %llu%s%s, %d forks\n", c, s,
                        half->sends ? "sends" : "receives", (unsigned long long)half->done, (unsigned long long)half->quota,
                        half->doing ? half->doing : "nothing yet", (unsigned long long)half->length,
                        half->nonblocking ? ", non-blocking" : "", half->finished ? ", finished" : "", half->forks);
            }
    for (int s = 0; s < SIDES; s++) {
        char command[200];
        snprintf(command, sizeof command, "for t in /proc/%d/task/*; do echo \"  side %d $(cat $t/comm $t/wchan $t/syscall | tr '\\n' ' ')\"; done >&2",
                 (int)shared->sides[s], s);
        unsetenv("LD_PRELOAD");
        if (system(command) != 0) fprintf(stderr, "  no threads\n");
    }
}

static uint64_t moved(void)
{
    uint64_t sum = 0;
    for (int c = 0; c < CONNECTIONS; c++)
        for (int s = 0; s < SIDES; s++)
            for (int way = 0; way < 2; way++) sum += shared->halves[c][s][way].done + (uint64_t)shared->halves[c][s][way].finished;
    return sum;
}

static void one(uint64_t seed, uint64_t hang)
{
    prepare(seed);
    fflush(stdout);
    int port = 0, listener = listen_on("4", &port);
    pid_t sides[SIDES];
    for (int s = 0; s < SIDES; s++) {
        CHECK((sides[s] = fork()) >= 0);
        if (sides[s] == 0) side(s, listener, port);
    }
    close(listener);
    uint64_t state = seed ^ 0xabcdef, last = 0, since = now_ms();
    int status, left = SIDES;
    bool failed = false;
    while (left > 0) {
        pid_t ended = waitpid(-1, &status, WNOHANG);
        if (ended > 0) {
            left--;
            failed |= status != 0;
        }
        if (moved() != last) last = moved(), since = now_ms();
        if (now_ms() - since > hang) {
            fprintf(stderr, "seed %llu: nothing has moved for %llu ms\n", (unsigned long long)seed, (unsigned long long)hang);
            dump();
            failed = true;
        }
        if (failed || shared->failed) break;
        nap_ms(1 + (int)(next_random(&state) % 20));
        pid_t one = sides[next_random(&state) % 2];
        if (with('t') && left == SIDES && next_random(&state) % 4 == 0) {
            shared->stops++; /* odd while a stop is in progress: threads stop one after another, some long after this kill() */
            kill(one, SIGSTOP);
            nap_ms(1 + (int)(next_random(&state) % 30));
            kill(one, SIGCONT);
            shared->stops++;
        }
    }
    if (failed || shared->failed) {
        fprintf(stderr, "seed %llu failed (status %#x)\n", (unsigned long long)seed, status);
        if (!getenv("TORTURE_KEEP")) kill(0, SIGKILL);
        for (;;) pause();
    }
    for (int c = 0; c < CONNECTIONS; c++)
        for (int from = 0; from < SIDES; from++) {
            struct half *sent = &shared->halves[c][from][0], *received = &shared->halves[c][!from][1];
            CHECK(sent->done == sent->quota && received->done == sent->quota);
        }
}

int main(int argc, char **argv)
{
    CHECK(argc >= 3);
    uint64_t seed = strtoull(argv[1], NULL, 0), first = seed, end = now_ms() + strtoull(argv[2], NULL, 0) * 1000;
    uint64_t most = argc > 3 ? strtoull(argv[3], NULL, 0) : UINT64_MAX;
    uint64_t hang = getenv("TORTURE_HANG") ? strtoull(getenv("TORTURE_HANG"), NULL, 0) * 1000 : 10000;
    if (getenv("TORTURE_WITHOUT")) without = getenv("TORTURE_WITHOUT");
    strict = getenv("TORTURE_STRICT") != NULL;
    quiet_signals = !with('s');
    CHECK(setpgid(0, 0) == 0 || getpgrp() == getpid());
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    do {
        uint64_t begun = now_ms();
        one(seed, hang);
        if (getenv("TORTURE_VERBOSE")) fprintf(stderr, "seed %llu: %llu ms\n", (unsigned long long)seed, (unsigned long long)(now_ms() - begun));
        seed++;
    } while (now_ms() < end && seed - first < most);
    if (getenv("TORTURE_VERBOSE")) fprintf(stderr, "%llu seeds\n", (unsigned long long)(seed - first));
    printf("torture from seed %llu on: every byte in its place\n", (unsigned long long)first);
}
