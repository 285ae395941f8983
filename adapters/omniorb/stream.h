/* stream.h: the stream under a connection. */
#ifndef MOTET_OMNIORB_STREAM_H
#define MOTET_OMNIORB_STREAM_H

#include <atomic>

#include "adapter.h"
#include "receive_buffer.h"

namespace motet_omniorb {

/* Sends and receives the payload of a connection. Results are those of omniORB's connections: bytes; 0 when the deadline has passed; -1 when
 * the connection is broken. */
class Stream {
public:
    /* Upgrades the descriptor. If the engine refuses it, handle() is 0 and omniORB's own code serves the connection. */
    Stream(int fd, enum motet_role role);
    /* Must run before the descriptor is closed. */
    ~Stream();
    Stream(const Stream &) = delete;
    Stream &operator=(const Stream &) = delete;

    int send(const void *data, size_t size, const omni_time_t &deadline);
    int recv(void *data, size_t size, const omni_time_t &deadline);
    /* May be called by any thread. Present and later calls of send() and recv() return -1. */
    void shutdown();

    motet_stream handle() const { return handle_; }

private:
    int receive_until(void *data, size_t size, const omni_time_t &deadline);

    motet_stream handle_ = 0;
    const int fd_;
    ReceiveBuffer receive_buffer_;
    std::atomic<bool> shut_down_{false};
};

} // namespace motet_omniorb

#endif
