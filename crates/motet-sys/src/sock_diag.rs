//! sock_diag: which socket is at the other end of a TCP connection on this host (linux/inet_diag.h).

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
/// States of a socket that a process may have and that is an end of a connection: ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK,
/// CLOSING.
const CONNECTED: [u8; 6] = [1, 4, 5, 8, 9, 11];

/// A socket that the kernel found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Its SO_COOKIE.
    pub cookie: u64,
    /// Its owner.
    pub uid: u32,
    /// Whether some process may have it open. (One shut down both ways, TIME_WAIT, has left its process as far as this tells.)
    pub open: bool,
    /// Its inode, as /proc/PID/fd shows it; 0: no process has it open.
    pub inode: u32,
    /// It is one end of the connection that was asked for, and a process has it: the owner is that of this end. Of one that was closed
    /// the kernel says that it is root's, and where there is no such connection it may find a listener instead.
    pub attested: bool,
}

/// A netlink socket for look-ups.
#[derive(Debug)]
pub struct Diag<Fd = PrivateFd>(Fd);

impl Diag<OwnedFd> {
    /// One for a single look-up, whose number is not kept from the program: usable in a child of vfork, whose numbers are not its parent's.
    pub fn once() -> Result<Self, Errno> {
        open().map(Self)
    }
}

impl Diag {
    /// Opens one.
    pub fn open() -> Result<Self, Errno> {
        open().map(|fd| Self(PrivateFd::new(fd)))
    }
}

fn open() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG))
        .map_err(|e| e.raw_os_error())
}

impl<Fd: AsFd> Diag<Fd> {
    /// The TCP socket in our network namespace whose local address is `local` and whose peer is `peer`.
    pub fn find(&self, local: SocketAddr, peer: SocketAddr) -> Result<Option<Found>, Errno> {
        let request = encode(local, peer);
        let found = self.ask(&request)?;
        Ok(found.map(|(found, ports)| {
            let same = ports == [local.port(), peer.port()];
            Found { attested: found.attested && same, ..found }
        }))
    }

    fn ask(&self, request: &[u8]) -> Result<Option<(Found, [u16; 2])>, Errno> {
        rustix::net::send(&self.0, request, SendFlags::NOSIGNAL).map_err(|e| e.raw_os_error())?;
        let mut answer = [0u8; 1024];
        let (n, _) = rustix::net::recv(&self.0, &mut answer[..], RecvFlags::empty()).map_err(|e| e.raw_os_error())?;
        decode(&answer[..n])
    }
}

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
const ANSWER: usize = 16 + 72;

/// Takes a netlink answer apart: the socket, and its own port and the other's.
pub fn decode(bytes: &[u8]) -> Result<Option<(Found, [u16; 2])>, Errno> {
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    if bytes.len() >= 20 && u16::from_ne_bytes([bytes[4], bytes[5]]) == NLMSG_ERROR {
        return match (word(16) as i32).wrapping_neg() {
            0 | 2 => Ok(None), // ENOENT: no such socket
            e => Err(e),
        };
    }
    if bytes.len() < ANSWER || u16::from_ne_bytes([bytes[4], bytes[5]]) != SOCK_DIAG_BY_FAMILY {
        return Err(rustix::io::Errno::PROTO.raw_os_error());
    }
    let id = 16 + 4;
    let cookie = u64::from(word(id + 40)) | u64::from(word(id + 44)) << 32;
    let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let (held, state) = (word(16 + 68) != 0, bytes[17]);
    let attested = held && CONNECTED.contains(&state);
    let found = Found { cookie, uid: word(16 + 64), open: held || state == TIME_WAIT, inode: word(16 + 68), attested };
    Ok(Some((found, [port(id), port(id + 2)])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn finds_the_other_end_by_its_cookie() {
        for bind in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(bind) else { continue };
            let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (far, _) = listener.accept().unwrap();
            let found =
                Diag::open().unwrap().find(far.local_addr().unwrap(), near.local_addr().unwrap()).unwrap().unwrap();
            assert_eq!(found.cookie, crate::socket::cookie(far.as_raw_fd()).unwrap());
            assert_eq!(found.uid, crate::thread::euid());
            assert!(found.open && found.attested);
            let ends = (far.local_addr().unwrap(), near.local_addr().unwrap());
            drop(far);
            assert!(Diag::open().unwrap().find(ends.0, ends.1).unwrap().is_none_or(|found| !found.open));
        }
    }

    /// Whoever comes from elsewhere may choose a port at which something listens here: the kernel finds that.
    #[test]
    fn a_listener_and_a_closed_socket_attest_nothing() {
        let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        let local = SocketAddr::new("127.0.0.1".parse().unwrap(), listener.local_addr().unwrap().port());
        let diag = Diag::open().unwrap();
        let found = diag.find(local, "192.0.2.1:4711".parse().unwrap()).unwrap();
        assert!(found.is_none_or(|found| !found.attested), "{found:?}");
        let near = std::net::TcpStream::connect(local).unwrap();
        let (far, _) = listener.accept().unwrap();
        let ends = (near.local_addr().unwrap(), far.local_addr().unwrap());
        assert!(diag.find(ends.0, ends.1).unwrap().unwrap().attested);
        drop(near);
        let found = diag.find(ends.0, ends.1).unwrap();
        assert!(found.is_none_or(|found| !found.attested), "nobody has it any more: {found:?}");
        // Before it is accepted it is nobody's.
        let near = std::net::TcpStream::connect(local).unwrap();
        let found = diag.find(local, near.local_addr().unwrap()).unwrap();
        assert!(found.is_none_or(|found| !found.attested), "{found:?}");
    }

    #[test]
    fn any_answer_is_decoded_or_refused() {
        for length in 0..100 {
            for fill in [0u8, 0xff, 20] {
                let _ = decode(&vec![fill; length]);
            }
        }
    }
}
