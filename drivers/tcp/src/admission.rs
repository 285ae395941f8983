//! Who may come in, and whom we have reached.
//!
//! What it is: the kernel attests which user has the other end of a connection that does not leave the host (sock_diag); of another
//! user that end is a stranger's, whatever it says, of our own it is not. Where the kernel knows no other end it is on another host, or
//! in another network namespace: there the secret of the address decides. What it is not: secret from who reads the wire.

use motet_engine::message::transport::Secret;
use motet_sys::sock_diag::SockDiag;
use motet_sys::thread::euid;
use std::net::SocketAddr;

/// Users outside our user namespace all look like this one, which attests nothing.
const OVERFLOW_UID: u32 = 65534;

/// Who has the other end of a connection, as far as the kernel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Other {
    /// A process of our user, on this host.
    Ours,
    /// One of another user of this host.
    AnotherUser,
    /// No process that the kernel knows.
    Unknown,
}

/// Who has the end at `far` of the connection whose end here is `near`. Asked once for each session, so no descriptor is kept for it.
pub fn other_end(near: SocketAddr, far: SocketAddr) -> Other {
    match SockDiag::open().and_then(|diag| diag.find(far, near)) {
        Ok(Some(found)) if found.attested && found.uid != OVERFLOW_UID => {
            if found.uid == euid() {
                Other::Ours
            } else {
                Other::AnotherUser
            }
        }
        _ => Other::Unknown,
    }
}

/// Whether a connection with this other end may begin a session, whose secret is `right` or not.
pub fn may(other: Other, right: bool) -> bool {
    match other {
        Other::Ours => true,
        Other::AnotherUser => false,
        Other::Unknown => right,
    }
}

/// Whether the other end may be on this host at all: only then is it worth to ask who that is.
pub fn may_be_here(near: SocketAddr, far: SocketAddr) -> bool {
    let far = far.ip().to_canonical();
    far.is_loopback() || far == near.ip().to_canonical()
}

/// A place to call, as an address has it: `[SECRET@]IP:PORT`.
pub fn place(address: &str) -> Option<(Option<Secret>, SocketAddr)> {
    let (secret, place) = Secret::split(address)?;
    Some((secret, place.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_kernel_decides_where_it_knows_and_the_secret_where_not() {
        for (other, right, expected) in [
            (Other::Ours, false, true),
            (Other::Ours, true, true),
            (Other::AnotherUser, true, false),
            (Other::AnotherUser, false, false),
            (Other::Unknown, true, true),
            (Other::Unknown, false, false),
        ] {
            assert_eq!(may(other, right), expected, "{other:?} {right}");
        }
    }

    #[test]
    fn our_own_end_is_ours_and_what_is_elsewhere_is_unknown() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (near, from) = listener.accept().unwrap();
        let ours = if euid() == OVERFLOW_UID { Other::Unknown } else { Other::Ours };
        assert_eq!(other_end(near.local_addr().unwrap(), from), ours);
        assert_eq!(other_end(far.local_addr().unwrap(), far.peer_addr().unwrap()), ours);
        assert!(may_be_here(near.local_addr().unwrap(), from));
        let elsewhere = "192.0.2.1:4711".parse().unwrap();
        assert_eq!(other_end(near.local_addr().unwrap(), elsewhere), Other::Unknown);
        assert!(!may_be_here(near.local_addr().unwrap(), elsewhere));
        drop(far);
        assert_eq!(other_end(near.local_addr().unwrap(), from), Other::Unknown, "no process has it any more");
    }

    #[test]
    fn places_have_a_secret_or_none() {
        let secret = Secret { caller: 0x0123_4567_89ab_cdef, answer: 1 };
        let text = secret.before("10.0.0.1:4000");
        assert_eq!(text, "0123456789abcdef0000000000000001@10.0.0.1:4000");
        assert_eq!(place(&text), Some((Some(secret), "10.0.0.1:4000".parse().unwrap())));
        assert_eq!(place(&secret.before("[::1]:4000")).unwrap().1, "[::1]:4000".parse().unwrap());
        assert_eq!(place("[::1]:1"), Some((None, "[::1]:1".parse().unwrap())));
        for wrong in
            ["", "@", "@10.0.0.1:1", "00@10.0.0.1:1", "+123456789abcdef0000000000000001@10.0.0.1:1", "10.0.0.1"]
        {
            assert_eq!(place(wrong), None, "{wrong}");
        }
        assert_eq!(place(&text[1..]), None);
        assert!(!format!("{secret:?}").contains("89ab"), "it does not get into logs");
    }
}
