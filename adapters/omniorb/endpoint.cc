/* endpoint.cc: server side: accepts connections and watches them.
 *
 * What it is:   omniORB's TCP endpoint, which binds, publishes and validates its addresses, with a watcher of this adapter instead of its
 *               own collection.
 * What it isn't: another kind of listener. Every peer is accepted from the kernel's backlog, with or without Motet. */
#include <atomic>
#include <cerrno>
#include <sys/socket.h>
#include <unistd.h>

#include "connection.h"

namespace motet_omniorb {

using omni::tcpConnection;
using omni::tcpEndpoint;

class Endpoint : public tcpEndpoint {
public:
    explicit Endpoint(const char *param) : tcpEndpoint(param) {}
    omni::giopConnection *AcceptAndMonitor(omni::giopConnection::notifyReadable_t readable, void *cookie) override;
    void Poke() override;

private:
    omni::giopConnection *accept();

    Watcher watcher_; /* outlives the connections: each is a user of this endpoint */
    std::atomic<bool> poked_{false};
};

/* omniORB wakes its own thread by a connection to itself. Here the watcher is woken. */
void Endpoint::Poke()
{
    poked_ = true;
    watcher_.wake();
}

omni::giopConnection *Endpoint::accept()
{
    int fd = ::accept(pd_socket, nullptr, nullptr);
    if (fd >= 0) {
        omni::tcpSocket::setBlocking(fd);
        return new Connection<tcpConnection>(watcher_, MOTET_ROLE_ACCEPTED, fd, this);
    }
    int why = errno;
    if (omniORB::trace(20) && why != EAGAIN) {
        omniORB::logger log;
        log << "accept() failed with error " << why << ", will try later\n";
    }
    /* The listener stays readable while descriptors or memory are exhausted: wait 10 ms. */
    if (why == EMFILE || why == ENFILE || why == ENOBUFS || why == ENOMEM) usleep(10000);
    return nullptr;
}

omni::giopConnection *Endpoint::AcceptAndMonitor(omni::giopConnection::notifyReadable_t readable, void *cookie)
{
    while (!poked_) {
        switch (watcher_.round(pd_socket, readable, cookie)) {
        case Watcher::LISTENER:
            if (omni::giopConnection *connection = accept()) return connection;
            break;
        case Watcher::FAILED:
            return nullptr;
        case Watcher::NOTHING:
            break;
        }
    }
    return nullptr;
}

omni::giopEndpoint *new_endpoint(const char *param) { return new Endpoint(param); }

} // namespace motet_omniorb
