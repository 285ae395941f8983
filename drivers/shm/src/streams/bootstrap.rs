//! How the two ends of one TCP connection find each other and agree on a slot.
//!
//! The end that connected listens on an abstract SEQPACKET name made from its socket's SO_COOKIE, the *bootstrap socket*
//! ([`OfferListener`]). The end that accepted asks the kernel for the socket at the other end (sock_diag), connects to the name made from
//! the cookie of that, and passes the memfd ([`Offerer`]). Both check what the kernel attests: the credentials of the process, the network
//! namespace, and the cookie of the socket at the other end. So a squatted name, a reused port or a listener inherited by a fork gets
//! nothing. The TCP descriptor itself is never passed: in flight it would delay FIN.
//!
//! The slot shows when the offer is accepted. Until then the offering end keeps its connection to the bootstrap socket, on which a refusal
//! arrives. So both ends know why a connection stays on TCP, whatever their versions.

use crate::streams::offer::{OFFER_BYTES, Offer, OfferError, REFUSAL_BYTES, Refusal};
use crate::streams::segment_pool;
use crate::streams::segment_table::{SegmentShape, SlotRef};
use motet_engine::driver::{Connecting, Pair, Progress, Wire};
use motet_engine::lock;
use motet_engine::reason::Reason;
use motet_sys::private_fds::{self, PrivateFd};
use motet_sys::rustix::fd::{AsFd, AsRawFd, OwnedFd};
use motet_sys::sock_diag::SockDiag;
use motet_sys::socket::{self, Credentials};
use motet_sys::thread::{self, euid};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

/// All users outside our user namespace have this number.
const OVERFLOW_UID: u32 = 65534;

static DIAG: Mutex<Option<SockDiag>> = Mutex::new(None);

/// In a forked child: drops the netlink socket, whose answers are the parent's.
pub fn after_fork() {
    lock(&DIAG).take();
}

/// Locks what a fork must find unlocked.
pub fn lock_for_fork() -> MutexGuard<'static, Option<SockDiag>> {
    lock(&DIAG)
}

/// The name of a connection's bootstrap socket: the same in every version of Motet.
fn socket_name(netns: u64, cookie: u64) -> Vec<u8> {
    format!("motet/{netns:x}/{cookie:x}").into_bytes()
}

/// Descriptors that wait for the other end: at most 1/DESCRIPTOR_SHARE of those that the process may have. The rest is the program's,
/// however many connections it makes to peers that never answer.
static WAITING_DESCRIPTORS: AtomicUsize = AtomicUsize::new(0);
const DESCRIPTOR_SHARE: usize = 4;
/// Pending connections to the bootstrap socket of one stream. An honest peer makes one.
const BACKLOG: i32 = 4;

/// The permission to hold one waiting descriptor.
struct DescriptorPermit;

impl DescriptorPermit {
    fn acquire() -> Option<Self> {
        if WAITING_DESCRIPTORS.fetch_add(1, Ordering::Relaxed) < private_fds::descriptor_limit() / DESCRIPTOR_SHARE {
            return Some(Self);
        }
        WAITING_DESCRIPTORS.fetch_sub(1, Ordering::Relaxed);
        None
    }
}

impl Drop for DescriptorPermit {
    fn drop(&mut self) {
        WAITING_DESCRIPTORS.fetch_sub(1, Ordering::Relaxed);
    }
}

fn shape(pair: &Pair) -> SegmentShape {
    SegmentShape { ring: pair.ring, bulk: pair.bulk, limit: pair.memory, huge: pair.huge }
}

/// The socket at the other end of a connection; `None`: the kernel knows none.
fn peer_socket(pair: &Pair) -> Result<Option<motet_sys::sock_diag::SocketInfo>, Reason> {
    let mut diag = lock(&DIAG);
    if diag.is_none() {
        *diag = Some(SockDiag::open().map_err(|_| Reason::NOT_PERMITTED)?);
    }
    let found = diag.as_ref().map_or(Ok(None), |d| d.find(pair.peer, pair.local));
    found.map_err(|_| {
        diag.take(); // answers may be out of step: the next call opens a new socket
        Reason::NOT_PERMITTED
    })
}

/// Checks that our user number identifies a user.
fn check_own_uid() -> Result<(), Reason> {
    if euid() == OVERFLOW_UID { Err(Reason::NOBODY) } else { Ok(()) }
}

/// Whether the peer has our user, and its number identifies a user.
fn is_trusted(peer: &Credentials) -> bool {
    peer.uid == euid() && peer.uid != OVERFLOW_UID
}

/// The end that accepted the connection: offers a slot.
pub struct Offerer {
    pair: Pair,
    netns: u64,
    peer_cookie: u64,
    pending: Option<PendingOffer>,
}

/// An offer that was sent and neither accepted nor refused yet.
struct PendingOffer {
    /// The connection to the peer's bootstrap socket, on which a refusal arrives.
    connection: PrivateFd,
    peer: Credentials,
    slot: Option<SlotRef>,
    /// The process that made the offer; a forked child has a copy of it.
    pid: u32,
    _permit: DescriptorPermit,
}

