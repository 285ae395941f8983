/* A process confines itself in the middle of a conversation to the calls of the conversation and one more. It makes that call on the
 * connection and continues. Usage: confined_calls HOW CALL
 *   HOW    prctl     by prctl()
 *          raw       by syscall(SYS_prctl) alone
 *          seccomp   by prctl(PR_SET_NO_NEW_PRIVS), then syscall(SYS_seccomp)
 *          alone     by syscall(SYS_seccomp) alone, where that is permitted
 *          child     in a forked child of the process that has talked, by prctl()
 *          flags     like child; O_NONBLOCK was changed before the fork
 *          parent    in a process that then forks another one, which talks
 *   CALL   close poll ppoll select pselect epoll write read readv recvmsg sendmsg shutdown dup fcntl socket, each by libc's function */
#include "check.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define LARGE (1 << 20)

static const char *how, *call;
static int set = -1;
static char large[LARGE];

static bool is(const char *name) { return strcmp(call, name) == 0; }

static const int *extra(void)
{
    static const struct {
        const char *name;
        int calls[6];
    } table[] = {
        {"close", {SYS_close}},       {"poll", {SYS_poll}},       {"ppoll", {SYS_ppoll}},     {"select", {SYS_select, SYS_pselect6}},
        {"pselect", {SYS_pselect6}},  {"epoll", {SYS_epoll_wait}}, {"write", {SYS_write}},    {"read", {SYS_read}},
        {"readv", {SYS_readv}},       {"recvmsg", {SYS_recvmsg}}, {"sendmsg", {SYS_sendmsg}}, {"shutdown", {SYS_shutdown}},
        {"dup", {SYS_dup, SYS_close}}, {"fcntl", {SYS_fcntl}},     {"socket", {SYS_socket, SYS_close}},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (is(table[i].name)) return table[i].calls;
    return table[0].calls;
}

static void confine(void)
{
    static const int base[] = {SYS_sendto, SYS_recvfrom, SYS_write, SYS_exit_group};
    static const int forking[] = {SYS_clone, SYS_wait4, SYS_set_robust_list, SYS_rseq, SYS_rt_sigprocmask, SYS_gettid};
    bool forks = strcmp(how, "parent") == 0;
    struct sock_filter filter[32];
    unsigned allowed[24], count = 0, at = 0;
    for (size_t i = 0; i < sizeof base / sizeof *base; i++) allowed[count++] = (unsigned)base[i];
    for (const int *more = extra(); more < extra() + 6; more++)
        if (*more || is("read")) allowed[count++] = (unsigned)*more;
    for (size_t i = 0; forks && i < sizeof forking / sizeof *forking; i++) allowed[count++] = (unsigned)forking[i];
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (unsigned i = 0; i < count; i++) filter[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], (unsigned char)(count - i), 0);
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {(unsigned short)at, filter};
    if (strcmp(how, "alone") == 0 && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0) return;
    if (strcmp(how, "raw") == 0 || strcmp(how, "alone") == 0) {
        CHECK(syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
        CHECK(syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
        return;
    }
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (strcmp(how, "seccomp") == 0)
        CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
    else
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* Makes the call. True when that ends the connection; false when the connection is unchanged. */
static bool make(int fd)
{
    struct timespec never = {10, 0};
    struct timeval later = {10, 0};
    struct pollfd polled = {fd, POLLIN, 0};
    struct iovec some = {large, 64};
    struct msghdr message = {.msg_iov = &some, .msg_iovlen = 1};
    struct epoll_event event;
    fd_set readable;
    char go = 'g';
    FD_ZERO(&readable);
    FD_SET(fd, &readable);
    send_all(fd, &go, 1); /* the peer sends 64 bytes, and receives what arrives */
    if (is("poll")) CHECK(poll(&polled, 1, 10000) == 1 && polled.revents == POLLIN);
    if (is("ppoll")) CHECK(ppoll(&polled, 1, &never, NULL) == 1 && polled.revents == POLLIN);
    if (is("select")) CHECK(select(fd + 1, &readable, NULL, NULL, &later) == 1);
    if (is("pselect")) CHECK(pselect(fd + 1, &readable, NULL, NULL, &never, NULL) == 1);
    if (is("epoll")) CHECK(epoll_wait(set, &event, 1, 10000) == 1 && event.data.fd == fd);
    if (is("read"))
        for (ssize_t done = 0; done < 64;) done += read(fd, large + done, (size_t)(64 - done));
    else if (is("readv"))
        CHECK(readv(fd, &some, 1) > 0);
    else if (is("recvmsg"))
        CHECK(recvmsg(fd, &message, MSG_WAITALL) == 64);
    else
        receive_all(fd, large, 64);
    if (is("write")) CHECK(write(fd, large, LARGE) == LARGE);
    if (is("sendmsg")) {
        some.iov_len = LARGE;
        CHECK(sendmsg(fd, &message, 0) == LARGE);
    }
    if (is("fcntl")) CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) == 0);
    if (is("dup")) {
        int copy = dup(fd);
        CHECK(copy >= 0 && close(fd) == 0);
        exchange(copy, 1, 50);
        CHECK(close(copy) == 0);
        return true;
    }
    if (is("socket")) CHECK(close(socket(AF_INET, SOCK_STREAM, 0)) == 0);
    exchange(fd, 1, 50);
    if (is("shutdown")) CHECK(shutdown(fd, SHUT_WR) == 0);
    if (is("close")) CHECK(close(fd) == 0);
    return is("close");
}

static void accepted(int fd)
{
    char go;
    exchange(fd, 0, 300);
    receive_all(fd, &go, 1);
    send_all(fd, large, 64);
    if (is("write") || is("sendmsg")) receive_all(fd, large, LARGE);
    exchange(fd, 0, 50);
    CHECK(recv(fd, &go, 1, 0) == 0);
}

static void talk(int fd)
{
    static const char done[] = "confined, and alive\n"; /* stdio would need more system calls */
    confine();
    if (strcmp(how, "parent") == 0) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child > 0) {
            wait_for(child);
            _exit(0);
        }
    }
    make(fd);
    CHECK(write(1, done, sizeof done - 1) == sizeof done - 1);
    _exit(0);
}

static void connected(int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (is("epoll")) CHECK((set = epoll_create1(0)) >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    exchange(fd, 1, 300);
    if (strcmp(how, "child") != 0 && strcmp(how, "flags") != 0) talk(fd);
    if (strcmp(how, "flags") == 0) {
        CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
        CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) == 0);
    }
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) talk(fd);
    close(fd);
    wait_for(child);
    exit(0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    how = argv[1];
    call = argv[2];
    two_processes("4", accepted, connected);
}
