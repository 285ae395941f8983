/* Hand-over of a connection to another process or program image. Usage: handed_over HOW READER [PYTHON_SCRIPT]
 *
 * Runs all cells of one way to hand over: every phase of the connection with every fate of the holder's own descriptor. Prints what was read.
 * READER is the image that reads.
 *
 * In a cell the *peer* connects and sends; the *holder* accepts, exchanges some messages, and hands the connection over as HOW says (table at
 * the end). Holder and reader count what they read and report it to the peer over the connection; the peer compares it with what it sent. The
 * cell's own process stops and continues the peer, and ends everything at the cell's time limit.
 *
 * HANDED_OVER_OUTSIDE=1: a message before the hand-over must arrive outside the kernel's socket (FIONREAD through the library reports more than
 * the kernel), and so must a part of what is unread; a cell that began otherwise is repeated. So no cell passes without ring bytes at stake.
 * (Of a large send something is outside TCP only while its reader keeps up: after some tries the message before is enough.)
 * On an overloaded machine readers sleep and all bytes take TCP: a cell that has begun so each time runs once more in a program of its own whose
 * waits keep their gates open (MOTET_PATIENCE). */
#include "handed_over.h"
#include <sys/ioctl.h>
#include "raw.h"
#include <linux/sched.h>
#include <sched.h>
#include <spawn.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

extern char **environ;

enum { EXCHANGES = 64, SOME = 300000, READ_BEFORE = 1 << 20, ALL_AT_ONCE = 5 << 20, MUCH = 8 << 20, LAST = 1 << 16, ANSWERED = 1 << 18, LIMIT_MS = 20000, TRIES = 40, STRICT_TRIES = 6, MISSED = 77 };
enum phase { FIRST, IDLE, UNREAD_BYTES, LARGE, ENDED, STOPPED, STOPPED_TILL_READ, STOPPED_IN_LARGE, PHASES };
enum fate { KEEPS, CLOSES, BOTH, FATES };
static const char *const phase_names[] = {"before the first byte", "idle", "bytes unread", "in a large send", "all is sent",
                                          "peer stopped", "peer stopped until all is read", "peer stopped in a large send"};
static const char ONLY_CELL[] = "HANDED_ON_CELL"; /* phase and fate, as two digits */
static const char *const fate_names[] = {"keeps", "closes", "reads too"};

static const char *reader, *script, *how;
static enum phase phase;
static enum fate fate;
static int control;
static char folder[] = "/tmp/motet-handed-on-XXXXXX", control_path[64], raised_path[64];
static _Atomic uint64_t *words;
static bool outside;

static bool is_large(void) { return phase == LARGE || phase == ENDED || phase == STOPPED_IN_LARGE; }
static uint64_t total(void) { return phase == ENDED ? ALL_AT_ONCE : is_large() ? MUCH : SOME; }
static size_t bulk(void) { return fate == BOTH ? 0 : ANSWERED; }

static void nap_us(long us)
{
    struct timespec time = {0, us * 1000};
    nanosleep(&time, NULL);
}

static void await_word(int word)
{
    while (words[word] == 0) nap_us(200);
}

/* A child that is killed when its parent ends. */
static pid_t fork_child(void)
{
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    return child;
}

static void look(int fd)
{
    struct pollfd ready = {fd, POLLIN, 0};
    for (int i = 0; i < 3; i++) CHECK(poll(&ready, 1, 0) >= 0);
}

/* ---- the peer ---- */

static void send_from(int fd, uint64_t from, uint64_t to, bool in_pieces)
{
    static unsigned char data[1 << 20];
    for (int i = 0; from < to; i++) {
        size_t n = in_pieces && i < 8 ? 8192 : sizeof data;
        if (n > to - from) n = (size_t)(to - from);
        make_bytes(data, from, n);
        send_all(fd, data, n);
        from += n;
        if (in_pieces && i < 8) nap_us(1000);
    }
}

