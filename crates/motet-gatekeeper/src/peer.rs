//! Who makes a request.

use motet_session::process::Process;

/// The peer of a connection.
#[derive(Debug, Clone, Copy)]
pub enum Peer {
    /// A process of the session's user, on the Unix socket.
    Local(Process),
    /// Someone on TCP, who has to know the key.
    Remote,
    /// The gatekeeper of another host, over a link.
    Gatekeeper,
}
