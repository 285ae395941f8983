/* pingpong.c: two processes of one host, a TCP connection between them, and Motet's streams on it.
 *
 *   cc -O2 -I include examples/c/pingpong.c -L target/release -lmotet -o pingpong
 *   LD_LIBRARY_PATH=target/release ./pingpong [round trips] [bytes]
 *
 * Prints the median of seven runs, ns for one way, and the path that carried the payload. */
#define _GNU_SOURCE
#include <motet.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what, ssize_t error)
{
    fprintf(stderr, "pingpong: %s: %s\n", what, strerror((int)-error));
    exit(1);
}

static void run_on(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set); /* best effort: one CPU is fine too */
}

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static motet_stream upgrade(int fd, enum motet_role role)
{
    struct motet_upgrade_options options = MOTET_INIT(struct motet_upgrade_options);
    motet_stream s;
    options.role = role;
    int error = motet_upgrade(fd, &options, &s);
    if (error)
        fail("motet_upgrade", error);
    return s;
}

static void exchange(motet_stream s, char *data, size_t length, int first)
{
    for (int half = 0; half < 2; half++) {
        ssize_t n = half == !first ? motet_send(s, data, length, 0) : motet_recv(s, data, length, MSG_WAITALL);
        if (n != (ssize_t)length)
            fail(half == !first ? "motet_send" : "motet_recv", n < 0 ? n : -5);
    }
}

static int compare(const void *a, const void *b)
{
    double d = *(const double *)a - *(const double *)b;
    return (d > 0) - (d < 0);
}

int main(int argc, char **argv)
{
    long rounds = argc > 1 ? atol(argv[1]) : 100000;
    size_t length = argc > 2 ? strtoul(argv[2], NULL, 0) : 8;
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (rounds < 1 || length < 1 || bind(listener, (void *)&address, size) || listen(listener, 1)
        || getsockname(listener, (void *)&address, &size))
        fail("set-up", -22);

    enum { RUNS = 7, WARM = 1000 };
    char *data = calloc(1, length);
    pid_t child = fork();
    if (child == 0) {
        run_on(1);
        motet_stream s = upgrade(accept(listener, NULL, NULL), MOTET_ROLE_ACCEPTED);
        for (long i = 0; i < WARM + RUNS * rounds; i++)
            exchange(s, data, length, 0);
        motet_close(s);
        _exit(0);
    }
    run_on(0);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (void *)&address, size))
        fail("connect", -111);
    motet_stream s = upgrade(fd, MOTET_ROLE_CONNECTED);
    double runs[RUNS];
    for (int i = 0; i < WARM; i++)
        exchange(s, data, length, 1);
    for (int run = 0; run < RUNS; run++) {
        double start = now_ns();
        for (long i = 0; i < rounds; i++)
            exchange(s, data, length, 1);
        runs[run] = (now_ns() - start) / rounds / 2;
    }
    struct motet_stream_info info = MOTET_INIT(struct motet_stream_info);
    motet_info(s, &info);
    qsort(runs, RUNS, sizeof *runs, compare);
    printf("%zu bytes, one way: median %.0f ns (%.0f to %.0f); path: %s (%s); %llu bytes by wire, %llu by TCP\n", length,
           runs[RUNS / 2], runs[0], runs[RUNS - 1], info.path == MOTET_PATH_SHM ? "shm" : "tcp", motet_reason(info.reason),
           (unsigned long long)info.sent_fast, (unsigned long long)info.sent_tcp);
    motet_close(s);
    int status;
    waitpid(child, &status, 0);
    free(data);
    return !WIFEXITED(status) || WEXITSTATUS(status);
}
