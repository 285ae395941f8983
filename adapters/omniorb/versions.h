/* versions.h: differences between the omniORB versions that have an adapter, 4.2 and 4.3.
 *
 * What it is:   one form of each call whose parameters changed. The type that the ORB's header declares selects the form.
 * What it isn't: about differences in the binary interface, which are why each version has an adapter of its own. */
#ifndef MOTET_OMNIORB_VERSIONS_H
#define MOTET_OMNIORB_VERSIONS_H

#include "adapter.h"

namespace motet_omniorb {

using Connect42 = omni::SocketHandle_t(const char *, CORBA::UShort, const omni_time_t &, CORBA::ULong, CORBA::Boolean &);
/* 4.3 takes the transport's name, for its log. */
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