/* Reads what holder and reader report until the end of file. True when it is correct. */
static bool hears_answers(int fd)
{
    static unsigned char data[PRELUDE + 4 * ANSWERED + (1 << 16)];
    size_t length = 0;
    for (ssize_t n; (n = recv(fd, data + length, sizeof data - length, 0)) != 0; length += (size_t)n) CHECK(n > 0);
    size_t at = phase == FIRST ? 0 : PRELUDE;
    for (size_t i = 0; i < at; i++) CHECK(data[i] == byte_at(i));
    unsigned hellos = 0, answers = 0, filler = 0;
    unsigned long long bytes = 0, sum = 0, crc = 0;
    CHECK((length - at) % RECORD == 0);
    for (; at < length; at += RECORD) {
        unsigned long long a, b, c;
        unsigned char expected[RECORD];
        char line[RECORD + 1];
        memcpy(line, data + at, RECORD);
        line[RECORD] = 0;
        make_bytes(expected, (uint64_t)filler * RECORD, RECORD);
        if (strspn(line, "h") == RECORD) hellos++;
        else if (memcmp(expected, data + at, RECORD) == 0) filler++;
        else {
            CHECK(sscanf(line, "a %llu %llu %llu", &a, &b, &c) == 3);
            answers++, bytes += a, crc = b, sum += c;
        }
    }
    unsigned readers = fate == BOTH && strcmp(how, "helper") != 0 ? 2 : 1;
    uint64_t from = words[WORD_READ_BEFORE];
    struct counted sent = {0};
    for (unsigned char piece[4096]; from < total(); from += sizeof piece) {
        size_t n = total() - from < sizeof piece ? (size_t)(total() - from) : sizeof piece;
        make_bytes(piece, from, n);
        count_bytes(&sent, piece, n);
    }
    bool right = hellos == readers * HELLOS && answers == readers && filler == bulk() / RECORD && bytes == sent.words[SLOT_BYTES] &&
                 sum == sent.words[SLOT_SUM] && (fate == BOTH || crc == sent.crc);
    if (!right)
        fprintf(stderr, "the peer heard %u hellos, %u answers, %u of %zu records, of %llu bytes where it had sent %llu\n", hellos, answers, filler,
                bulk() / RECORD, bytes, (unsigned long long)sent.words[SLOT_BYTES]);
    return right;
}

static void peer(int port)
{
    int fd = connect_to("4", port);
    uint64_t sent = 0;
    if (phase != FIRST) exchange(fd, 1, EXCHANGES);
    look(fd);
    await_word(WORD_OPEN);
    if (phase != FIRST) {
        send_all(fd, (char[RECORD]){0}, RECORD);
        await_word(WORD_LOOKED);
    }
    if (phase == UNREAD_BYTES || phase == STOPPED || phase == STOPPED_TILL_READ) send_from(fd, 0, sent = UNREAD, false);
    words[WORD_SENT] = 1;
    if (phase == STOPPED || phase == STOPPED_TILL_READ) raise(SIGSTOP);
    /* A large send is still in progress at the hand-over, however much the sockets hold. */
    if (is_large()) send_from(fd, sent, total() - LAST, false), sent = total() - LAST;
    if (phase != ENDED) await_word(WORD_HANDED);
    while (phase == LARGE && words[SLOT_BYTES] + words[SLOT_WORDS + SLOT_BYTES] == 0) nap_us(200);
    send_from(fd, sent, total(), !is_large());
    CHECK(shutdown(fd, SHUT_WR) == 0);
    words[WORD_ENDED] = 1;
    words[WORD_PEER] = hears_answers(fd);
    close(fd);
    exit(words[WORD_PEER] != 1);
}

/* ---- the holder: ways to hand over ---- */

static char in_text[16], out_text[16], bulk_text[16];
static pid_t child;
static FILE *pipe_end;
static int over[2];

static char **reader_arguments(const char *image, int in, int out, bool stdio)
{
    static char *arguments[8];
    snprintf(in_text, sizeof in_text, "%d", in);
    snprintf(out_text, sizeof out_text, "%d", out);
    snprintf(bulk_text, sizeof bulk_text, "%zu", bulk());
    char *all[] = {(char *)image, in_text, out_text, control_path, "1", bulk_text, stdio ? "stdio" : NULL, NULL};
    memcpy(arguments, all, sizeof all);
    return arguments;
}

static void redirect(int fd)
{
    CHECK(dup2(fd, 0) == 0 && dup2(fd, 1) == 1);
    close(fd);
}

static void by_fork(int fd)
{
    if ((child = fork_child()) == 0) {
        serve(fd, fd, control, CHILD, bulk(), 1);
        exit(0);
    }
}

static int run_child(void *fd)
{
    serve(*(int *)fd, *(int *)fd, control, CHILD, bulk(), 1);
    _exit(0);
}

