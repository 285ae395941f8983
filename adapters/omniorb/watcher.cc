/* watcher.cc: real readiness: who hears when a connection has something to read.
 *
 * What it is:   what omniORB's SocketCollection is for its own connections: a thread that sleeps until one of those that the ORB
 *               wants to hear of is readable, in the kernel or on the wire; and peek(), by which a worker waits for one alone.
 * What it isn't: on the way of a call. A server's thread makes its connection wanted before each upcall and takes that back after it;
 *               both are a few stores. Only one that has been wanted for a whole scan, or at once, is looked at.
 *
 * A thread that sleeps on a stream keeps its gate closed, so that every byte comes through the kernel and wakes it. So the sleep
 * ends when a connection that it holds is no longer wanted: its worker is about to receive, and is to have the wire again.
 *
 * The ORB sends a reply before it calls clear(), and another worker may be in recv() by then. Nothing here is shared with a
 * receiver: the wanted flag is the watcher's, the receiver's wait is the engine's. */
#include "watcher.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <sys/eventfd.h>
#include <unistd.h>

namespace motet_omniorb {

using omni::SocketCollection;

/* omniORB scans once in this time and watches what it finds. Here that takes two scans, of half the length. */
static int64_t period()
{
    return ((int64_t)SocketCollection::scan_interval.s * 1000000000 + (int64_t)SocketCollection::scan_interval.ns) / 2;
}

/* ---------------------------------------------------------------- a connection's part */

Watch::Watch(Watcher &watcher, omni::giopConnection *connection, int fd, motet_stream stream)
    : watcher_(watcher), connection_(connection), fd_(fd), stream_(stream)
{
    Watcher::Lock lock(watcher.lock_);
    watcher.all_.push_back(this);
}

static void forget(std::vector<Watch *> &from, const Watch *watch)
{
    for (Watch *&at : from)
        if (at == watch) at = nullptr;
}

/* The ORB has called clear() before, and waits for nobody from then on: it may hold locks that a callback is waiting for. */
Watch::~Watch()
{
    Watcher::Lock lock(watcher_.lock_);
    for (size_t i = 0; i < watcher_.all_.size(); i++) {
        if (watcher_.all_[i] != this) continue;
        watcher_.all_[i] = watcher_.all_.back();
        watcher_.all_.pop_back();
        break;
    }
    forget(watcher_.found_, this);
    if (held_ >= 0) {
        watcher_.held_[held_] = nullptr;
        watcher_.ring();
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
    if (held_ < 0 && (at_once_ || buffered_ || watcher_.forever_)) {
        watcher_.forever_ = false; /* one ring is enough */
        watcher_.quiet_ = 0;
        watcher_.ring();
    }
    if (watcher_.waiting_ > 0) watcher_.changed_.notify_all();
}

void Watch::clear()
{
    Watcher::Lock lock(watcher_.lock_);
    wanted_ = at_once_ = buffered_ = false; /* whoever calls this reads next, the buffer first */
    if (held_ >= 0) {
        watcher_.held_[held_] = nullptr;
        held_ = -1;
        watcher_.ring();
    }
    forget(watcher_.found_, this);
    /* After this the connection may be deleted. */
    while (watcher_.told_ == this) {
        watcher_.waiting_++;
        watcher_.changed_.wait(lock);
        watcher_.waiting_--;
    }
}

/* The same for a connection that is none of the engine's. */
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
    auto patience = std::chrono::steady_clock::now() + std::chrono::nanoseconds(2 * period());
    while (!wanted_ || peeked_) {
        watcher_.waiting_++;
        bool late = watcher_.changed_.wait_until(lock, patience) == std::cv_status::timeout;
        watcher_.waiting_--;
        if (late && (!wanted_ || peeked_)) return false;
    }
    if (held_ >= 0) {
        watcher_.held_[held_] = nullptr;
        held_ = -1;
        watcher_.ring();
    }
    bool readable = buffered_;
    if (!readable) {
        peeked_ = true;
        lock.unlock();
        int64_t until = now() + 2 * period();
        int found;
        do found = stream_ ? motet_wait_any(&stream_, 1, until) : wait_in_kernel(fd_, until);
        while (found == -EINTR && now() < until);
        lock.lock();
        peeked_ = false;
        /* Any other error is for recv() to find. */
        readable = wanted_ && (buffered_ || (found != -ETIMEDOUT && found != -EINTR));
    }
    if (readable) wanted_ = at_once_ = buffered_ = false;
    if (watcher_.waiting_ > 0) watcher_.changed_.notify_all();
    return readable;
}

/* ---------------------------------------------------------------- the thread that watches */

Watcher::Watcher() : bell_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Watcher::~Watcher()
{
    if (bell_ >= 0) close(bell_);
}

void Watcher::ring()
{
    static const uint64_t one = 1;
    ssize_t written = write(bell_, &one, sizeof one);
    (void)written; /* full: it has been rung */
}

void Watcher::hold(Watch *watch)
{
    watch->held_ = (int)held_.size();
    held_.push_back(watch);
    streams_.push_back(watch->stream_);
    polled_.push_back({watch->fd_, POLLIN, 0});
}

/* What this sleep covers, and when it ends (INT64_MAX: when somebody rings). Under the lock. */
int64_t Watcher::choose(int64_t at)
{
    if (at >= next_scan_) {
        scans_++;
        next_scan_ = at + period();
        quiet_++;
    }
    bool young = false;
    for (Watch *watch : all_) {
        watch->held_ = -1;
        if (!watch->wanted_) continue;
        if (watch->buffered_) {
            watch->wanted_ = watch->at_once_ = watch->buffered_ = false;
            found_.push_back(watch);
        } else if (watch->peeked_) {
            young = true;
        } else if (watch->at_once_ || watch->since_ < scans_) {
            hold(watch);
        } else {
            young = true;
        }
    }
    if (young || !found_.empty()) quiet_ = 0;
    forever_ = quiet_ > 2 * SocketCollection::idle_scans;
    return forever_ ? INT64_MAX : next_scan_;
}

/* False on an error of the kernel's. */
bool Watcher::ask_kernel(int64_t until)
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

/* Sleeps; polled_ has the kernel's answer, with POLLIN added where there is something on the wire. */
bool Watcher::sleep(int64_t until)
{
    const size_t first = polled_.size() - streams_.size();
    struct motet_wait wait;
    bool fine = true, done = false;
    motet_wait_begin(&wait, streams_.data(), (unsigned)streams_.size());
    while (!done && fine) {
        int step = motet_wait_step(&wait, 1);
        fine = ask_kernel(step == MOTET_WAIT_SLEEP ? until : 0);
        if (step == MOTET_WAIT_SLEEP) motet_wait_slept(&wait);
        for (size_t i = 0; i < streams_.size(); i++)
            if (motet_rx_ready(streams_[i]) & MOTET_RX_DATA) polled_[first + i].revents |= POLLIN;
        for (const struct pollfd &at : polled_) done |= at.revents != 0;
        done |= step == MOTET_WAIT_SLEEP || now() >= until;
    }
    motet_wait_end(&wait);
    return fine;
}

void Watcher::tell(Lock &lock, omni::giopConnection::notifyReadable_t readable, void *cookie)
{
    for (size_t i = 0; i < found_.size(); i++) {
        told_ = found_[i];
        if (!told_) continue;
        omni::giopConnection *connection = told_->connection_;
        lock.unlock();
        readable(cookie, connection);
        lock.lock();
        told_ = nullptr;
        if (waiting_ > 0) changed_.notify_all();
    }
    found_.clear();
}

Watcher::Seen Watcher::round(int listener, omni::giopConnection::notifyReadable_t readable, void *cookie)
{
    Lock lock(lock_);
    held_.clear();
    streams_.clear();
    polled_.clear();
    polled_.push_back({bell_, POLLIN, 0});
    if (listener >= 0) polled_.push_back({listener, POLLIN, 0});
    const size_t first = polled_.size();
    int64_t until = choose(now());
    if (!found_.empty()) {
        tell(lock, readable, cookie);
        return NOTHING;
    }
    lock.unlock();
    bool fine = sleep(until);
    lock.lock();
    forever_ = false;
    if (polled_[0].revents) {
        uint64_t rung;
        ssize_t got = read(bell_, &rung, sizeof rung);
        (void)got;
    }
    bool came = listener >= 0 && polled_[1].revents;
    for (size_t i = 0; i < held_.size(); i++) {
        Watch *watch = held_[i];
        if (!watch) continue;
        watch->held_ = -1;
        if (!polled_[first + i].revents || !watch->wanted_) continue;
        watch->wanted_ = watch->at_once_ = watch->buffered_ = false;
        found_.push_back(watch);
    }
    if (came || !found_.empty()) quiet_ = 0;
    held_.clear();
    tell(lock, readable, cookie);
    return !fine ? FAILED : came ? LISTENER : NOTHING;
}

} // namespace motet_omniorb
