/* random.c: without random numbers from the system there are no nodes, regions or links, because their keys could be guessed. */
#include "check.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "motet.h"

static void refuse_random(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getrandom, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

int main(void)
{
    static unsigned char memory[4096];
    struct motet_node_options options = MOTET_INIT(struct motet_node_options);
    struct motet_region_limits limits = MOTET_INIT(struct motet_region_limits);
    motet_node before, node = 1;
    motet_key key = 1;
    motet_link link = 1;
    void *base;
    char address[256];
    options.listen = "127.0.0.1:0";
    CHECK(motet_node_open(&options, &before), 0);
    CHECK(motet_node_address(before, address, sizeof address) > 0, 1);
    refuse_random();
    CHECK(motet_node_open(&options, &node), -EPERM);
    CHECK(node, 0);
    CHECK(motet_region_register(before, memory, sizeof memory, MOTET_REGION_ALL, &key), -EPERM);
    CHECK(key, 0);
    key = 1;
    CHECK(motet_region_alloc(before, 4096, MOTET_REGION_ALL, &base, &key), -EPERM);
    CHECK(key, 0);
    /* A session over TCP needs a random number. */
    char *tcp = strstr(address, "tcp://");
    CHECK(tcp != NULL, 1);
    CHECK(motet_link_open(before, tcp, 0, &link), -EHOSTUNREACH);
    CHECK(link, 0);
    CHECK(motet_link_region_limits(before, link, &limits), -EBADF);
    CHECK(motet_node_close(before), 0);
    puts("nothing goes without random numbers");
    return 0;
}