static void by_clone(int fd)
{
    static char stack[1 << 18] __attribute__((aligned(16)));
    CHECK((child = clone(run_child, stack + sizeof stack, SIGCHLD, &fd)) > 0);
}

static void by_raw_clone(int fd)
{
    CHECK((child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)) >= 0);
    if (child == 0) run_child(&fd);
}

static void by_raw_clone3(int fd)
{
    struct clone_args how = {.exit_signal = SIGCHLD};
    CHECK((child = (pid_t)syscall(SYS_clone3, &how, sizeof how)) >= 0);
    if (child == 0) run_child(&fd);
}

/* fork and exec: the descriptor keeps its number. */
static void by_exec(int fd)
{
    if ((child = fork_child()) == 0) {
        execv(reader, reader_arguments(reader, fd, fd, false));
        _exit(127);
    }
}

static void by_inetd(int fd)
{
    if ((child = fork_child()) == 0) {
        redirect(fd);
        execv(reader, reader_arguments(reader, 0, 1, false));
        _exit(127);
    }
}

static void by_stdio(int fd)
{
    if ((child = fork_child()) == 0) {
        redirect(fd);
        execv(reader, reader_arguments(reader, 0, 1, true));
        _exit(127);
    }
}

static void by_clean(int fd)
{
    if ((child = fork_child()) == 0) {
        redirect(fd);
        execve(reader, reader_arguments(reader, 0, 1, false), (char *[]){NULL});
        _exit(127);
    }
}

/* A helper that has the connection and does not use it: all bytes are the holder's. */
static void by_helper(int fd)
{
    (void)fd;
    if ((child = fork_child()) == 0) {
        execve("/bin/true", (char *[]){"true", NULL}, (char *[]){NULL});
        _exit(127);
    }
    wait_for(child);
    child = 0;
}

static void by_vfork(int fd)
{
    char **arguments = reader_arguments(reader, 0, 0, false);
    if ((child = vfork()) == 0) {
        dup2(fd, 0);
        execv(reader, arguments);
        _exit(127);
    }
}

static void by_vfork_number(int fd)
{
    char **arguments = reader_arguments(reader, fd, fd, false);
    if ((child = vfork()) == 0) {
        execv(reader, arguments);
        _exit(127);
    }
}

static void by_spawn(int fd)
{
    CHECK(posix_spawn(&child, reader, NULL, NULL, reader_arguments(reader, fd, fd, false), environ) == 0);
}

