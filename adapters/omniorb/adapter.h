/* adapter.h: declarations shared by the files of the omniORB adapter.
 *
 * What it is:   libmotet_omniorb42.so and libmotet_omniorb43.so let omniORB 4.2 and 4.3 send GIOP through streams of Motet's engine.
 *               Files in reading order:
 *                 preload.c             the preload object: intercepts CORBA::ORB_init and loads the adapter that fits (linked to libc only)
 *                 transport.cc          the transport `giop:tcp` that replaces omniORB's own
 *                 endpoint.cc           server side: accepts connections and watches them
 *                 active.cc             client side: connects; watches connections that serve callbacks (bidirectional GIOP)
 *                 connection.h          an omniORB TCP connection whose payload goes through a stream
 *                 stream.cc             its stream: send, receive, deadlines, shutdown
 *                 receive_buffer.cc     memory into which large sequences are received
 *                 watcher.cc            reports readable connections to the ORB
 *                 limits.cc             largest GIOP message
 *                 process_lifecycle.cc  load, fork and exit
 *                 versions.h            differences between the omniORB versions
 * What it isn't: a protocol. GIOP is omniORB's; rings and gates are the engine's (include/motet.h). Names, ports, IORs, transport rules and
 *               logs are those of the TCP connection, which exists for every connection.
 *
 * Rules for every file
 *   - Of omniORB, only headers that its development package installs; of Motet, only motet.h and motet_adapter.h.
 *   - No exception leaves a function that omniORB calls. The only output is omniORB's own trace.
 *   - Between motet_upgrade() and motet_close() all bytes of a descriptor go through the stream.
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

#include "motet_adapter.h"

namespace motet_omniorb {

/* Current time: ns of CLOCK_MONOTONIC. */
int64_t now();
/* Converts an absolute wall-clock time of omniORB to ns of CLOCK_MONOTONIC. INT64_MAX for no deadline. */
int64_t monotonic(const omni_time_t &deadline);

/* stream.cc. libc's own functions. The interposed ones of the sockets adapter would take this descriptor for an upgrade candidate: they saw
 * its creation and no call since. */
struct Kernel {
    decltype(&::recv) recv;
    decltype(&::ppoll) ppoll;
};
const Kernel &kernel();

/* transport.cc. False where this omniORB has no transport `giop:tcp` that can be replaced. */
bool replace_tcp_transport();

/* endpoint.cc, active.cc */
omni::giopEndpoint *new_endpoint(const char *param);
omni::giopAddress *new_address(const IIOP::Address &address);

} // namespace motet_omniorb

#endif