impl Drop for PendingOffer {
    fn drop(&mut self) {
        match &self.slot {
            Some(reserved) if self.pid == thread::pid() => segment_pool::release(&reserved.slot),
            Some(reserved) => segment_pool::abandon(&reserved.slot),
            None => {}
        }
    }
}

impl Offerer {
    /// Finds the socket at the other end; an error is the reason why no offer can be made.
    pub fn begin(pair: &Pair) -> Result<Box<dyn Connecting>, Reason> {
        let netns = socket::netns_cookie(pair.fd).map_err(|_| Reason::NOT_PERMITTED)?;
        match peer_socket(pair)? {
            None => Err(Reason::OTHER_HOST),
            // A socket that its process has closed has no user: the kernel reports it as root's.
            Some(found) if !found.attested => Err(Reason::PEER_GONE),
            Some(found) if found.uid != euid() => Err(Reason::OTHER_USER),
            Some(found) => {
                let offerer = Self { pair: *pair, netns, peer_cookie: found.cookie, pending: None };
                check_own_uid().map(|()| Box::new(offerer) as Box<dyn Connecting>)
            }
        }
    }

    fn send_offer(
        &self,
        connection: OwnedFd,
        peer: Credentials,
        reserved: SlotRef,
        permit: DescriptorPermit,
    ) -> Result<PendingOffer, Reason> {
        let offer = Offer {
            netns: self.netns,
            offerer: self.pair.cookie,
            target: self.peer_cookie,
            slot: reserved.index,
            nonce: reserved.nonce,
        };
        if socket::send_with_fd(&connection, &offer.encode(), &*reserved.file).is_err() {
            segment_pool::withdraw(&reserved);
            return Err(Reason::NOT_PERMITTED);
        }
        let connection = PrivateFd::new(connection);
        Ok(PendingOffer { connection, peer, slot: Some(reserved), pid: thread::pid(), _permit: permit })
    }

    /// Whether the pending offer was accepted or refused.
    fn poll_offer(&mut self) -> Progress {
        let Some(pending) = &mut self.pending else { return Progress::Pending };
        if pending.pid != thread::pid() {
            self.pending = None; // the parent's
            return Progress::Pending;
        }
        let is_accepted = |reserved: &mut SlotRef| reserved.slot.head().attached[1].load(Ordering::SeqCst) != 0;
        let mut answer = [0; REFUSAL_BYTES];
        let mut received = None;
        loop {
            if let Some(reserved) = pending.slot.take_if(is_accepted) {
                return Progress::Up(Wire { slot: reserved.slot, peer: pending.peer, peer_cookie: self.peer_cookie });
            }
            // After the connection has ended, the slot is checked again: a peer that accepts attaches first and closes then.
            match received {
                None => received = Some(socket::receive_with_fd(&pending.connection, &mut answer)),
                Some(Err(EAGAIN)) => return Progress::Pending,
                Some(Ok((n @ 1.., _))) => return Progress::Rejected(Refusal::decode(&answer[..n]).0),
                Some(_) => {
                    self.pending = None;
                    return Progress::Pending;
                }
            }
        }
    }
}

impl Connecting for Offerer {
    fn step(&mut self) -> Progress {
        if self.pending.is_some() {
            return self.poll_offer();
        }
        let Some(permit) = DescriptorPermit::acquire() else { return Progress::Busy };
        let connection = match socket::connect_abstract(&socket_name(self.netns, self.peer_cookie)) {
            Ok(connection) => connection,
            Err(EPERM | EACCES) => return Progress::Rejected(Reason::NOT_PERMITTED),
            Err(_) => return Progress::Pending, // the peer is without Motet, or does not listen yet
        };
        let Ok(peer) = socket::peer_credentials(&connection) else { return Progress::Pending };
        if !is_trusted(&peer) {
            return Progress::Rejected(Reason::OTHER_USER);
        }
        let reserved = match segment_pool::reserve(peer, shape(&self.pair), [self.pair.cookie, self.peer_cookie]) {
            Ok(reserved) => reserved,
            Err(reason) => {
                let _ = socket::send_message(&connection, &Refusal(reason).encode());
                return Progress::Rejected(reason);
            }
        };
        match self.send_offer(connection, peer, reserved, permit) {
            Ok(pending) => {
                self.pending = Some(pending);
                Progress::Pending
            }
            Err(reason) => Progress::Rejected(reason),
        }
    }
}

/// The end that made the connection: waits for an offer.
pub struct OfferListener {
    pair: Pair,
    netns: u64,
    /// `None` until there is a permit for it.
    listener: Option<(PrivateFd, DescriptorPermit)>,
    /// An incoming connection that has not sent anything yet.
    incoming: Option<PrivateFd>,
}

