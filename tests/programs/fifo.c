/* Two threads of unequal real-time priority (SCHED_FIFO) send on one connection, on one CPU. Usage: fifo COUNT
 * The thread of higher priority sends COUNT times, often in the middle of a send of the other one. Both must make progress. Prints "refused"
 * where the system grants no such priority. */
#include "check.h"
#include <sched.h>
#include <stdbool.h>
#include <sys/prctl.h>

enum { LOW = 10, HIGH = 20, SIZE = 64, LIMIT = 60 };
static int fd, count;
static volatile bool over;
static volatile long sent[2];

static bool real_time(int priority)
{
    struct sched_param param = {.sched_priority = priority};
    return pthread_setschedparam(pthread_self(), SCHED_FIFO, &param) == 0;
}

static void on_cpu(int cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    CHECK(pthread_setaffinity_np(pthread_self(), sizeof one, &one) == 0);
}

static void *low(void *unused)
{
    char data[SIZE] = {0};
    on_cpu(0);
    CHECK(real_time(LOW));
    for (; !over; sent[0]++) send_all(fd, data, sizeof data);
    return unused;
}

static void *high(void *unused)
{
    char data[SIZE] = {0};
    on_cpu(0);
    CHECK(real_time(HIGH));
    for (int i = 0; i < count; i++, sent[1]++) {
        struct timespec time = {0, 37000};
        nanosleep(&time, NULL);
        send_all(fd, data, sizeof data);
    }
    over = true;
    return unused;
}

/* Ends the program when no thread has sent for a long time. */
static void *watch(void *unused)
{
    long before[2] = {-1, -1};
    for (int still = 0; still < LIMIT;) {
        bool moved = before[0] != sent[0] || before[1] != sent[1];
        for (int i = 0; i < 2; i++) before[i] = sent[i];
        still = moved ? 0 : still + 1;
        nap_ms(250);
    }
    kill(getpid(), SIGKILL);
    return unused;
}

static void *allowed(void *answer)
{
    *(bool *)answer = real_time(HIGH);
    return NULL;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    count = atoi(argv[1]);
    pthread_t threads[3];
    bool may = false;
    CHECK(pthread_create(&threads[0], NULL, allowed, &may) == 0 && pthread_join(threads[0], NULL) == 0);
    if (!may) {
        printf("refused\n");
        return 0;
    }
    int port = 0, listener = listen_on("4", &port);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        static char data[65536];
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        int from = accept(listener, NULL, NULL);
        CHECK(from >= 0);
        exchange_until_settled(from, 0);
        uint64_t received = 0;
        for (ssize_t n; (n = recv(from, data, sizeof data, 0)) > 0;) received += (uint64_t)n;
        CHECK(received > 0 && received % SIZE == 0);
        exit(0);
    }
    fd = connect_to("4", port);
    close(listener);
    exchange_until_settled(fd, 1);
    if (sysconf(_SC_NPROCESSORS_ONLN) > 1) on_cpu(1);
    CHECK(pthread_create(&threads[2], NULL, watch, NULL) == 0);
    CHECK(pthread_create(&threads[0], NULL, low, NULL) == 0 && pthread_create(&threads[1], NULL, high, NULL) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(sent[1] == count);
    CHECK(close(fd) == 0);
    wait_for(child);
    printf("%d sends of the higher priority among those of the lower\n", count);
    return 0;
}
