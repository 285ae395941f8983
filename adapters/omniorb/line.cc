/* line.cc: the stream under a connection: send, receive, deadlines, shutdown.
 *
 * What it is:   omniORB's two calls on whole connections, each one call of the engine's where nothing has to be waited for.
 * What it isn't: a buffer. The ORB's pointers (for a large sequence the application's own) go down as they are.
 *
 * Threads: one sends, another receives, any may shut down; the ORB has a lock for each direction. A stream has one deadline, which
 * is the receiver's; a sender with a deadline of its own never blocks in the engine but waits for room here. */
#include "line.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <ctime>
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
    int out = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (out < 0) return;
    ssize_t written = write(out, line, (size_t)length);
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

static int wait_for_room(int fd, int64_t deadline)
{
    int64_t left = deadline - now();
    if (left <= 0) return 0;
    struct pollfd polled = {fd, POLLOUT, 0};
    struct timespec timeout = {left / SECOND, left % SECOND};
    return kernel().ppoll(&polled, 1, &timeout, nullptr);
}

int Line::send(const void *data, size_t size, const omni_time_t &deadline)
{
    int64_t until = monotonic(deadline);
    int flags = MSG_NOSIGNAL | (deadline ? MSG_DONTWAIT : 0);
    for (;;) {
        if (deadline && now() >= until) return 0;
        ssize_t sent = motet_send(stream_, data, size, flags);
        if (__builtin_expect(sent > 0, 1)) return (int)sent;
        if (shut_.load(std::memory_order_relaxed) || (sent != -EAGAIN && sent != -EINTR)) return -1;
        if (sent == -EAGAIN && deadline && wait_for_room(fd_, until) < 0 && errno != EINTR) return -1;
    }
}

/* Without a deadline the sleep is the kernel's own receive: one system call where a wake-up by poll() would need two. */
int Line::recv_blocking(void *data, size_t size)
{
    struct iovec iov = {data, size};
    while (__builtin_expect(!shut_.load(std::memory_order_acquire), 1)) {
        ssize_t step = motet_recv_begin(stream_, &iov, 1, 0, 1);
        if (__builtin_expect(step > 0, 1)) return (int)step;
        if (step == MOTET_KERNEL) {
            ssize_t got = kernel().recv(fd_, data, size, 0);
            int why = errno;
            motet_recv_end(stream_, got, 0);
            if (got > 0) return (int)got;
            if (got == 0 || (why != EINTR && why != EAGAIN)) return -1;
        } else if (step == MOTET_POLL) {
            struct pollfd polled = {fd_, POLLIN, 0};
            kernel().ppoll(&polled, 1, nullptr, nullptr);
            motet_recv_wait_end(stream_);
        } else if (step != -EINTR && step != -EAGAIN) {
            return -1;
        }
    }
    return -1;
}

int Line::recv(void *data, size_t size, const omni_time_t &deadline)
{
    if (__builtin_expect(!deadline, 1)) return recv_blocking(data, size);
    int64_t until = monotonic(deadline);
    if (now() >= until) return 0;
    motet_set_deadline(stream_, until); /* motet_recv_begin() knows none, so it never has to be taken back */
    while (!shut_.load(std::memory_order_acquire)) {
        ssize_t got = motet_recv(stream_, data, size, 0);
        if (got > 0) return (int)got;
        if (got == -ETIMEDOUT) return 0;
        if (got != -EAGAIN && got != -EINTR) return -1;
    }
    return -1;
}

void Line::shutdown()
{
    shut_.store(true, std::memory_order_release);
    motet_shutdown(stream_, SHUT_RDWR);
    motet_wake(stream_);
}

} // namespace motet_omniorb