static void by_spawn_actions(int fd)
{
    posix_spawn_file_actions_t actions;
    CHECK(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0);
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, fd, 0) == 0 && posix_spawn_file_actions_adddup2(&actions, fd, 1) == 0);
    CHECK(posix_spawn(&child, reader, &actions, NULL, reader_arguments(reader, 0, 1, false), environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
}

static const char *reader_command(int in, int out)
{
    static char command[1024];
    char **a = reader_arguments(reader, in, out, false);
    CHECK(snprintf(command, sizeof command, "exec '%s' %s %s %s %s %s", a[0], a[1], a[2], a[3], a[4], a[5]) < (int)sizeof command);
    return command;
}

static void by_system(int fd) { CHECK(system(reader_command(fd, fd)) == 0); }

static void by_popen(int fd) { CHECK((pipe_end = popen(reader_command(fd, fd), "r"))); }

/* Two shells, then the reader. */
static void by_chain(int fd)
{
    if ((child = fork_child()) == 0) {
        redirect(fd);
        setenv("READER", reader_command(0, 1) + strlen("exec "), 1);
        execl("/bin/sh", "sh", "-c", "sh -c \"$READER; exit \\$?\"; exit $?", (char *)NULL);
        _exit(127);
    }
}

/* The holder itself becomes the reader. */
static void by_itself(int fd) { CHECK(execv(reader, reader_arguments(reader, fd, fd, false)) == 0); }

static void set_uid_image(void)
{
    char command[1024];
    snprintf(command, sizeof command, "cp '%s' '%s' && chown 65534 '%s' && chmod 4755 '%s'", reader, raised_path, raised_path, raised_path);
    CHECK(system(command) == 0);
}

static void by_set_uid(int fd)
{
    if ((child = fork_child()) == 0) {
        redirect(fd);
        execv(raised_path, reader_arguments(raised_path, 0, 1, false));
        _exit(127);
    }
}

/* The worker starts before the connection exists. */
static void worker(void)
{
    if ((child = fork_child()) == 0) {
        int fd = passed(over[1]);
        close(over[0]), close(over[1]);
        serve(fd, fd, control, CHILD, bulk(), 1);
        exit(0);
    }
}

static void worker_image(void)
{
    if ((child = fork_child()) == 0) {
        close(over[0]);
        execv(reader, reader_arguments(reader, -over[1], 0, false));
        _exit(127);
    }
}

static void by_passing(int fd) { pass(over[0], fd); }

static const struct way {
    const char *name;
    void (*before)(void); /* called when the connection exists */
    void (*hand_on)(int fd);
} ways[] = {
    {"fork", NULL, by_fork}, {"clone", NULL, by_clone}, {"raw-clone", NULL, by_raw_clone}, {"raw-clone3", NULL, by_raw_clone3}, {"exec", NULL, by_exec}, {"inetd", NULL, by_inetd},
    {"stdio", NULL, by_stdio}, {"clean", NULL, by_clean}, {"helper", NULL, by_helper}, {"vfork", NULL, by_vfork}, {"vfork-number", NULL, by_vfork_number},
    {"spawn", NULL, by_spawn}, {"spawn-actions", NULL, by_spawn_actions}, {"system", NULL, by_system}, {"popen", NULL, by_popen},
    {"chain", NULL, by_chain}, {"itself", NULL, by_itself}, {"set-uid", set_uid_image, by_set_uid}, {"passing", worker, by_passing},
    {"passing-image", worker_image, by_passing},
};
static const struct way *way; /* NULL: the Python script hands over */

static bool blocks(void) { return strcmp(how, "system") == 0; }

/* ---- the holder ---- */

static uint64_t outside_of_tcp(int fd)
{
    int all = 0, kernel = 0;
    CHECK(ioctl(fd, FIONREAD, &all) == 0 && raw(SYS_ioctl, fd, FIONREAD, (long)&kernel, 0, 0) == 0);
    return all > kernel ? (uint64_t)(all - kernel) : 0;
}

static void miss(void)
{
    words[WORD_MISSED] = 1;
    for (;;) pause();
}

/* Brings the connection into the state in which it is handed over. */
static void prepare(int fd)
{
    static unsigned char data[READ_BEFORE];
    if (phase != FIRST) {
        exchange(fd, 0, EXCHANGES);
        make_bytes(data, 0, PRELUDE);
        send_all(fd, data, PRELUDE);
    }
    look(fd);
    words[WORD_OPEN] = 1;
    if (phase != FIRST) {
        int there = 0;
        while (there < RECORD) {
            CHECK(ioctl(fd, FIONREAD, &there) == 0);
            nap_us(100);
        }
        if (outside && outside_of_tcp(fd) == 0) miss();
        receive_all(fd, data, RECORD);
        look(fd);
        words[WORD_LOOKED] = 1;
    }
    await_word(WORD_SENT);
    if (is_large()) {
        receive_all(fd, data, sizeof data);
        for (size_t i = 0; i < sizeof data; i++) CHECK(data[i] == byte_at(i));
        words[WORD_READ_BEFORE] = sizeof data;
        look(fd);
        nap_us(3000);
    }
    /* A peer whose bytes do not fit into the sockets waits for their reader. */
    for (int i = 0; phase == ENDED && words[WORD_ENDED] == 0 && i < 300; i++) nap_us(1000);
    if (phase == STOPPED_IN_LARGE) words[WORD_STOP] = 1;
    if (phase >= STOPPED) await_word(WORD_STOPPED);
    bool strict = phase == UNREAD_BYTES || phase == STOPPED || phase == STOPPED_TILL_READ || (is_large() && phase != ENDED && words[WORD_STRICT]);
    if (outside && strict && outside_of_tcp(fd) == 0) miss();
}

static void *read_beside(void *fd)
{
    await_word(WORD_HANDED);
    serve(*(int *)fd, *(int *)fd, control, PARENT, 0, 1);
    return NULL;
}

static void holder(int listener)
{
    if (!way) {
        char number[3][16];
        snprintf(number[0], sizeof number[0], "%d", listener);
        snprintf(number[1], sizeof number[1], "%d", phase);
        snprintf(number[2], sizeof number[2], "%d", fate);
        CHECK(fcntl(listener, F_SETFD, 0) == 0);
        execlp("python3", "python3", script, how, reader, number[0], control_path, number[1], number[2], (char *)NULL);
        _exit(127);
    }
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, over) == 0);
    if (way->before) way->before();
    int fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0);
    close(listener);
    prepare(fd);
    pthread_t beside;
    bool reads_beside = blocks() && fate == BOTH;
    if (reads_beside) CHECK(pthread_create(&beside, NULL, read_beside, &fd) == 0);
    words[WORD_HANDED] = 1;
    way->hand_on(fd);
    if (fate == CLOSES) close(fd);
    if (reads_beside) pthread_join(beside, NULL);
    else if (fate == BOTH) serve(fd, fd, control, PARENT, 0, 1);
    if (pipe_end) CHECK(pclose(pipe_end) == 0);
    if (child > 0) wait_for(child);
    close(fd);
    exit(0);
}

