//! Connects to Unix sockets within a limit. A server that is stopped keeps its queue of connections, and where that is full a connection waits for ever.

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// The bounds of a wait: the system takes zero for no limit, and no times that its clock cannot count.
const BOUNDS: [Duration; 2] = [Duration::from_millis(1), Duration::from_secs(1 << 30)];

/// Connects to the socket with this path.
pub fn connect_to(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    connect_within(&SocketAddrUnix::new(path)?, limit)
}

/// Connects to the socket with this address. `TimedOut`: its server accepts no connections.
pub fn connect_within(address: &SocketAddrUnix, limit: Duration) -> io::Result<UnixStream> {
    let end = Instant::now() + limit.clamp(BOUNDS[0], BOUNDS[1]);
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        set_socket_timeout(&socket, Timeout::Send, Some(left.max(BOUNDS[0])))?;
        match connect(&socket, address) {
            Err(Errno::INTR) if !left.is_zero() => {}
            Err(Errno::INTR | Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            connected => {
                connected?;
                set_socket_timeout(&socket, Timeout::Send, None)?;
                return Ok(socket.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{bind, listen};

    #[test]
    fn a_server_that_accepts_nothing_is_waited_for_within_the_limit() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let limit = Duration::from_millis(50);
        for limit in [limit, Duration::ZERO, Duration::MAX] {
            assert_eq!(connect_to(&path, limit).expect_err("no socket").kind(), io::ErrorKind::NotFound);
        }
        let server =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a socket");
        bind(&server, &SocketAddrUnix::new(&path).expect("an address")).expect("bound");
        listen(&server, 1).expect("listening");
        let mut connected = Vec::new();
        let refused = loop {
            match connect_to(&path, limit) {
                Ok(stream) => connected.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
        assert!(!connected.is_empty() && connected[0].write_timeout().expect("the timeout").is_none());
        drop(server);
        assert_eq!(connect_to(&path, limit).expect_err("no server").kind(), io::ErrorKind::ConnectionRefused);
    }
}
