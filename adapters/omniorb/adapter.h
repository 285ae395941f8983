/* adapter.h: the map of the omniORB voice.
 *
 * What it is:   the declarations shared by the files of libmotet_omniorb42.so and its like, which let omniORB 4.2 and 4.3 speak GIOP over streams of
 *               Motet's engine. Read the files in this order:
 *                 shim.c         the preload object: sees CORBA::ORB_init and loads the adapter that fits (linked to libc only)
 *                 transport.cc   the transport `giop:tcp` in the place of omniORB's own: endpoints and addresses of ours
 *                 endpoint.cc    the server's side: accepts, and watches accepted connections
 *                 active.cc      the client's side: connects; watches connections that serve callbacks (bidirectional GIOP)
 *                 connection.h   an omniORB TCP connection whose payload goes through a stream
 *                 line.cc        its stream: send, receive, deadlines, shutdown
 *                 memory.cc      where large sequences arrive
 *                 watcher.cc     real readiness: who hears when a connection has something to read
 *                 limits.cc      the largest message
 *                 life.cc        fork and exit
 *                 versions.h     what differs between the versions of omniORB
 * What it isn't: a protocol, on either side. GIOP is omniORB's, rings and gates are the engine's (include/motet.h). Names, ports,
 *               IORs, transport rules and logs are those of the TCP connection, which is always made and is always there.
 *
 * Rules for every file
 *   - Of omniORB only the headers that its development package installs; of Motet only motet.h.
 *   - No exception leaves a function that omniORB calls, and nothing is written but omniORB's own trace.
 *   - Between motet_upgrade() and motet_close() no byte of a descriptor moves but through the stream.
 */
#ifndef MOTET_OMNIORB_ADAPTER_H
#define MOTET_OMNIORB_ADAPTER_H

#include <omniORB4/CORBA.h>
#include <omniORB4/giopEndpoint.h>

#include <SocketCollection.h>
#include <orbParameters.h>
#include <omniORB4/tcpAddress.h>
#include <omniORB4/tcpConnection.h>
#include <omniORB4/tcpEndpoint.h>

#include <poll.h>
#include <sys/socket.h>

#include "motet.h"

namespace motet_omniorb {

/* ns of CLOCK_MONOTONIC. */
int64_t now();
/* An absolute time of omniORB's, which is wall-clock; INT64_MAX for none. */
int64_t monotonic(const omni_time_t &deadline);

/* line.cc. The C library's own functions: those that the sockets voice puts in front take this descriptor for a connection that may
 * become theirs, as they have seen it being made and nothing since. */
struct Kernel {
    decltype(&::recv) recv;
    decltype(&::ppoll) ppoll;
};
const Kernel &kernel();

/* transport.cc. False where this omniORB has no transport of that name to stand in for. */
bool stand_in_for_tcp();

/* endpoint.cc, active.cc */
omni::giopEndpoint *new_endpoint(const char *param);
omni::giopAddress *new_address(const IIOP::Address &address);

} // namespace motet_omniorb

#endif
