/* connection.h: an omniORB TCP connection whose payload goes through a stream of Motet.
 *
 * What it is:   the common part of both sides. The base class, tcpConnection or tcpActiveConnection, owns and closes the descriptor and
 *               knows both addresses. Code that asks for the connection's type or handle() gets omniORB's own answer.
 * What it isn't: a different connection where the engine refuses the descriptor (for example because its table is full). Then the base
 *               handles every call, and only readiness is handled here. */
#ifndef MOTET_OMNIORB_CONNECTION_H
#define MOTET_OMNIORB_CONNECTION_H

#include <algorithm>

#include "stream.h"
#include "watcher.h"

namespace motet_omniorb {

template <class Base> class Connection : public Base {
public:
    template <class... Owner>
    Connection(Watcher &watcher, enum motet_role role, int fd, Owner *...owner)
        : Base(fd, owner...), stream_(fd, role), watch_(watcher, this, fd, stream_.handle())
    {
        if (omniORB::trace(20)) {
            omniORB::logger log;
            log << "Motet: connection " << this->myaddress() << " - " << this->peeraddress()
                << (stream_.handle() ? " is a stream\n" : " is left to the kernel\n");
        }
    }

    int Send(void *data, size_t size, const omni_time_t &deadline) override
    {
        if (__builtin_expect(!stream_.handle(), 0)) return Base::Send(data, size, deadline);
        return stream_.send(data, std::min(size, omni::orbParameters::maxSocketSend), deadline);
    }

    int Recv(void *data, size_t size, const omni_time_t &deadline) override
    {
        if (__builtin_expect(!stream_.handle(), 0)) return Base::Recv(data, size, deadline);
        return stream_.recv(data, std::min(size, omni::orbParameters::maxSocketRecv), deadline);
    }

    void Shutdown() override
    {
        if (stream_.handle()) stream_.shutdown();
        else Base::Shutdown();
    }

    void setSelectable(int now = 0, CORBA::Boolean data_in_buffer = 0) override { watch_.set(now, data_in_buffer); }
    void clearSelectable() override { watch_.clear(); }
    CORBA::Boolean isSelectable() override { return true; }
    CORBA::Boolean Peek() override { return watch_.peek(); }

private:
    Stream stream_; /* destroyed before the base closes the descriptor */
    Watch watch_;   /* destroyed first */
};

} // namespace motet_omniorb

#endif
