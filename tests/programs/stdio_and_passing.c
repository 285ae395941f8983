/* Connections that leave the adapter's reach. Usage: stdio_and_passing stdio (fdopen in the middle of the conversation) or stdio_and_passing passing
 * (SCM_RIGHTS to a sibling process) */
#include "check.h"

static const char *how;
enum { LINES = 500 };

static void by_stdio(int fd)
{
    FILE *in = fdopen(fd, "r"), *out = fdopen(dup(fd), "w");
    char line[200];
    for (int i = 0; i < LINES; i++) {
        CHECK(fgets(line, sizeof line, in));
        fprintf(out, "%d: %s", i, line);
        CHECK(fflush(out) == 0);
    }
    CHECK(!fgets(line, sizeof line, in));
    fclose(in);
    fclose(out);
}

static void by_passing(int fd)
{
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    pid_t child = fork(); /* after the conversation began; the child does not use what it inherited */
    CHECK(child >= 0);
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    char byte = 0;
    struct iovec iov = {&byte, 1};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    if (child == 0) {
        close(fd);
        CHECK(recvmsg(ends[1], &message, 0) == 1);
        int passed;
        memcpy(&passed, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof passed);
        exchange(passed, 0, 100);
        exit(0);
    }
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(sendmsg(ends[0], &message, 0) == 1);
    close(fd);
    wait_for(child);
}

static void accepted(int fd)
{
    exchange_until_settled(fd, 0);
    if (strcmp(how, "stdio") == 0)
        by_stdio(fd);
    else
        by_passing(fd);
}

static void connected(int fd)
{
    char line[200], back[200];
    uint64_t hash = 0;
    exchange_until_settled(fd, 1);
    if (strcmp(how, "stdio") == 0) {
        for (int i = 0; i < LINES; i++) {
            int n = snprintf(line, sizeof line, "line %d of many\n", i * 7);
            send_all(fd, line, (size_t)n);
            int want = snprintf(line, sizeof line, "%d: line %d of many\n", i, i * 7);
            receive_all(fd, back, (size_t)want);
            CHECK(memcmp(line, back, (size_t)want) == 0);
            hash = hash_more(hash, back, (size_t)want);
        }
        shutdown(fd, SHUT_WR);
    } else {
        exchange(fd, 1, 100);
    }
    CHECK(recv(fd, back, 1, 0) == 0);
    printf("%s: hash %016llx\n", how, (unsigned long long)hash);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    how = argv[1];
    signal(SIGPIPE, SIG_IGN);
    two_processes("4", accepted, connected);
}