impl OfferListener {
    /// Opens the bootstrap socket of this connection; if too many descriptors wait already, a later step does.
    pub fn begin(pair: &Pair) -> Result<Box<dyn Connecting>, Reason> {
        check_own_uid()?;
        let netns = socket::netns_cookie(pair.fd).map_err(|_| Reason::NOT_PERMITTED)?;
        let mut offer_listener = Self { pair: *pair, netns, listener: None, incoming: None };
        offer_listener.open()?;
        Ok(Box::new(offer_listener))
    }

    fn open(&mut self) -> Result<(), Reason> {
        let Some(permit) = DescriptorPermit::acquire() else { return Ok(()) };
        let listener = socket::listen_abstract(&socket_name(self.netns, self.pair.cookie), BACKLOG)
            .map_err(|e| if e == EADDRINUSE { Reason::NAME_TAKEN } else { Reason::NO_MEMORY })?;
        self.listener = Some((PrivateFd::new(listener), permit));
        Ok(())
    }

    /// Receives the message of an incoming connection; `None`: it has not arrived yet.
    fn receive_offer(&self, incoming: impl AsFd) -> Option<Progress> {
        let Ok(peer) = socket::peer_credentials(&incoming) else { return Some(Progress::Pending) };
        if !is_trusted(&peer) {
            return Some(Progress::Pending); // another user's; the peer may still connect
        }
        let mut bytes = [0; OFFER_BYTES + 1];
        let (n, file) = match socket::receive_with_fd(&incoming, &mut bytes) {
            Ok(message) => message,
            Err(EAGAIN) => return None,
            Err(_) => return Some(Progress::Pending),
        };
        let bytes = &bytes[..n.min(bytes.len())];
        if let Some(Refusal(reason)) = Refusal::parse(bytes) {
            return Some(Progress::Rejected(reason));
        }
        Some(match self.accept_offer(bytes, file, peer) {
            Ok(wire) => Progress::Up(wire),
            Err(Reason::BAD_OFFER) => Progress::Pending,
            Err(reason) => {
                let _ = socket::send_message(&incoming, &Refusal(reason).encode());
                Progress::Rejected(reason)
            }
        })
    }

    /// Checks all of an offer, then maps its slot and attaches to it.
    fn accept_offer(&self, bytes: &[u8], file: Option<OwnedFd>, peer: Credentials) -> Result<Wire, Reason> {
        let offer = Offer::decode(bytes).map_err(|error| match error {
            OfferError::Version(_) => Reason::VERSION,
            OfferError::Malformed => Reason::BAD_OFFER,
        })?;
        let found = peer_socket(&self.pair)?.ok_or(Reason::PEER_GONE)?;
        if offer.netns != self.netns || offer.target != self.pair.cookie || offer.offerer != found.cookie {
            return Err(Reason::BAD_OFFER);
        }
        let file = file.ok_or(Reason::BAD_OFFER)?;
        let slot = segment_pool::map_offered(peer, &file, (offer.slot, offer.nonce), shape(&self.pair))?;
        // First attach, then check the cookies: an offerer that sees the slot attached does not reuse it for another connection.
        slot.head().attached[1].store(1, Ordering::SeqCst);
        if slot.head().cookies.each_ref().map(|c| c.load(Ordering::SeqCst)) != [offer.offerer, offer.target] {
            segment_pool::abandon(&slot);
            return Err(Reason::BAD_OFFER);
        }
        Ok(Wire { slot, peer, peer_cookie: offer.offerer })
    }
}

impl Connecting for OfferListener {
    fn step(&mut self) -> Progress {
        if self.listener.is_none()
            && let Err(reason) = self.open()
        {
            return Progress::Rejected(reason);
        }
        let Some((listener, _)) = &self.listener else { return Progress::Busy };
        if let Some(incoming) = self.incoming.take() {
            return self.receive_offer(&incoming).unwrap_or_else(|| {
                self.incoming = Some(incoming);
                Progress::Pending
            });
        }
        // Polled first: an accept that fails still makes a socket.
        let Some(incoming) =
            socket::readable(listener.as_fd().as_raw_fd()).then(|| socket::accept(listener).ok()).flatten()
        else {
            return Progress::Pending;
        };
        self.receive_offer(&incoming).unwrap_or_else(|| {
            self.incoming = Some(PrivateFd::new(incoming));
            Progress::Pending
        })
    }
}

const EPERM: i32 = 1;
const EAGAIN: i32 = 11;
const EACCES: i32 = 13;
const EADDRINUSE: i32 = 98;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn peer_that_has_closed_is_gone_and_no_other_user() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, peer) = listener.accept().unwrap();
        let pair = Pair {
            fd: far.as_raw_fd(),
            local: far.local_addr().unwrap(),
            peer,
            connected: false,
            cookie: socket::cookie(far.as_raw_fd()).unwrap(),
            ring: 1 << 16,
            bulk: 0,
            memory: 1 << 20,
            huge: false,
        };
        assert_eq!(Offerer::begin(&pair).err(), None);
        drop(near);
        assert_eq!(Offerer::begin(&pair).err(), Some(Reason::PEER_GONE));
    }
}
