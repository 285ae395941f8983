/* A process installs a seccomp filter that kills it for any system call that its conversation does not need: before the first message, or in
 * the middle. The filter allows what a TCP conversation needs. Usage: confined early|late|privileges; the last one only gives up to gain
 * privileges, before the first message. */
#include "check.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static int early, privileges;

static void confine(void)
{
    static const int allowed[] = {SYS_sendto, SYS_recvfrom, SYS_write, SYS_exit_group, SYS_close, SYS_newfstatat, SYS_rt_sigprocmask};
    enum { COUNT = sizeof allowed / sizeof *allowed };
    struct sock_filter filter[COUNT + 3];
    filter[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < COUNT; i++)
        filter[1 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)allowed[i], COUNT - i, 0);
    filter[COUNT + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    filter[COUNT + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {COUNT + 3, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (privileges) return;
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void accepted(int fd)
{
    if (!early) exchange(fd, 0, 200);
    exchange(fd, 0, early ? 400 : 200);
    CHECK(close(fd) == 0);
}

static void connected(int fd)
{
    if (!early) exchange(fd, 1, 200);
    confine();
    exchange(fd, 1, early ? 400 : 200);
    static const char done[] = "400 exchanges\n"; /* stdio would need more system calls */
    CHECK(write(1, done, sizeof done - 1) == sizeof done - 1);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 4096);
    CHECK(argc == 2);
    privileges = strcmp(argv[1], "privileges") == 0;
    early = privileges || strcmp(argv[1], "early") == 0;
    two_processes("4", accepted, connected);
}
