/* active.cc: client side: connects; watches connections that serve callbacks (bidirectional GIOP).
 *
 * What it is:   omniORB's TCP address, whose connections become connections of this adapter after TCP has made them, and one watcher for all
 *               of them.
 * What it isn't: a search for peers. The engine finds out over the connection whether the other end runs with Motet. */
#include <atomic>

#include "connection.h"
#include "versions.h"

namespace motet_omniorb {

using omni::tcpActiveConnection;
using omni::tcpAddress;

/* One for the process, as in omniORB. A thread is in Monitor() while at least one connection serves callbacks. */
class Collection : public omni::giopActiveCollection {
public:
    const char *type() const override { return "giop:tcp"; }
    void Monitor(omni::giopConnection::notifyReadable_t readable, void *cookie) override
    {
        while (!isEmpty())
            if (watcher.round(-1, readable, cookie) == Watcher::FAILED) break;
    }
    CORBA::Boolean isEmpty() const override { return members_ == 0 || done_; }
    void deactivate() override
    {
        done_ = true;
        watcher.wake();
    }
    void add_member()
    {
        members_++;
        done_ = false;
    }
    void remove_member()
    {
        members_--;
        watcher.wake();
    }

    Watcher watcher;

private:
    std::atomic<unsigned> members_{0};
    std::atomic<bool> done_{false};
};

/* Never destroyed: threads may use it while the process exits. */
static Collection &collection()
{
    static Collection *instance = new Collection;
    return *instance;
}

class ActiveConnection : public Connection<tcpActiveConnection> {
public:
    explicit ActiveConnection(int fd) : Connection(collection().watcher, MOTET_ROLE_CONNECTED, fd) {}
    ~ActiveConnection() override
    {
        if (registered_) collection().remove_member();
    }
    omni::giopActiveCollection *registerMonitor() override
    {
        if (!registered_) collection().add_member();
        registered_ = true;
        return &collection();
    }

private:
    bool registered_ = false;
};

class Address : public tcpAddress {
public:
    explicit Address(const IIOP::Address &address) : tcpAddress(address), address_(address) {}
    omni::giopAddress *duplicate() const override { return new Address(address_); }
    omni::giopAddress *duplicate(const char *host) const override
    {
        IIOP::Address address;
        address.host = host;
        address.port = address_.port;
        return new Address(address);
    }
    omni::giopActiveConnection *Connect(const omni_time_t &deadline, CORBA::ULong flags, CORBA::Boolean &timed_out) const override
    {
        if (address_.port == 0) return nullptr;
        int fd = connect_by(omni::tcpSocket::Connect, address_, deadline, flags, timed_out);
        return fd < 0 ? nullptr : new ActiveConnection(fd);
    }

private:
    const IIOP::Address address_;
};

omni::giopAddress *new_address(const IIOP::Address &address) { return new Address(address); }

} // namespace motet_omniorb
