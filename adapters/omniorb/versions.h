/* versions.h: what differs between the versions of omniORB that there are adapters for, 4.2 and 4.3.
 *
 * What it is:   one form of each call whose arguments changed; which of them the ORB has is seen by the type that its header declares.
 * What it isn't: about differences that no source shows: those are why there is an adapter for each version. */
#ifndef MOTET_OMNIORB_VERSIONS_H
#define MOTET_OMNIORB_VERSIONS_H

#include "adapter.h"

namespace motet_omniorb {

using Connect42 = omni::SocketHandle_t(const char *, CORBA::UShort, const omni_time_t &, CORBA::ULong, CORBA::Boolean &);
/* The transport is named for the log. */
using Connect43 = omni::SocketHandle_t(const char *, CORBA::UShort, const omni_time_t &, CORBA::ULong, const char *, CORBA::Boolean &);

inline int connect_by(Connect42 *connect, const IIOP::Address &to, const omni_time_t &deadline, CORBA::ULong flags, CORBA::Boolean &timed_out)
{
    return connect(to.host, to.port, deadline, flags, timed_out);
}

inline int connect_by(Connect43 *connect, const IIOP::Address &to, const omni_time_t &deadline, CORBA::ULong flags, CORBA::Boolean &timed_out)
{
    return connect(to.host, to.port, deadline, flags, "giop:tcp", timed_out);
}

} // namespace motet_omniorb

#endif
