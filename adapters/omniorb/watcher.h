/* watcher.h: who hears when a connection has something to read. */
#ifndef MOTET_OMNIORB_WATCHER_H
#define MOTET_OMNIORB_WATCHER_H

#include <condition_variable>
#include <mutex>
#include <poll.h>
#include <vector>

#include "adapter.h"

namespace motet_omniorb {

class Watcher;

/* A connection's place in a watcher. The calls are those of giopConnection, with the same meaning. */
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
    /* All under the watcher's lock. */
    bool wanted_ = false;   /* the ORB wants to hear of it */
    bool at_once_ = false;  /* and not only from the next scan on */
    bool buffered_ = false; /* it has something already: the ORB read more than it needed */
    bool peeked_ = false;   /* a thread waits for this one alone */
    int held_ = -1;         /* its place in the watcher's present sleep */
    uint64_t since_ = 0;    /* the scan in which it became wanted */
};

/* One thread, the endpoint's or that of the connections made by this process, waits in round(). */
class Watcher {
public:
    Watcher();
    ~Watcher();
    Watcher(const Watcher &) = delete;
    Watcher &operator=(const Watcher &) = delete;

    enum Seen { NOTHING, LISTENER, FAILED };
    /* Waits for the next event at most; calls back for each connection that became readable, which is not wanted from then on.
     * `listener` is another descriptor to wait for, or -1. */
    Seen round(int listener, omni::giopConnection::notifyReadable_t readable, void *cookie);
    /* Makes round() return. */
    void ring();

private:
    friend class Watch;
    using Lock = std::unique_lock<std::mutex>;
    int64_t choose(int64_t at);
    bool sleep(int64_t until);
    bool ask_kernel(int64_t until);
    void tell(Lock &lock, omni::giopConnection::notifyReadable_t readable, void *cookie);
    void hold(Watch *watch);

    std::mutex lock_;
    std::condition_variable changed_;
    unsigned waiting_ = 0;          /* threads on changed_ */
    std::vector<Watch *> all_;
    std::vector<Watch *> found_;    /* to be called back */
    Watch *told_ = nullptr;         /* is being called back */
    uint64_t scans_ = 0;
    int64_t next_scan_ = 0;
    unsigned quiet_ = 0;            /* scans without anything new */
    bool forever_ = false;          /* sleeps until somebody rings */
    const int bell_;

    /* The present sleep: the watcher's thread alone, but for entries of held_, which anybody clears under the lock. */
    std::vector<Watch *> held_;
    std::vector<motet_stream> streams_;
    std::vector<struct pollfd> polled_; /* the bell, the listener, then those of held_ */
};

} // namespace motet_omniorb

#endif
