//! Finds the socket at the other end of a TCP connection on this host, by a sock_diag request (linux/inet_diag.h).

use crate::Errno;
use crate::private_fds::PrivateFd;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::netlink::SOCK_DIAG;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::net::{IpAddr, SocketAddr};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const TCP: u8 = 6;
const TIME_WAIT: u8 = 6;
/// States of a connected socket that a process can have open: ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING.
const CONNECTED: [u8; 6] = [1, 4, 5, 8, 9, 11];

/// A socket that the kernel found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketInfo {
    /// Its SO_COOKIE.
    pub cookie: u64,
    /// The user who owns it.
    pub uid: u32,
    /// Whether a process may have it open. True also in TIME_WAIT, in which the kernel reports no inode.
    pub open: bool,
    /// Its inode, as in /proc/PID/fd; 0: no process has it open.
    pub inode: u32,
    /// The socket is an end of the requested connection and a process has it open, so `uid` is the user of this end. Otherwise `uid` means
    /// nothing: the kernel reports closed sockets as root's, and without such a connection it may return a listener.
    pub attested: bool,
}

/// A netlink socket for sock_diag requests.
#[derive(Debug)]
pub struct SockDiag<Fd = PrivateFd>(Fd);

impl SockDiag<OwnedFd> {
    /// Opens one for a single request. Its descriptor is not recorded as private, so this works in a child of vfork, which shares the record with
    /// its parent but not the descriptors.
    pub fn open_untracked() -> Result<Self, Errno> {
        open().map(Self)
    }
}

impl SockDiag {
    /// Opens one, with a private descriptor.
    pub fn open() -> Result<Self, Errno> {
        open().map(|fd| Self(PrivateFd::new(fd)))
    }
}

fn open() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG))
        .map_err(|e| e.raw_os_error())
}

impl<Fd: AsFd> SockDiag<Fd> {
    /// Finds the TCP socket in this network namespace with this local address and this peer. `None`: there is none.
    pub fn find(&self, local: SocketAddr, peer: SocketAddr) -> Result<Option<SocketInfo>, Errno> {
        let request = encode(local, peer);
        let found = self.query(&request)?;
        Ok(found.map(|(found, ports)| {
            let is_same = ports == [local.port(), peer.port()];
            SocketInfo { attested: found.attested && is_same, ..found }
        }))
    }

    /// Sends a request; returns the socket of the reply, and its local and remote port.
    fn query(&self, request: &[u8]) -> Result<Option<(SocketInfo, [u16; 2])>, Errno> {
        rustix::net::send(&self.0, request, SendFlags::NOSIGNAL).map_err(|e| e.raw_os_error())?;
        let mut reply = [0u8; 1024];
        let (n, _) = rustix::net::recv(&self.0, &mut reply[..], RecvFlags::empty()).map_err(|e| e.raw_os_error())?;
        decode(&reply[..n])
    }
}

