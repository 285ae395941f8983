/* line.cc: the stream under a connection: send, receive, deadlines, shutdown.
 *
 * What it is:   omniORB's two calls on whole connections, each one call of the engine's where nothing has to be waited for.
 * What it isn't: a buffer. The ORB's pointers (for a large sequence the application's own) go down as they are.
 *
 * Threads: one sends, another receives, any may shut down; the ORB has a lock for each direction. Sleeps are this file's, in the
 * kernel, where a shutdown of the connection ends them. */
#include "line.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <ctime>
#include <sys/stat.h>
#include <unistd.h>

namespace motet_omniorb {

static constexpr int64_t SECOND = 1000000000;

int64_t now()
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * SECOND + time.tv_nsec;
}

int64_t monotonic(const omni_time_t &deadline)
{
    if (!deadline) return INT64_MAX;
    omni_time_t wall;
    omni_thread::get_time(wall);
    return now() + ((int64_t)deadline.s - (int64_t)wall.s) * SECOND + ((int64_t)deadline.ns - (int64_t)wall.ns);
}

const Kernel &kernel()
{
    static const Kernel calls = [] {
        void *library = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
        return Kernel{(decltype(&::recv))dlsym(library, "recv"), (decltype(&::ppoll))dlsym(library, "ppoll")};
    }();
    return calls;
}

/* ---------------------------------------------------------------- begin and end */

Line::Line(int fd, enum motet_role role) : fd_(fd)
{
    struct motet_upgrade_options options = MOTET_INIT(struct motet_upgrade_options);
    options.role = role;
    if (motet_upgrade(fd, &options, &stream_) != 0) stream_ = 0;
}

/* For the tests: one line about a stream that ends, in the words of the sockets voice. */
static void report(motet_stream stream, int fd)
{
    static const char *const path = std::getenv("MOTET_SHIM_REPORT");
    if (!path || !*path) return;
    struct motet_stream_info info = MOTET_INIT(struct motet_stream_info);
    if (motet_info(stream, &info) != 0) return;
    char line[256];
    int length = std::snprintf(line, sizeof line,
                               "voice=omniorb pid=%ld fd=%d path=%u reason=%u sent_fast=%llu sent_tcp=%llu received_fast=%llu received_tcp=%llu\n",
                               (long)getpid(), fd, info.path, info.reason, (unsigned long long)info.sent_fast,
                               (unsigned long long)info.sent_tcp, (unsigned long long)info.received_fast,
                               (unsigned long long)info.received_tcp);
    int out = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (out < 0) return;
    struct stat is; /* a pipe could raise a signal */
    bool regular = fstat(out, &is) == 0 && S_ISREG(is.st_mode);
    ssize_t written = !regular ? 0 : write(out, line, (size_t)length);
    (void)written;
    close(out);
}

Line::~Line()
{
    if (!stream_) return;
    report(stream_, fd_);
    if (motet_close(stream_) > 0) {
        /* Bytes that nobody has read are lost with it: the peer learns that as it would of TCP's. */
        static const struct linger reset = {1, 0};
        setsockopt(fd_, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    }
}

/* ---------------------------------------------------------------- payload */

/* Until the descriptor has the event. 0: the time is up. */
static int await(int fd, short event, int64_t until)
{
    struct pollfd polled = {fd, event, 0};
    struct timespec left = {0, 0};
    if (until == INT64_MAX) return kernel().ppoll(&polled, 1, nullptr, nullptr);
    if (int64_t rest = until - now(); rest > 0) left = {rest / SECOND, rest % SECOND};
    return kernel().ppoll(&polled, 1, &left, nullptr);
}

/* By a clock that is some milliseconds behind and takes a few nanoseconds to read: a call that never has to wait, and the ORB repeats as long
 * as it may, ends by this alone. */
static bool is_past(const omni_time_t &deadline)
{
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME_COARSE, &wall);
    return wall.tv_sec > (time_t)deadline.s || (wall.tv_sec == (time_t)deadline.s && wall.tv_nsec >= (long)deadline.ns);
}

/* What goes at once needs no better clock: the time that is left counts for what has to be waited for. */
int Line::send(const void *data, size_t size, const omni_time_t &deadline)
{
    if (deadline && is_past(deadline)) return 0;
    const int flags = MSG_NOSIGNAL | (deadline ? MSG_DONTWAIT : 0);
    int64_t until = 0;
    for (;;) {
        ssize_t sent = motet_send(stream_, data, size, flags);
        if (__builtin_expect(sent > 0, 1)) return (int)sent;
        if (shut_.load(std::memory_order_relaxed) || (sent != -EAGAIN && sent != -EINTR)) return -1;
        if (!deadline) continue;
        if (!until) until = monotonic(deadline);
        int room = sent == -EAGAIN ? await(fd_, POLLOUT, until) : 1;
        if (room == 0) return 0;
        if (room < 0 && errno != EINTR) return -1;
    }
}

/* The same. Without a deadline the sleep is the kernel's own receive: one system call where poll() would need two. */
int Line::receive(void *data, size_t size, const omni_time_t &deadline)
{
    if (deadline && is_past(deadline)) return 0;
    struct iovec iov = {data, size};
    int64_t until = 0;
    while (__builtin_expect(!shut_.load(std::memory_order_acquire), 1)) {
        ssize_t step = motet_recv_begin(stream_, &iov, 1, 0, 1);
        if (__builtin_expect(step > 0, 1)) return (int)step;
        if (step == -EINTR || step == -EAGAIN) continue;
        if (step != MOTET_KERNEL && step != MOTET_POLL) return -1;
        if (!until) until = monotonic(deadline);
        const bool polls = step == MOTET_POLL || until != INT64_MAX;
        int found = polls ? await(fd_, POLLIN, until) : 1;
        if (step == MOTET_POLL) {
            motet_recv_wait_end(stream_);
        } else {
            ssize_t got = found > 0 ? kernel().recv(fd_, data, size, polls ? MSG_DONTWAIT : 0) : -1;
            int why = errno;
            motet_recv_end(stream_, got, 0);
            if (got > 0) return (int)got;
            if (got == 0 || (found > 0 && why != EINTR && why != EAGAIN)) return -1;
        }
        if (found == 0) return 0;
    }
    return -1;
}

int Line::recv(void *data, size_t size, const omni_time_t &deadline)
{
    arriving_.announce(data, size);
    int got = receive(data, size, deadline);
    arriving_.came(data, got > 0 ? got : 0);
    return got;
}

void Line::shutdown()
{
    shut_.store(true, std::memory_order_release);
    motet_shutdown(stream_, SHUT_RDWR);
    motet_wake(stream_);
}

} // namespace motet_omniorb
