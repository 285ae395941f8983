/* line.h: the stream under a connection. */
#ifndef MOTET_OMNIORB_LINE_H
#define MOTET_OMNIORB_LINE_H

#include <atomic>

#include "adapter.h"
#include "memory.h"

namespace motet_omniorb {

/* What a connection sends and receives through. Results are those of omniORB's connections: bytes, 0 when the deadline has passed,
 * -1 when the connection is of no more use. */
class Line {
public:
    /* Takes the descriptor under the engine. Where that is refused, stream() is 0 and the connection is omniORB's own. */
    Line(int fd, enum motet_role role);
    /* Before the descriptor is closed. */
    ~Line();
    Line(const Line &) = delete;
    Line &operator=(const Line &) = delete;

    int send(const void *data, size_t size, const omni_time_t &deadline);
    int recv(void *data, size_t size, const omni_time_t &deadline);
    /* From any thread: whoever is in send() or recv(), or comes later, gets -1. */
    void shutdown();

    motet_stream stream() const { return stream_; }

private:
    int receive(void *data, size_t size, const omni_time_t &deadline);

    motet_stream stream_ = 0;
    const int fd_;
    Arriving arriving_;
    std::atomic<bool> shut_{false};
};

} // namespace motet_omniorb

#endif
