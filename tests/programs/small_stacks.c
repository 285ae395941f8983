/* Calls on connections in threads with small stacks. Usage: small_stacks FIRST
 * Each call runs in a thread of its own with the smallest possible stack, and prints how much of it was used. FIRST "small": the first
 * messages of the connection also come from such a thread. Then a handler on an alternate stack of SIGSTKSZ bytes calls. */
#include "check.h"
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define BUDGET 4096 /* bytes for one call */
#define WHOLE 6144  /* bytes for a connection, from connect() to close() */
#define OLD_SIGSTKSZ 8192

static int fd, idle, out, port;
static const char *first;
static volatile sig_atomic_t handled;

/* ---- what is called */

static void do_send(void)
{
    char data[64] = {0};
    CHECK(send(fd, data, sizeof data, 0) == sizeof data);
}

static void do_receive(void)
{
    char data[64];
    CHECK(recv(fd, data, sizeof data, MSG_WAITALL) == sizeof data);
}

static void do_exchange(void)
{
    for (int i = 0; i < 40; i++) {
        do_send();
        do_receive();
    }
}

static void do_write_vector(void)
{
    static char data[256];
    static struct iovec parts[256];
    for (int i = 0; i < 256; i++) parts[i] = (struct iovec){&data[i], 1};
    CHECK(writev(fd, parts, 256) == 256);
}

static void do_read_vector(void)
{
    static char data[256];
    static struct iovec parts[256];
    for (int i = 0; i < 256; i++) parts[i] = (struct iovec){&data[i], 1};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 256};
    CHECK(recvmsg(fd, &message, MSG_WAITALL) == 256);
}

static void do_discard(void) { CHECK(recv(fd, NULL, 64, MSG_TRUNC | MSG_WAITALL) == 64); }

static void do_poll(void)
{
    struct pollfd in[2] = {{.fd = fd, .events = POLLIN}, {.fd = idle, .events = POLLIN}};
    CHECK(poll(in, 2, 5) >= 0 && poll(in, 1, 0) >= 0);
}

static void do_select(void)
{
    struct timeval time = {0, 5000};
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    FD_SET(idle, &in);
    CHECK(select((fd > idle ? fd : idle) + 1, &in, NULL, NULL, &time) >= 0);
}

static void do_wait_in_set(void)
{
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    CHECK(epoll_wait(set, &event, 1, 5) >= 0);
    CHECK(close(set) == 0);
}

static void do_send_file(void)
{
    off_t at = 0;
    CHECK(sendfile(fd, out, &at, 64) == 64);
}

static void do_socket(void)
{
    int of = 0, listener = listen_on("4", &of), one = connect_to("4", of), other = accept(listener, NULL, NULL);
    CHECK(other >= 0 && close(one) == 0 && close(other) == 0 && close(listener) == 0);
}

/* Another connection, from its first message to its end. */
static void do_connection(void)
{
    int kept = fd;
    fd = connect_to("4", port);
    do_exchange();
    CHECK(close(fd) == 0);
    fd = kept;
}

static void do_duplicate(void)
{
    int copy = dup(fd);
    CHECK(copy >= 0 && close(copy) == 0);
}

static void do_shutdown(void) { CHECK(shutdown(fd, SHUT_WR) == 0); }

static void do_close(void) { CHECK(close(fd) == 0); }

/* ---- threads */

struct call {
    const char *name;
    void (*call)(void);
    long used;
};

enum { STACK = 655360, PAINT = 0xa5 };

static void *run(void *of)
{
    struct call *x = of;
    x->call();
    return NULL;
}

/* A painted stack shows how much of it was used. A thread that does nothing shows libc's share. */
static long used_by(struct call *x)
{
    char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(stack != MAP_FAILED);
    memset(stack, PAINT, STACK);
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstack(&attributes, stack, STACK) == 0);
    CHECK(pthread_create(&thread, &attributes, run, x) == 0 && pthread_join(thread, NULL) == 0);
    long free = 0;
    while (free < STACK && (unsigned char)stack[free] == PAINT) free++;
    CHECK(munmap(stack, STACK) == 0);
    return STACK - free;
}

static void in_small_thread(struct call *x)
{
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) == 0);
    CHECK(pthread_create(&thread, &attributes, run, x) == 0 && pthread_join(thread, NULL) == 0);
}

static void nothing(void) {}

static void call(const char *name, void (*what)(void), bool measured)
{
    static long own;
    struct call x = {name, what, 0}, none = {"nothing", nothing, 0};
    if (own == 0) own = used_by(&none);
    if (measured) {
        long used = used_by(&x) - own;
        if (used > (what == do_connection ? WHOLE : BUDGET)) {
            printf("%s used %ld bytes of stack\n", name, used);
            exit(1);
        }
    } else {
        in_small_thread(&x);
    }
    printf("%s\n", name);
}

/* ---- a handler on an alternate stack */

static void handler(int number)
{
    (void)number;
    do_send();
    do_send();
    do_receive();
    do_poll();
    do_select();
    do_discard();
    do_duplicate();
    handled++;
}

static void by_handler(void)
{
    static char stack[OLD_SIGSTKSZ];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack}, none = {.ss_flags = SS_DISABLE};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    CHECK(sigaltstack(&alternate, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    for (int i = 0; i < 3; i++) CHECK(raise(SIGUSR1) == 0);
    CHECK(sigaltstack(&none, NULL) == 0 && handled == 3);
    printf("a handler\n");
}

/* ---- the two ends */

static void *echo(void *of)
{
    int to = (int)(intptr_t)of;
    char data[64];
    ssize_t n;
    while ((n = recv(to, data, sizeof data, 0)) > 0) send_all(to, data, (size_t)n);
    close(to);
    return NULL;
}

static void serve(int listener)
{
    for (;;) {
        pthread_t thread;
        int to = accept(listener, NULL, NULL);
        CHECK(to >= 0 && pthread_create(&thread, NULL, echo, (void *)(intptr_t)to) == 0 && pthread_detach(thread) == 0);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    first = argv[1];
    int listener = listen_on("4", &port), pair[2];
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        serve(listener);
    }
    fd = connect_to("4", port);
    CHECK(close(listener) == 0 && pipe(pair) == 0);
    idle = pair[0];
    FILE *file = tmpfile();
    char data[64] = {0};
    CHECK(file && (out = fileno(file)) >= 0 && write(out, data, 64) == 64);
    if (strcmp(first, "small") == 0)
        call("exchange", do_exchange, false);
    else
        do_exchange();
    for (int measured = 0; measured < 2; measured++) {
        call("exchange", do_exchange, measured);
        call("send", do_send, measured);
        call("receive", do_receive, measured);
        call("writev", do_write_vector, measured);
        call("recvmsg", do_read_vector, measured);
        do_send();
        call("poll", do_poll, measured);
        call("select", do_select, measured);
        call("epoll", do_wait_in_set, measured);
        call("discard", do_discard, measured);
        call("sendfile", do_send_file, measured);
        do_receive();
        call("poll", do_poll, measured);
        call("select", do_select, measured);
        call("epoll", do_wait_in_set, measured);
        call("duplicate", do_duplicate, measured);
        call("socket", do_socket, measured);
        call("connection", do_connection, measured);
        do_exchange();
    }
    by_handler();
    call("shutdown", do_shutdown, false);
    call("close", do_close, false);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    return 0;
}
