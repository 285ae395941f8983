/* connection.h: an omniORB TCP connection whose payload goes through a stream of Motet's.
 *
 * What it is:   what the two sides have in common. The base, tcpConnection or tcpActiveConnection, keeps the descriptor, closes it,
 *               and knows the addresses at its ends; code that asks a connection for its type or its handle() gets what it always got.
 * What it isn't: another kind of connection where the engine refuses the descriptor (its table is full, say). Then every call is the
 *               base's, and only readiness is ours. */
#ifndef MOTET_OMNIORB_CONNECTION_H
#define MOTET_OMNIORB_CONNECTION_H

#include <algorithm>

#include "line.h"
#include "watcher.h"

namespace motet_omniorb {

template <class Base> class Connection : public Base {
public:
    template <class... Owner>
    Connection(Watcher &watcher, enum motet_role role, int fd, Owner *...owner)
        : Base(fd, owner...), line_(fd, role), watch_(watcher, this, fd, line_.stream())
    {
        if (omniORB::trace(20)) {
            omniORB::logger log;
            log << "Motet: connection " << this->myaddress() << " - " << this->peeraddress()
                << (line_.stream() ? " is a stream\n" : " is left to the kernel\n");
        }
    }

    int Send(void *data, size_t size, const omni_time_t &deadline) override
    {
        if (__builtin_expect(!line_.stream(), 0)) return Base::Send(data, size, deadline);
        return line_.send(data, std::min(size, omni::orbParameters::maxSocketSend), deadline);
    }

    int Recv(void *data, size_t size, const omni_time_t &deadline) override
    {
        if (__builtin_expect(!line_.stream(), 0)) return Base::Recv(data, size, deadline);
        return line_.recv(data, std::min(size, omni::orbParameters::maxSocketRecv), deadline);
    }

    void Shutdown() override
    {
        if (line_.stream()) line_.shutdown();
        else Base::Shutdown();
    }

    void setSelectable(int now = 0, CORBA::Boolean data_in_buffer = 0) override { watch_.set(now, data_in_buffer); }
    void clearSelectable() override { watch_.clear(); }
    CORBA::Boolean isSelectable() override { return true; }
    CORBA::Boolean Peek() override { return watch_.peek(); }

private:
    Line line_;   /* ends before the base closes the descriptor */
    Watch watch_; /* ends first */
};

} // namespace motet_omniorb

#endif
