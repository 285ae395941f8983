/* watcher.h: reports readable connections to the ORB. */
#ifndef MOTET_OMNIORB_WATCHER_H
#define MOTET_OMNIORB_WATCHER_H

#include <condition_variable>
#include <mutex>
#include <poll.h>
#include <vector>

#include "adapter.h"

namespace motet_omniorb {

class Watcher;

/* A connection's registration in a watcher. The calls have the meaning of those of giopConnection. */
class Watch {
public:
    Watch(Watcher &watcher, omni::giopConnection *connection, int fd, motet_stream stream);
    ~Watch();
    Watch(const Watch &) = delete;
    Watch &operator=(const Watch &) = delete;

    void set(int now, bool data_in_buffer);
    void clear();
    bool peek();

private:
    friend class Watcher;
    Watcher &watcher_;
    omni::giopConnection *const connection_;
    const int fd_;
    const motet_stream stream_;
    /* Under the watcher's lock: */
    bool wanted_ = false;   /* the ORB wants a report when the connection becomes readable */
    bool at_once_ = false;  /* without waiting for the next scan */
    bool buffered_ = false; /* data is available already: the ORB read more than it needed */
    bool peeked_ = false;   /* a thread waits for this connection alone, in peek() */
    int covered_ = -1;      /* index in the watcher's current sleep, -1: none */
    uint64_t since_ = 0;    /* the scan in which it became wanted */
};

/* Watches the connections of an endpoint, or the outgoing connections of the process. One thread waits in round(). */
class Watcher {
public:
    Watcher();
    ~Watcher();
    Watcher(const Watcher &) = delete;
    Watcher &operator=(const Watcher &) = delete;

    enum Event { NOTHING, LISTENER, FAILED };
    /* Waits for one event at most. Calls back for each connection that became readable, which is not wanted after that. `listener` is a
     * further descriptor to wait for, or -1. */
    Event round(int listener, omni::giopConnection::notifyReadable_t readable, void *cookie);
    /* Makes round() return. Any thread. */
    void wake();

private:
    friend class Watch;
    using Lock = std::unique_lock<std::mutex>;
    int64_t choose_covered(int64_t at);
    bool sleep_covered(int64_t until);
    bool poll_kernel(int64_t until);
    void deliver(Lock &lock, omni::giopConnection::notifyReadable_t readable, void *cookie);
    void cover(Watch *watch);

    std::mutex lock_;
    std::condition_variable changed_;
    unsigned waiting_ = 0;          /* threads that wait on changed_ */
    std::vector<Watch *> all_;
    std::vector<Watch *> readable_; /* readable connections before their callback */
    Watch *in_callback_ = nullptr;  /* the connection whose callback runs */
    uint64_t scans_ = 0;
    int64_t next_scan_ = 0;
    unsigned quiet_scans_ = 0;    /* consecutive scans without a change */
    bool sleeps_forever_ = false; /* the current sleep has no time limit */
    const int wake_fd_;

    /* The current sleep. Used by the watcher's thread only, except that entries of covered_ are cleared by any thread under the lock. */
    std::vector<Watch *> covered_;
    std::vector<motet_stream> streams_;
    std::vector<struct pollfd> polled_; /* the wakeup descriptor, the listener, then those of covered_ */
};

} // namespace motet_omniorb

#endif
