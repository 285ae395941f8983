/* Runs a program under a system call filter like the default one of docker and podman. Usage: container refuse|kill PROGRAM ARGUMENT...
 *
 * The ranges are the numbers for x86-64 that moby's profiles/seccomp/default.json allows without capabilities (2026); every other call fails
 * with EPERM, clone3 with ENOSYS, and clone may make no namespaces. `kill`: what is not allowed ends the process, and neither are the calls
 * by which Motet finds and copies from its peers (process_vm_readv and process_vm_writev): a sandbox that Motet must not work under. */
#include "check.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static const struct range {
    unsigned from, to;
} allowed[] = {
    {0, 40}, {42, 55}, {57, 102}, {104, 133}, {137, 138}, {140, 152}, {154, 154}, {157, 160}, {162, 162}, {186, 211},
    {213, 226}, {228, 235}, {240, 245}, {247, 247}, {251, 255}, {257, 271}, {273, 278}, {280, 297}, {299, 299},
    {301, 303}, {305, 307}, {309, 311}, {314, 319}, {322, 322}, {324, 334}, {424, 424}, {434, 434}, {436, 437},
    {439, 439}, {441, 441}, {444, 449},
};

enum { RANGES = sizeof allowed / sizeof *allowed, NAMESPACES = 0x7e020000 };

int main(int count, char **words)
{
    CHECK(count >= 3);
    bool kills = strcmp(words[1], "kill") == 0;
    unsigned refuse = kills ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM;
    static struct sock_filter code[16 + 3 * RANGES];
    unsigned short at = 0;
#define ADD(...) code[at++] = (struct sock_filter)__VA_ARGS__
#define LOAD(field) ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field)))
#define RETURN(what) ADD(BPF_STMT(BPF_RET | BPF_K, what))
    LOAD(arch);
    ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0));
    RETURN(refuse);
    LOAD(nr);
    ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1));
    RETURN(SECCOMP_RET_ERRNO | ENOSYS);
    ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 1));
    RETURN(SECCOMP_RET_ALLOW);
    ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3));
    LOAD(args[0]);
    ADD(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NAMESPACES, 1, 0));
    RETURN(SECCOMP_RET_ALLOW);
    LOAD(nr);
    for (int i = 0; i < RANGES; i++) {
        if (kills && allowed[i].from <= SYS_process_vm_readv && allowed[i].to >= SYS_process_vm_writev) continue;
        ADD(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, allowed[i].from, 0, 2));
        ADD(BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, allowed[i].to, 1, 0));
        RETURN(SECCOMP_RET_ALLOW);
    }
    RETURN(refuse);
    struct sock_fprog filter = {at, code};
    if (geteuid() != 0) CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
    execvp(words[2], words + 2);
    CHECK(!"the program starts");
}
