/* stream.cc: the stream under a connection: send, receive, deadlines, shutdown.
 *
 * What it is:   omniORB's send and receive of a connection. Each is one call of the engine when it need not wait.
 * What it isn't: a buffer. The ORB's pointers (for a large sequence the application's own) are passed on unchanged.
 *
 * Threads: one sends, another receives, any may shut down; the ORB has a lock for each direction. Sleeps are in the kernel, where a shutdown
 * of the connection ends them. */
#include "stream.h"

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

/* ---------------------------------------------------------------- construction and destruction */

Stream::Stream(int fd, enum motet_role role) : fd_(fd)
{
    struct motet_upgrade_options options = MOTET_INIT(struct motet_upgrade_options);
    options.role = role;
    if (motet_upgrade(fd, &options, &handle_) != 0) handle_ = 0;
}

/* For tests: appends one line about a stream that ends to the file MOTET_SHIM_REPORT, in the format of the sockets adapter. */
static void report(motet_stream handle, int fd)
{
    static const char *const path = std::getenv("MOTET_SHIM_REPORT");
    if (!path || !*path) return;
    struct motet_stream_info info = MOTET_INIT(struct motet_stream_info);
    if (motet_info(handle, &info) != 0) return;
    char line[256];
    int length = std::snprintf(line, sizeof line,
                               "adapter=omniorb pid=%ld fd=%d path=%u reason=%u sent_fast=%llu sent_tcp=%llu received_fast=%llu received_tcp=%llu\n",
                               (long)getpid(), fd, info.path, info.reason, (unsigned long long)info.sent_fast,
                               (unsigned long long)info.sent_tcp, (unsigned long long)info.received_fast,
                               (unsigned long long)info.received_tcp);
    int out = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (out < 0) return;
    struct stat is; /* only a regular file: a pipe could raise SIGPIPE */
    bool regular = fstat(out, &is) == 0 && S_ISREG(is.st_mode);
    ssize_t written = !regular ? 0 : write(out, line, (size_t)length);
    (void)written;
    close(out);
}

Stream::~Stream()
{
    if (!handle_) return;
    report(handle_, fd_);
    if (motet_close(handle_) > 0) {
        /* Unread bytes are lost: the peer gets a reset, as with TCP. */
        static const struct linger reset = {1, 0};
        setsockopt(fd_, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    }
}

/* ---------------------------------------------------------------- payload */

/* Waits until the descriptor has the event. Returns 0 when the time is up. */
static int wait_for_event(int fd, short event, int64_t until)
{
    struct pollfd polled = {fd, event, 0};
    struct timespec left = {0, 0};
    if (until == INT64_MAX) return kernel().ppoll(&polled, 1, nullptr, nullptr);
    if (int64_t rest = until - now(); rest > 0) left = {rest / SECOND, rest % SECOND};
    return kernel().ppoll(&polled, 1, &left, nullptr);
}

/* True when the deadline has passed, by a clock that lags some milliseconds and takes a few ns to read. A call that never waits, and that
 * the ORB repeats as long as it may, ends by this check alone. */
static bool is_past(const omni_time_t &deadline)
{
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME_COARSE, &wall);
    return wall.tv_sec > (time_t)deadline.s || (wall.tv_sec == (time_t)deadline.s && wall.tv_nsec >= (long)deadline.ns);
}

/* A send that need not wait uses the coarse clock only; the exact time left is computed when it has to wait. */
int Stream::send(const void *data, size_t size, const omni_time_t &deadline)
{
    if (deadline && is_past(deadline)) return 0;
    const int flags = MSG_NOSIGNAL | (deadline ? MSG_DONTWAIT : 0);
    int64_t until = 0;
    for (;;) {
        ssize_t sent = motet_send(handle_, data, size, flags);
        if (__builtin_expect(sent > 0, 1)) return (int)sent;
        if (shut_down_.load(std::memory_order_relaxed) || (sent != -EAGAIN && sent != -EINTR)) return -1;
        if (!deadline) continue;
        if (!until) until = monotonic(deadline);
        int writable = sent == -EAGAIN ? wait_for_event(fd_, POLLOUT, until) : 1;
        if (writable == 0) return 0;
        if (writable < 0 && errno != EINTR) return -1;
    }
}

/* Receives with the same use of clocks as send(). Without a deadline it sleeps in the kernel's own receive: one system call, where poll()
 * needs two. */
int Stream::receive_until(void *data, size_t size, const omni_time_t &deadline)
{
    if (deadline && is_past(deadline)) return 0;
    struct iovec iov = {data, size};
    int64_t until = 0;
    while (__builtin_expect(!shut_down_.load(std::memory_order_acquire), 1)) {
        ssize_t step = motet_recv_begin(handle_, &iov, 1, 0, 1);
        if (__builtin_expect(step > 0, 1)) return (int)step;
        if (step == -EINTR || step == -EAGAIN) continue;
        if (step != MOTET_KERNEL && step != MOTET_POLL) return -1;
        if (!until) until = monotonic(deadline);
        const bool polls = step == MOTET_POLL || until != INT64_MAX;
        int found = polls ? wait_for_event(fd_, POLLIN, until) : 1;
        if (step == MOTET_POLL) {
            motet_recv_wait_end(handle_);
        } else {
            ssize_t got = found > 0 ? kernel().recv(fd_, data, size, polls ? MSG_DONTWAIT : 0) : -1;
            int why = errno;
            motet_recv_end(handle_, got, 0);
            if (got > 0) return (int)got;
            if (got == 0 || (found > 0 && why != EINTR && why != EAGAIN)) return -1;
        }
        if (found == 0) return 0;
    }
    return -1;
}

int Stream::recv(void *data, size_t size, const omni_time_t &deadline)
{
    receive_buffer_.prepare(data, size);
    int got = receive_until(data, size, deadline);
    receive_buffer_.received(data, got > 0 ? got : 0);
    return got;
}

void Stream::shutdown()
{
    shut_down_.store(true, std::memory_order_release);
    motet_shutdown(handle_, SHUT_RDWR);
    motet_wake(handle_);
}

} // namespace motet_omniorb