/* ---- a cell ---- */

static void stop_and_continue(pid_t peer)
{
    int status;
    if (phase == STOPPED_IN_LARGE) {
        while (words[WORD_STOP] == 0 && words[WORD_MISSED] == 0) nap_us(200);
        kill(peer, SIGSTOP);
    }
    CHECK(waitpid(peer, &status, WUNTRACED) == peer);
    if (!WIFSTOPPED(status)) return;
    words[WORD_STOPPED] = 1;
    while (words[WORD_HANDED] == 0 && words[WORD_MISSED] == 0) nap_us(200);
    while (phase == STOPPED_TILL_READ && words[WORD_MISSED] == 0 && words[SLOT_BYTES] + words[SLOT_WORDS + SLOT_BYTES] < UNREAD) nap_us(200);
    if (phase != STOPPED_TILL_READ) nap_ms(30);
    kill(peer, SIGCONT);
}

static void cell(void)
{
    CHECK(setpgid(0, 0) == 0);
    int port = 0, listener = listen_on("4", &port);
    pid_t holding = fork_child();
    if (holding == 0) holder(listener);
    pid_t sending = fork_child();
    if (sending == 0) {
        close(listener);
        peer(port);
    }
    close(listener);
    if (phase >= STOPPED) stop_and_continue(sending);
    for (int left = 2; left > 0;) {
        int status;
        pid_t ended = waitpid(-1, &status, WNOHANG);
        if (words[WORD_MISSED]) kill(0, SIGKILL);
        if (ended == 0) {
            nap_us(300);
            continue;
        }
        left--;
        if (status != 0) fprintf(stderr, "the %s ended with %#x\n", ended == holding ? "holder" : "peer", status);
        if (status != 0) _exit(1);
    }
    _exit(0);
}

/* Returns the exit status of the cell, or -1 when it has hung. */
static int run_cell(bool strict)
{
    memset((void *)words, 0, WORDS * sizeof *words);
    words[WORD_STRICT] = strict;
    pid_t running = fork_child();
    if (running == 0) cell();
    setpgid(running, running);
    int status, waited = 0;
    while (waitpid(running, &status, WNOHANG) == 0 && waited++ < LIMIT_MS * 2) nap_us(500);
    kill(-running, SIGKILL);
    if (words[WORD_MISSED] && waited >= LIMIT_MS * 2) waitpid(running, &status, 0);
    if (words[WORD_MISSED]) return MISSED;
    if (waited < LIMIT_MS * 2) return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
    waitpid(running, &status, 0);
    return -1;
}

