/* watcher.cc: reports readable connections to the ORB.
 *
 * What it is:   what SocketCollection is for omniORB's own connections: a thread that sleeps until a connection that the ORB wants is
 *               readable, in the kernel or in a ring; and peek(), by which a worker waits for one connection alone.
 * What it isn't: on the path of a call. A server's thread makes its connection wanted before each upcall and reverts that afterwards, which
 *               is a few stores. Only a connection that has been wanted for a whole scan, or is wanted at once, is watched.
 *
 * A thread that sleeps on a stream keeps its gate closed, so that every byte goes through the kernel and wakes it. The sleep ends when a
 * connection that it covers is no longer wanted: its worker is about to receive and gets the fast path again.
 *
 * The ORB sends a reply before it calls clear(), and another worker may be in recv() by then. Watcher and receiver share no state: the
 * wanted flag is the watcher's, the receiver's wait is the engine's. */
#include "watcher.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <sys/eventfd.h>
#include <unistd.h>

namespace motet_omniorb {

using omni::SocketCollection;

/* omniORB scans once per scan_interval and watches what it finds. Here that takes two scans of half the interval. */
static int64_t scan_period()
{
    return ((int64_t)SocketCollection::scan_interval.s * 1000000000 + (int64_t)SocketCollection::scan_interval.ns) / 2;
}

/* ---------------------------------------------------------------- a connection's registration */

Watch::Watch(Watcher &watcher, omni::giopConnection *connection, int fd, motet_stream stream)
    : watcher_(watcher), connection_(connection), fd_(fd), stream_(stream)
{
    Watcher::Lock lock(watcher.lock_);
    watcher.all_.push_back(this);
}

static void remove_from(std::vector<Watch *> &from, const Watch *watch)
{
    for (Watch *&at : from)
        if (at == watch) at = nullptr;
}

/* The ORB has called clear() before. The destructor must not wait: the ORB may hold locks that a callback is waiting for. */
Watch::~Watch()
{
    Watcher::Lock lock(watcher_.lock_);
    for (size_t i = 0; i < watcher_.all_.size(); i++) {
        if (watcher_.all_[i] != this) continue;
        watcher_.all_[i] = watcher_.all_.back();
        watcher_.all_.pop_back();
        break;
    }
    remove_from(watcher_.readable_, this);
    if (covered_ >= 0) {
        watcher_.covered_[covered_] = nullptr;
        watcher_.wake();
    }
}

void Watch::set(int now, bool data_in_buffer)
{
    Watcher::Lock lock(watcher_.lock_);
    if (now == 2 && !wanted_) return;
    if (!wanted_) {
        wanted_ = true;
        since_ = watcher_.scans_;
    }
    at_once_ |= now != 0;
    buffered_ |= data_in_buffer;
    if (covered_ < 0 && (at_once_ || buffered_ || watcher_.sleeps_forever_)) {
        watcher_.sleeps_forever_ = false; /* one wakeup is enough */
        watcher_.quiet_scans_ = 0;
        watcher_.wake();
    }
    if (watcher_.waiting_ > 0) watcher_.changed_.notify_all();
}

void Watch::clear()
{
    Watcher::Lock lock(watcher_.lock_);
    wanted_ = at_once_ = buffered_ = false; /* the caller reads next, from the buffer first */
    if (covered_ >= 0) {
        watcher_.covered_[covered_] = nullptr;
        covered_ = -1;
        watcher_.wake();
    }
    remove_from(watcher_.readable_, this);
    /* The ORB may delete the connection after this call. */
    while (watcher_.in_callback_ == this) {
        watcher_.waiting_++;
        watcher_.changed_.wait(lock);
        watcher_.waiting_--;
    }
}

/* Waits for a connection without a stream. Returns 0 when it is readable, or a negative errno. */
static int wait_in_kernel(int fd, int64_t until)
{
    struct pollfd polled = {fd, POLLIN, 0};
    int64_t left = std::max<int64_t>(until - now(), 0);
    struct timespec timeout = {left / 1000000000, left % 1000000000};
    int found = kernel().ppoll(&polled, 1, &timeout, nullptr);
    return found > 0 ? 0 : found == 0 ? -ETIMEDOUT : -errno;
}

bool Watch::peek()
{
    Watcher::Lock lock(watcher_.lock_);
    auto limit = std::chrono::steady_clock::now() + std::chrono::nanoseconds(2 * scan_period());
    while (!wanted_ || peeked_) {
        watcher_.waiting_++;
        bool late = watcher_.changed_.wait_until(lock, limit) == std::cv_status::timeout;
        watcher_.waiting_--;
        if (late && (!wanted_ || peeked_)) return false;
    }
    if (covered_ >= 0) {
        watcher_.covered_[covered_] = nullptr;
        covered_ = -1;
        watcher_.wake();
    }
    bool readable = buffered_;
    if (!readable) {
        peeked_ = true;
        lock.unlock();
        int64_t until = now() + 2 * scan_period();
        int found;
        do found = stream_ ? motet_wait_any(&stream_, 1, until) : wait_in_kernel(fd_, until);
        while (found == -EINTR && now() < until);
        lock.lock();
        peeked_ = false;
        /* recv() reports any other error */
        readable = wanted_ && (buffered_ || (found != -ETIMEDOUT && found != -EINTR));
    }
    if (readable) wanted_ = at_once_ = buffered_ = false;
    if (watcher_.waiting_ > 0) watcher_.changed_.notify_all();
    return readable;
}

/* ---------------------------------------------------------------- the watching thread */

Watcher::Watcher() : wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Watcher::~Watcher()
{
    if (wake_fd_ >= 0) close(wake_fd_);
}

void Watcher::wake()
{
    static const uint64_t one = 1;
    ssize_t written = write(wake_fd_, &one, sizeof one);
    (void)written; /* EAGAIN: the wakeup is already pending */
}

void Watcher::cover(Watch *watch)
{
    watch->covered_ = (int)covered_.size();
    covered_.push_back(watch);
    streams_.push_back(watch->stream_);
    polled_.push_back({watch->fd_, POLLIN, 0});
}

/* Chooses the connections that the next sleep covers. Returns its end (INT64_MAX: no limit). Under the lock. */
int64_t Watcher::choose_covered(int64_t at)
{
    if (at >= next_scan_) {
        scans_++;
        next_scan_ = at + scan_period();
        quiet_scans_++;
    }
    bool waits_for_scan = false;
    for (Watch *watch : all_) {
        watch->covered_ = -1;
        if (!watch->wanted_) continue;
        if (watch->buffered_) {
            watch->wanted_ = watch->at_once_ = watch->buffered_ = false;
            readable_.push_back(watch);
        } else if (watch->peeked_) {
            waits_for_scan = true;
        } else if (watch->at_once_ || watch->since_ < scans_) {
            cover(watch);
        } else {
            waits_for_scan = true;
        }
    }
    if (waits_for_scan || !readable_.empty()) quiet_scans_ = 0;
    sleeps_forever_ = quiet_scans_ > 2 * SocketCollection::idle_scans;
    return sleeps_forever_ ? INT64_MAX : next_scan_;
}

/* False on an error of the kernel. */
bool Watcher::poll_kernel(int64_t until)
{
    struct timespec timeout = {0, 0}, *left = &timeout;
    if (until == INT64_MAX) {
        left = nullptr;
    } else if (int64_t rest = until > 0 ? until - now() : 0; rest > 0) {
        timeout.tv_sec = rest / 1000000000;
        timeout.tv_nsec = rest % 1000000000;
    }
    return kernel().ppoll(polled_.data(), polled_.size(), left, nullptr) >= 0 || errno == EINTR;
}

/* Sleeps. polled_ has the kernel's answer, with POLLIN added where a ring has data. */
bool Watcher::sleep_covered(int64_t until)
{
    const size_t first = polled_.size() - streams_.size();
    struct motet_wait wait;
    bool succeeded = true, done = false;
    motet_wait_begin(&wait, streams_.data(), (unsigned)streams_.size());
    while (!done && succeeded) {
        int step = motet_wait_step(&wait, 1);
        succeeded = poll_kernel(step == MOTET_WAIT_SLEEP ? until : 0);
        if (step == MOTET_WAIT_SLEEP) motet_wait_slept(&wait);
        for (size_t i = 0; i < streams_.size(); i++)
            if (motet_rx_ready(streams_[i]) & MOTET_RX_DATA) polled_[first + i].revents |= POLLIN;
        for (const struct pollfd &at : polled_) done |= at.revents != 0;
        done |= step == MOTET_WAIT_SLEEP || now() >= until;
    }
    motet_wait_end(&wait);
    return succeeded;
}

void Watcher::deliver(Lock &lock, omni::giopConnection::notifyReadable_t readable, void *cookie)
{
    for (size_t i = 0; i < readable_.size(); i++) {
        in_callback_ = readable_[i];
        if (!in_callback_) continue;
        omni::giopConnection *connection = in_callback_->connection_;
        lock.unlock();
        readable(cookie, connection);
        lock.lock();
        in_callback_ = nullptr;
        if (waiting_ > 0) changed_.notify_all();
    }
    readable_.clear();
}

Watcher::Event Watcher::round(int listener, omni::giopConnection::notifyReadable_t readable, void *cookie)
{
    Lock lock(lock_);
    covered_.clear();
    streams_.clear();
    polled_.clear();
    polled_.push_back({wake_fd_, POLLIN, 0});
    if (listener >= 0) polled_.push_back({listener, POLLIN, 0});
    const size_t first = polled_.size();
    int64_t until = choose_covered(now());
    if (!readable_.empty()) {
        deliver(lock, readable, cookie);
        return NOTHING;
    }
    lock.unlock();
    bool succeeded = sleep_covered(until);
    lock.lock();
    sleeps_forever_ = false;
    if (polled_[0].revents) {
        uint64_t rung;
        ssize_t got = read(wake_fd_, &rung, sizeof rung);
        (void)got;
    }
    bool listener_ready = listener >= 0 && polled_[1].revents;
    for (size_t i = 0; i < covered_.size(); i++) {
        Watch *watch = covered_[i];
        if (!watch) continue;
        watch->covered_ = -1;
        if (!polled_[first + i].revents || !watch->wanted_) continue;
        watch->wanted_ = watch->at_once_ = watch->buffered_ = false;
        readable_.push_back(watch);
    }
    if (listener_ready || !readable_.empty()) quiet_scans_ = 0;
    covered_.clear();
    deliver(lock, readable, cookie);
    return !succeeded ? FAILED : listener_ready ? LISTENER : NOTHING;
}

} // namespace motet_omniorb
