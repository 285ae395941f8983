/* bootstrap.h: connection establishment over TCP, as peer.h says, for interfaces that do not start their own processes.
 *
 *   PROGRAM WHAT serve [CLIENTS SIZE MS]       prints "port N"; with `server` end 0, which prints the figures; else the end that answers
 *   PROGRAM WHAT call HOST PORT SIZES MS       the end that measures, or one of the clients
 *
 * An interface supplies a few more functions: its address as bytes, a peer from such bytes, and one turn of its progress. */
#ifndef BOOTSTRAP_H
#define BOOTSTRAP_H

#include "messages.h"

enum { MOST_ADDRESS = 1 << 16 };

static void interface_open(void);
static size_t interface_address(void *into, size_t room);
static void interface_peer(int end, const void *address, size_t size);
static void interface_close(void);
static void turn(void);

static int own_end, sharing;

/* Called between two empty polls. */
static inline void idle(void)
{
    if (sharing) sched_yield();
}

struct greeting {
    uint64_t end, cpu, size;
};

struct end {
    int fd;
    struct greeting greeting;
    char *address;
};

/* The only CPU of this process plus one; 0 if it has several. */
static uint64_t only_cpu(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) || CPU_COUNT(&set) != 1) return 0;
    return (uint64_t)sched_getcpu() + 1;
}

static struct end own(void)
{
    struct end end = {-1, {0, only_cpu(), 0}, malloc(MOST_ADDRESS)};
    if (!end.address) fail("memory");
    end.greeting.size = interface_address(end.address, MOST_ADDRESS);
    return end;
}

static void tell(int fd, const struct end *end)
{
    send_all(fd, &end->greeting, sizeof end->greeting);
    send_all(fd, end->address, end->greeting.size);
}

static struct end hear(int fd)
{
    struct end end = {.fd = fd};
    if (!receive_all(fd, &end.greeting, sizeof end.greeting) || end.greeting.size > MOST_ADDRESS) exit(1);
    end.address = malloc(end.greeting.size);
    if (!end.address) fail("memory");
    if (!receive_all(fd, end.address, end.greeting.size)) exit(1);
    return end;
}

/* Every end knows all ends in one order, as ranks do. */
static void know(struct end *ends, int count)
{
    uint64_t cpu = ends[own_end].greeting.cpu;
    for (int end = 0; end < count; end++) {
        interface_peer(end, ends[end].address, ends[end].greeting.size);
        if (end != own_end && cpu && cpu == ends[end].greeting.cpu) sharing = 1;
        free(ends[end].address);
    }
}

/* The server numbers its peers in the order of their connections, and sends all addresses to each. */
static void gather(struct end *ends, int clients)
{
    int listener = listen_anywhere();
    for (int end = 1; end <= clients; end++) {
        ends[end] = hear(accept_one(listener));
        ends[end].greeting.end = end;
    }
    interface_open(); /* not earlier: its files would outlive an end that is killed while it waits */
    ends[0] = own();
    uint64_t count = clients + 1;
    for (uint64_t end = 1; end < count; end++) {
        send_all(ends[end].fd, &end, sizeof end);
        send_all(ends[end].fd, &count, sizeof count);
        for (uint64_t other = 0; other < count; other++) tell(ends[end].fd, &ends[other]);
    }
    know(ends, (int)count);
}

static void join(int fd)
{
    static struct end ends[MOST_ENDS];
    struct end mine = own();
    uint64_t number, count;
    tell(fd, &mine);
    free(mine.address);
    if (!receive_all(fd, &number, sizeof number) || !receive_all(fd, &count, sizeof count)) exit(1);
    if (count > MOST_ENDS || number >= count) exit(1);
    own_end = (int)number;
    for (uint64_t end = 0; end < count; end++) ends[end] = hear(fd);
    know(ends, (int)count);
}

/* A barrier. A waiting end makes progress, as others may need that to finish their operations. */
static void meet(int fd)
{
    char byte = 0;
    send_all(fd, &byte, 1);
    ssize_t n;
    while ((n = recv(fd, &byte, 1, MSG_DONTWAIT)) < 0 && (errno == EAGAIN || errno == EINTR)) {
        turn();
        sched_yield();
    }
    if (n != 1) exit(1);
}

static int usage(const char *program)
{
    fprintf(stderr, "%s: usage: WHAT serve [CLIENTS SIZE MS] | WHAT call HOST PORT SIZES MS\n", program);
    return 2;
}

static int bootstrap(int argc, char **argv)
{
    if (argc < 3) return usage(argv[0]);
    const char *what = argv[1];
    int is_server = !strcmp(what, "server"), serves = !strcmp(argv[2], "serve");
    if (argc != (!serves ? 7 : is_server ? 6 : 3)) return usage(argv[0]);
    if (!are_sizes(!serves ? argv[5] : is_server ? argv[4] : "1")) return usage(argv[0]);
    begin_process();
    if (!serves) {
        int fd = connect_to(argv[3], argv[4]);
        interface_open();
        join(fd);
        meet(fd);
        if (is_server) {
            sharing = 1; /* there are more ends than CPUs */
            be_client(strtoull(argv[5], NULL, 10));
        } else {
            call_with(what, argv[5], atof(argv[6]), 0, WINDOW);
        }
        meet(fd);
    } else {
        static struct end ends[MOST_ENDS];
        int clients = is_server ? atoi(argv[3]) : 1;
        if (clients < 1 || clients >= MOST_ENDS) return usage(argv[0]);
        gather(ends, clients);
        for (int end = 1; end <= clients; end++) meet(ends[end].fd);
        if (is_server)
            serve_clients(clients, strtoull(argv[4], NULL, 10), atof(argv[5]));
        else
            answer_plans(1);
        for (int end = 1; end <= clients; end++) meet(ends[end].fd);
    }
    interface_close();
    return 0;
}

#endif
