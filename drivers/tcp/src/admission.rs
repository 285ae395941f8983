//! Admission: decides which connections may begin a session, and checks that the node reached is the one wanted.
//!
//! On one host the kernel reports which user has the other end of a connection (sock_diag): a process of our user is admitted, a process
//! of another user is not, whatever it sends, unless the node is for other users, too: then the secret decides. Where the kernel knows no other end, that is on another host or in another network
//! namespace, and the secret of the address decides. What it is not: protection against a reader of the network traffic.

use motet_engine::message::transport::Secret;
use motet_sys::sock_diag::SockDiag;
use motet_sys::thread::euid;
use std::net::SocketAddr;

/// All users outside our user namespace have this number, so it identifies no user.
const OVERFLOW_UID: u32 = 65534;

/// The user of the other end of a connection, as the kernel reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerOwner {
    /// A process of our user, on this host.
    SameUser,
    /// A process of another user of this host, with its number.
    OtherUser(u32),
    /// The kernel knows no process at that address.
    Unknown,
}

impl PeerOwner {
    /// The owner whose share of the sessions counts. Among nodes of other users the callers that the kernel does not name are one more user: a caller that
    /// closes its end at once would have no share otherwise.
    pub fn of_share(self, other_users: bool) -> Self {
        match self {
            Self::Unknown if other_users => Self::OtherUser(OVERFLOW_UID),
            owner => owner,
        }
    }
}

/// Finds the user of the end at `peer` of the connection whose end here is `local`. Each call opens a netlink socket: it is called once for
/// each session.
pub fn peer_owner(local: SocketAddr, peer: SocketAddr) -> PeerOwner {
    match SockDiag::open().and_then(|diag| diag.find(peer, local)) {
        Ok(Some(found)) if found.attested && found.uid != OVERFLOW_UID => {
            if found.uid == euid() {
                PeerOwner::SameUser
            } else {
                PeerOwner::OtherUser(found.uid)
            }
        }
        _ => PeerOwner::Unknown,
    }
}

/// Whether a connection with this owner of its other end may begin a session. `other_users`: the node has peers of other users.
pub fn is_admitted(owner: PeerOwner, knows_secret: bool, other_users: bool) -> bool {
    match owner {
        PeerOwner::SameUser => true,
        PeerOwner::OtherUser(_) => other_users && knows_secret,
        PeerOwner::Unknown => knows_secret,
    }
}

/// Whether the other end may be on this host. Otherwise the kernel cannot know its owner.
pub fn may_be_local(local: SocketAddr, peer: SocketAddr) -> bool {
    let peer = peer.ip().to_canonical();
    peer.is_loopback() || peer == local.ip().to_canonical()
}

/// Parses a node's address, `[SECRET@]IP:PORT`; `None`: it is malformed.
pub fn parse_address(address: &str) -> Option<(Option<Secret>, SocketAddr)> {
    let (secret, place) = Secret::split(address)?;
    Some((secret, place.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn admission_owner_known_ignores_secret() {
        for (owner, knows_secret, expected) in [
            (PeerOwner::SameUser, false, true),
            (PeerOwner::SameUser, true, true),
            (PeerOwner::OtherUser(7), true, false),
            (PeerOwner::OtherUser(7), false, false),
            (PeerOwner::Unknown, true, true),
            (PeerOwner::Unknown, false, false),
        ] {
            assert_eq!(is_admitted(owner, knows_secret, false), expected, "{owner:?} {knows_secret}");
            let others = owner == PeerOwner::OtherUser(7) && knows_secret;
            assert_eq!(is_admitted(owner, knows_secret, true), expected || others, "{owner:?} {knows_secret}");
        }
    }

    #[test]
    fn peer_owner_local_known_and_remote_unknown() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (near, from) = listener.accept().unwrap();
        let same_user = if euid() == OVERFLOW_UID { PeerOwner::Unknown } else { PeerOwner::SameUser };
        assert_eq!(peer_owner(near.local_addr().unwrap(), from), same_user);
        assert_eq!(peer_owner(far.local_addr().unwrap(), far.peer_addr().unwrap()), same_user);
        assert!(may_be_local(near.local_addr().unwrap(), from));
        let elsewhere = "192.0.2.1:4711".parse().unwrap();
        assert_eq!(peer_owner(near.local_addr().unwrap(), elsewhere), PeerOwner::Unknown);
        assert!(!may_be_local(near.local_addr().unwrap(), elsewhere));
        drop(far);
        assert_eq!(peer_owner(near.local_addr().unwrap(), from), PeerOwner::Unknown, "no process has that end");
    }

    #[test]
    fn address_with_and_without_secret_parses() {
        let secret = Secret { caller: 0x0123_4567_89ab_cdef, answer: 1 };
        let text = secret.prefix_to("10.0.0.1:4000");
        assert_eq!(text, "0123456789abcdef0000000000000001@10.0.0.1:4000");
        assert_eq!(parse_address(&text), Some((Some(secret), "10.0.0.1:4000".parse().unwrap())));
        assert_eq!(parse_address(&secret.prefix_to("[::1]:4000")).unwrap().1, "[::1]:4000".parse().unwrap());
        assert_eq!(parse_address("[::1]:1"), Some((None, "[::1]:1".parse().unwrap())));
        for wrong in
            ["", "@", "@10.0.0.1:1", "00@10.0.0.1:1", "+123456789abcdef0000000000000001@10.0.0.1:1", "10.0.0.1"]
        {
            assert_eq!(parse_address(wrong), None, "{wrong}");
        }
        assert_eq!(parse_address(&text[1..]), None);
        assert!(!format!("{secret:?}").contains("89ab"), "a secret is not printed");
    }
}