/* Runs this cell in a new process of this program, whose line is the cell's result. Returns whether it succeeded. */
static bool run_with_open_gates(char **argv)
{
    pid_t running = fork_child();
    if (running == 0) {
        char only[3] = {(char)('0' + (int)phase), (char)('0' + (int)fate), 0};
        CHECK(setenv("MOTET_PATIENCE", "300ms", 1) == 0 && setenv(ONLY_CELL, only, 1) == 0);
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    int status;
    CHECK(waitpid(running, &status, 0) == running);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool judge(char **argv)
{
    int result = MISSED;
    for (int i = 0; i < TRIES && result == MISSED; i++) {
        if (i > 0) nap_ms(i);
        result = run_cell(i < STRICT_TRIES);
    }
    if (result == MISSED && getenv(ONLY_CELL) == NULL) return run_with_open_gates(argv);
    uint64_t *slots = (uint64_t *)words;
    uint64_t bytes = slots[SLOT_BYTES] + slots[SLOT_WORDS + SLOT_BYTES], sum = slots[SLOT_SUM] + slots[SLOT_WORDS + SLOT_SUM];
    if (result == 0) {
        printf("%s, %s, holder %s: %llu bytes, sum %llu", how, phase_names[phase], fate_names[fate], (unsigned long long)bytes, (unsigned long long)sum);
        if (fate != BOTH) printf(", crc %08llx", (unsigned long long)slots[SLOT_WORDS + SLOT_CRC]);
        printf("\n");
        return true;
    }
    printf("%s, %s, holder %s: FAILED: %s, %llu bytes and %llu bytes, finished %llu and %llu, peer %llu\n", how, phase_names[phase],
           fate_names[fate], result < 0 ? "hung" : result == MISSED ? "nothing was ever outside of TCP" : "ended", (unsigned long long)slots[SLOT_BYTES],
           (unsigned long long)slots[SLOT_WORDS + SLOT_BYTES], (unsigned long long)slots[SLOT_FINISHED],
           (unsigned long long)slots[SLOT_WORDS + SLOT_FINISHED], (unsigned long long)slots[WORD_PEER]);
    return false;
}

/* Whether a process may borrow a descriptor of another that is neither its parent nor its child: the ptrace access rules of the system.
 * Where it may not, bytes that a stopped peer has left outside TCP stay there until it runs. */
static bool may_borrow(void)
{
    int ends[2], status;
    char byte;
    CHECK(pipe(ends) == 0);
    pid_t lender = fork_child();
    if (lender == 0) {
        close(ends[1]);
        _exit(read(ends[0], &byte, 1) != 0);
    }
    pid_t borrower = fork_child();
    if (borrower == 0) {
        int process = (int)syscall(SYS_pidfd_open, lender, 0);
        _exit(process < 0 || syscall(SYS_pidfd_getfd, process, ends[0], 0) < 0);
    }
    CHECK(waitpid(borrower, &status, 0) == borrower);
    close(ends[0]), close(ends[1]);
    wait_for(lender);
    return status == 0;
}

static bool is_a_cell(void)
{
    if (!way && strcmp(how, "python-forking") == 0) return fate == CLOSES;
    if (!way) return fate == (enum fate)((int)phase % FATES); /* such programs take long: one fate for each phase */
    if (blocks() && fate == CLOSES) return false;             /* it returns when the reader is done */
    if (strcmp(how, "helper") == 0) return fate == BOTH;
    return strcmp(how, "itself") != 0 || fate == CLOSES;
}

int main(int argc, char **argv)
{
    CHECK(argc >= 3);
    how = argv[1], reader = argv[2], script = argc > 3 ? argv[3] : NULL;
    outside = getenv("HANDED_OVER_OUTSIDE") != NULL;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (strcmp(ways[i].name, how) == 0) way = &ways[i];
    CHECK(way || script);
    const char *only = getenv(ONLY_CELL);
    setvbuf(stdout, NULL, _IOLBF, 4096);
    CHECK(mkdtemp(folder) && chmod(folder, 0755) == 0);
    snprintf(control_path, sizeof control_path, "%s/control", folder);
    snprintf(raised_path, sizeof raised_path, "%s/reader", folder);
    control = open(control_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    CHECK(control >= 0 && fchmod(control, 0666) == 0 && ftruncate(control, WORDS * sizeof *words) == 0);
    words = mmap(NULL, WORDS * sizeof *words, PROT_READ | PROT_WRITE, MAP_SHARED, control, 0);
    CHECK(words != MAP_FAILED);
    int failed = 0;
    bool borrows = may_borrow();
    for (phase = 0; phase < PHASES; phase++)
        for (fate = 0; fate < FATES; fate++) {
            if (!is_a_cell() || (only && (only[0] != '0' + (int)phase || only[1] != '0' + (int)fate))) continue;
            if (phase == STOPPED_TILL_READ && !borrows) printf("%s, %s, holder %s: left out\n", how, phase_names[phase], fate_names[fate]);
            else failed += !judge(argv);
        }
    unlink(raised_path);
    CHECK(unlink(control_path) == 0 && rmdir(folder) == 0);
    return failed != 0;
}