/// Encodes a request.
fn encode(local: SocketAddr, peer: SocketAddr) -> [u8; 72] {
    let mut m = [0u8; 72]; // nlmsghdr 16, inet_diag_req_v2 56
    let v4 = |a: IpAddr| match a {
        IpAddr::V4(a) => Some(a),
        IpAddr::V6(a) => a.to_ipv4_mapped(),
    };
    m[0..4].copy_from_slice(&72u32.to_ne_bytes());
    m[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    m[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    let id = 16 + 8;
    match (v4(local.ip()), v4(peer.ip())) {
        (Some(a), Some(b)) => {
            m[16] = 2; // AF_INET
            m[id + 4..id + 8].copy_from_slice(&a.octets());
            m[id + 20..id + 24].copy_from_slice(&b.octets());
        }
        _ => {
            m[16] = 10; // AF_INET6
            let octets = |a: IpAddr| match a {
                IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
                IpAddr::V6(a) => a.octets(),
            };
            m[id + 4..id + 20].copy_from_slice(&octets(local.ip()));
            m[id + 20..id + 36].copy_from_slice(&octets(peer.ip()));
        }
    }
    m[17] = TCP;
    m[20..24].copy_from_slice(&u32::MAX.to_ne_bytes()); // any state
    m[id..id + 2].copy_from_slice(&local.port().to_be_bytes());
    m[id + 2..id + 4].copy_from_slice(&peer.port().to_be_bytes());
    m[id + 40..id + 48].fill(0xff); // INET_DIAG_NOCOOKIE
    m
}

/// Bytes of nlmsghdr + inet_diag_msg.
const REPLY_BYTES: usize = 16 + 72;

/// Decodes a netlink reply: the socket, and its local and remote port.
pub fn decode(bytes: &[u8]) -> Result<Option<(SocketInfo, [u16; 2])>, Errno> {
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    if bytes.len() >= 20 && u16::from_ne_bytes([bytes[4], bytes[5]]) == NLMSG_ERROR {
        return match (word(16) as i32).wrapping_neg() {
            0 | 2 => Ok(None), // ENOENT: no such socket
            e => Err(e),
        };
    }
    if bytes.len() < REPLY_BYTES || u16::from_ne_bytes([bytes[4], bytes[5]]) != SOCK_DIAG_BY_FAMILY {
        return Err(rustix::io::Errno::PROTO.raw_os_error());
    }
    let id = 16 + 4;
    let cookie = u64::from(word(id + 40)) | u64::from(word(id + 44)) << 32;
    let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let (is_open, state) = (word(16 + 68) != 0, bytes[17]);
    let attested = is_open && CONNECTED.contains(&state);
    let found =
        SocketInfo { cookie, uid: word(16 + 64), open: is_open || state == TIME_WAIT, inode: word(16 + 68), attested };
    Ok(Some((found, [port(id), port(id + 2)])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn other_end_of_a_connection_is_found() {
        for bind in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(bind) else { continue };
            let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (far, _) = listener.accept().unwrap();
            let found =
                SockDiag::open().unwrap().find(far.local_addr().unwrap(), near.local_addr().unwrap()).unwrap().unwrap();
            assert_eq!(found.cookie, crate::socket::cookie(far.as_raw_fd()).unwrap());
            assert_eq!(found.uid, crate::thread::euid());
            assert!(found.open && found.attested);
            let ends = (far.local_addr().unwrap(), near.local_addr().unwrap());
            drop(far);
            assert!(SockDiag::open().unwrap().find(ends.0, ends.1).unwrap().is_none_or(|found| !found.open));
        }
    }

    /// A remote peer may choose the port of a local listener, which the kernel then finds.
    #[test]
    fn listener_and_closed_socket_are_not_attested() {
        let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        let local = SocketAddr::new("127.0.0.1".parse().unwrap(), listener.local_addr().unwrap().port());
        let diag = SockDiag::open().unwrap();
        let found = diag.find(local, "192.0.2.1:4711".parse().unwrap()).unwrap();
        assert!(found.is_none_or(|found| !found.attested), "{found:?}");
        let near = std::net::TcpStream::connect(local).unwrap();
        let (far, _) = listener.accept().unwrap();
        let ends = (near.local_addr().unwrap(), far.local_addr().unwrap());
        assert!(diag.find(ends.0, ends.1).unwrap().unwrap().attested);
        drop(near);
        let found = diag.find(ends.0, ends.1).unwrap();
        assert!(found.is_none_or(|found| !found.attested), "no process has it open: {found:?}");
        // No process has the socket before it is accepted.
        let near = std::net::TcpStream::connect(local).unwrap();
        let found = diag.find(local, near.local_addr().unwrap()).unwrap();
        assert!(found.is_none_or(|found| !found.attested), "{found:?}");
    }

    #[test]
    fn any_reply_is_decoded_or_refused() {
        for length in 0..100 {
            for fill in [0u8, 0xff, 20] {
                let _ = decode(&vec![fill; length]);
            }
        }
    }
}
