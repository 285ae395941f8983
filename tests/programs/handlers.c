/* Signal handlers that use sockets, and what a handler receives. Usage: handlers WAY COUNT
 *
 * WAY: malloc    COUNT times a handler creates or uses a connection by async-signal-safe calls, while the program is in malloc() most of
 *                the time
 *      counted   COUNT queued signals arrive while the thread exchanges messages: each is handled once, in order, with its value, on the
 *                alternate stack and under its mask
 *      asked     what sigaction() and signal() return, and handlers that run once (COUNT of them) */
#include "check.h"
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/time.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* programs still call them */

enum { SIZE = 16 };
static int port, count, fd = -1, used;
static volatile sig_atomic_t handled;

static void *echo(void *of)
{
    int to = (int)(intptr_t)of;
    char data[SIZE];
    for (ssize_t n; (n = recv(to, data, SIZE, 0)) > 0;) send_all(to, data, (size_t)n);
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

/* ---- malloc */

static void uses_sockets(int number)
{
    (void)number;
    int kept = errno;
    char data[SIZE] = {0};
    if (fd < 0) {
        fd = connect_to("4", port);
        used = 0;
    }
    send_all(fd, data, SIZE);
    receive_all(fd, data, SIZE);
    if (++used == 20) {
        close(fd);
        fd = -1;
    }
    handled++;
    errno = kept;
}

static void over_malloc(void)
{
    struct sigaction action = {.sa_handler = uses_sockets, .sa_flags = SA_RESTART};
    struct itimerval time = {{0, 300}, {0, 300}}, none = {{0, 0}, {0, 0}};
    void *blocks[64] = {NULL};
    uint64_t state = 1;
    /* A connection that the program's own calls have upgraded; the handler continues on it. */
    fd = connect_to("4", port);
    char data[SIZE] = {0};
    for (int i = 0; i < 64; i++) {
        send_all(fd, data, SIZE);
        receive_all(fd, data, SIZE);
    }
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &time, NULL) == 0);
    while (handled < count) {
        unsigned at = next_random(&state) % 64;
        free(blocks[at]);
        CHECK(blocks[at] = malloc(16 + next_random(&state) % 6000));
    }
    CHECK(setitimer(ITIMER_REAL, &none, NULL) == 0);
    printf("sockets in handlers over malloc\n");
}

/* ---- counted */

static pthread_t receiver;
static volatile int handled;
static volatile bool handled_wrong;
static char stack[32768];

static void handle_counted(int number, siginfo_t *info, void *context)
{
    sigset_t now;
    char here;
    (void)context;
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    bool right = number == SIGRTMIN + 1 && info->si_code == SI_QUEUE && info->si_value.sival_int == handled && info->si_pid == getpid();
    right &= sigismember(&now, SIGUSR2) == 1 && sigismember(&now, number) == 1 && sigismember(&now, SIGUSR1) == 0;
    right &= &here >= stack && &here < stack + sizeof stack;
    if (!right) handled_wrong = true;
    handled++;
}

static void *sends_signals(void *unused)
{
    for (int i = 0; i < count; i++) {
        union sigval value = {.sival_int = i};
        while (pthread_sigqueue(receiver, SIGRTMIN + 1, value) != 0) CHECK(errno == EAGAIN || errno == 0);
        for (int spin = i % 7 * 300; spin > 0; spin--) __asm__ volatile("");
        while (i - handled > 20) {} /* some may be pending */
    }
    return unused;
}

static void exchange_under_signals(void)
{
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_sigaction = handle_counted, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    char data[SIZE] = {0};
    pthread_t thread;
    sigset_t before, after;
    sigaddset(&action.sa_mask, SIGUSR2);
    receiver = pthread_self();
    fd = connect_to("4", port);
    CHECK(sigaltstack(&alternate, NULL) == 0 && sigaction(SIGRTMIN + 1, &action, NULL) == 0);
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &before) == 0);
    CHECK(pthread_create(&thread, NULL, sends_signals, NULL) == 0);
    /* All signals may arrive while the first exchange waits for a peer without a CPU: some exchanges follow without signals. */
    for (int n = 0; (handled < count || n < 500) && !handled_wrong; n++) {
        send_all(fd, data, SIZE);
        receive_all(fd, data, SIZE);
    }
    CHECK(pthread_join(thread, NULL) == 0 && !handled_wrong && handled == count);
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &after) == 0);
    for (int number = 1; number < 65; number++) CHECK(sigismember(&before, number) == sigismember(&after, number));
    close(fd);
    printf("%d signals were handled of in order\n", count);
}

/* ---- asked */

static void counts(int number)
{
    (void)number;
    handled++;
}

static void counts_too(int number) { counts(number); }

static void asks(void)
{
    struct sigaction plain = {.sa_handler = counts, .sa_flags = SA_RESTART}, info = {.sa_sigaction = handle_counted, .sa_flags = SA_SIGINFO}, old;
    sigaddset(&plain.sa_mask, SIGUSR2);
    CHECK(sigaction(SIGUSR1, &plain, NULL) == 0 && sigaction(SIGUSR1, &info, &old) == 0);
    CHECK(old.sa_handler == counts && !(old.sa_flags & SA_SIGINFO) && old.sa_flags & SA_RESTART && sigismember(&old.sa_mask, SIGUSR2));
    CHECK(sigaction(SIGUSR1, NULL, &old) == 0 && old.sa_sigaction == handle_counted && old.sa_flags & SA_SIGINFO);
    CHECK(signal(SIGUSR1, counts_too) == (void (*)(int))(uintptr_t)handle_counted && signal(SIGUSR1, counts) == counts_too);
    CHECK(sigaction(SIGUSR1, NULL, &old) == 0 && old.sa_handler == counts && !(old.sa_flags & SA_SIGINFO));
    CHECK(sigset(SIGUSR1, counts_too) == counts && raise(SIGUSR1) == 0 && handled == 1);
    CHECK(siginterrupt(SIGUSR1, 1) == 0 && raise(SIGUSR1) == 0 && handled == 2);
    CHECK(signal(SIGUSR1, SIG_IGN) == counts_too && raise(SIGUSR1) == 0 && handled == 2);
    CHECK(signal(SIGUSR1, SIG_DFL) == SIG_IGN && signal(SIGKILL, counts) == SIG_ERR && errno == EINVAL);
    CHECK(sigaction(SIGKILL, &plain, NULL) == -1 && errno == EINVAL && sigaction(65, NULL, &old) == -1 && errno == EINVAL);
    struct sigaction once = {.sa_handler = counts, .sa_flags = (int)SA_RESETHAND | SA_RESTART};
    struct itimerval soon = {.it_value = {0, 200}};
    char data[SIZE] = {0};
    fd = connect_to("4", port);
    handled = 0;
    for (int i = 0; i < count; i++) {
        CHECK(sigaction(SIGALRM, &once, &old) == 0 && old.sa_handler == SIG_DFL && setitimer(ITIMER_REAL, &soon, NULL) == 0);
        while (handled == i) {
            send_all(fd, data, SIZE);
            receive_all(fd, data, SIZE);
        }
    }
    close(fd);
    printf("sigaction() knows the program's handlers only\n");
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    count = atoi(argv[2]);
    int listener = listen_on("4", &port);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        serve(listener);
    }
    close(listener);
    if (strcmp(argv[1], "malloc") == 0) over_malloc();
    if (strcmp(argv[1], "counted") == 0) exchange_under_signals();
    if (strcmp(argv[1], "asked") == 0) asks();
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    return 0;
}
