//! How the two ends of one TCP connection find each other.
//!
//! The end that connected listens on an abstract SEQPACKET name made from its socket's SO_COOKIE ([`Listening`]); the end
//! that accepted asks the kernel for the socket at the other end (sock_diag), connects to the name made from *its* cookie
//! and passes the memfd ([`Offering`]). Both check what the kernel attests: credentials of the process, network
//! namespace, and the cookie of the very socket at the other end, so a squatted name, a reused port or a listener inherited
//! by a fork gets nothing. The TCP descriptor never travels (in flight it would delay FIN).

use crate::arena;
use crate::offer::{Bad, Offer, SIZE};
use motet_engine::driver::{Connecting, Pair, Progress, Wire};
use motet_engine::engine::lock;
use motet_engine::reason::Reason;
use motet_sys::diag::Diag;
use motet_sys::fds::PrivateFd;
use motet_sys::rustix::fd::OwnedFd;
use motet_sys::socket::{self, Credentials};
use motet_sys::thread::euid;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};

/// Users outside our user namespace all look like this one.
const OVERFLOW_UID: u32 = 65534;

static DIAG: Mutex<Option<Diag>> = Mutex::new(None);

/// In a forked child: the parent's netlink socket is not ours to read from.
pub fn forget() {
    lock(&DIAG).take();
}

/// For the time of a fork.
pub fn quiet() -> MutexGuard<'static, Option<Diag>> {
    lock(&DIAG)
}

fn name(netns: u64, cookie: u64) -> Vec<u8> {
    format!("motet/{}/{netns:x}/{cookie:x}", motet_wire::segment::VERSION).into_bytes()
}

/// The cookie and owner of the socket at the other end of a connection.
fn other_end(pair: &Pair) -> Result<Option<motet_sys::diag::Found>, Reason> {
    let mut diag = lock(&DIAG);
    if diag.is_none() {
        *diag = Some(Diag::open().map_err(|_| Reason::NOT_PERMITTED)?);
    }
    let found = diag.as_ref().map_or(Ok(None), |d| d.find(pair.peer, pair.local));
    found.map_err(|_| {
        diag.take(); // an answer out of step: begin with a fresh socket next time
        Reason::NOT_PERMITTED
    })
}

/// We are a user that means something here.
fn somebody() -> Result<(), Reason> {
    if euid() == OVERFLOW_UID { Err(Reason::NOBODY) } else { Ok(()) }
}

/// Same user as we are now, and a user that means something here.
fn trusted(peer: &Credentials) -> bool {
    peer.uid == euid() && peer.uid != OVERFLOW_UID
}

/// The end that accepted: offers a slot.
pub struct Offering {
    pair: Pair,
    netns: u64,
    other: u64,
}

impl Offering {
    /// Looks for the other end.
    pub fn begin(pair: &Pair) -> Result<Box<dyn Connecting>, Reason> {
        let netns = socket::netns_cookie(pair.fd).map_err(|_| Reason::NOT_PERMITTED)?;
        match other_end(pair)? {
            None => Err(Reason::OTHER_HOST),
            Some(found) if found.uid != euid() => Err(Reason::OTHER_USER),
            Some(found) => {
                somebody().map(|()| Box::new(Self { pair: *pair, netns, other: found.cookie }) as Box<dyn Connecting>)
            }
        }
    }

    fn offer(&self, rendezvous: &OwnedFd, peer: Credentials) -> Result<Wire, Reason> {
        let place = arena::place(peer, (self.pair.ring, self.pair.bulk), [self.pair.cookie, self.other])?;
        let offer = Offer {
            netns: self.netns,
            offerer: self.pair.cookie,
            other: self.other,
            slot: place.index,
            nonce: place.nonce,
        };
        if socket::send_with_fd(rendezvous, &offer.encode(), &*place.file).is_err() {
            arena::withdraw(&place);
            return Err(Reason::NOT_PERMITTED);
        }
        Ok(Wire { slot: place.slot, peer, peer_cookie: self.other })
    }
}

impl Connecting for Offering {
    fn step(&mut self) -> Progress {
        let rendezvous = match socket::connect_abstract(&name(self.netns, self.other)) {
            Ok(rendezvous) => rendezvous,
            Err(EPERM | EACCES) => return Progress::Never(Reason::NOT_PERMITTED),
            Err(_) => return Progress::Pending, // not equipped, or not yet listening
        };
        let Ok(peer) = socket::peer_credentials(&rendezvous) else { return Progress::Pending };
        if !trusted(&peer) {
            return Progress::Never(Reason::OTHER_USER);
        }
        match self.offer(&rendezvous, peer) {
            Ok(wire) => Progress::Up(wire),
            Err(reason) => Progress::Never(reason),
        }
    }
}

/// The end that connected: waits for the offer.
pub struct Listening {
    pair: Pair,
    netns: u64,
    listener: PrivateFd,
    guest: Option<OwnedFd>,
}

impl Listening {
    /// Opens the rendezvous of this connection.
    pub fn begin(pair: &Pair) -> Result<Box<dyn Connecting>, Reason> {
        somebody()?;
        let netns = socket::netns_cookie(pair.fd).map_err(|_| Reason::NOT_PERMITTED)?;
        let listener = socket::listen_abstract(&name(netns, pair.cookie))
            .map_err(|e| if e == EADDRINUSE { Reason::NAME_TAKEN } else { Reason::NO_MEMORY })?;
        Ok(Box::new(Self { pair: *pair, netns, listener: PrivateFd::new(listener), guest: None }))
    }

    /// Checks an offer in full before anything of it is used.
    fn take(&self, bytes: &[u8], file: Option<OwnedFd>, peer: Credentials) -> Result<Wire, Reason> {
        let offer = Offer::decode(bytes).map_err(|bad| match bad {
            Bad::Version(_) => Reason::VERSION,
            Bad::Malformed => Reason::BAD_OFFER,
        })?;
        let found = other_end(&self.pair)?.ok_or(Reason::PEER_GONE)?;
        if offer.netns != self.netns || offer.other != self.pair.cookie || offer.offerer != found.cookie {
            return Err(Reason::BAD_OFFER);
        }
        let slot = arena::take(peer, &file.ok_or(Reason::BAD_OFFER)?, offer.slot, offer.nonce)?;
        // Attached first, checked then: an offerer that sees us attached does not give the slot to another connection.
        slot.head().attached[1].store(1, Ordering::SeqCst);
        if slot.head().cookies.each_ref().map(|c| c.load(Ordering::SeqCst)) != [offer.offerer, offer.other] {
            arena::abandon(&slot);
            return Err(Reason::BAD_OFFER);
        }
        Ok(Wire { slot, peer, peer_cookie: offer.offerer })
    }
}

impl Connecting for Listening {
    fn step(&mut self) -> Progress {
        if self.guest.is_none() {
            self.guest = socket::accept(&self.listener).ok();
        }
        let Some(guest) = &self.guest else { return Progress::Pending };
        let Ok(peer) = socket::peer_credentials(guest) else {
            self.guest = None;
            return Progress::Pending;
        };
        if !trusted(&peer) {
            self.guest = None; // somebody knocked who has no business here; the right one may still come
            return Progress::Pending;
        }
        let mut bytes = [0; SIZE + 1];
        match socket::receive_with_fd(guest, &mut bytes) {
            Ok((n, file)) => match self.take(&bytes[..n.min(bytes.len())], file, peer) {
                Ok(wire) => Progress::Up(wire),
                Err(Reason::BAD_OFFER) => {
                    self.guest = None;
                    Progress::Pending
                }
                Err(reason) => Progress::Never(reason),
            },
            Err(EAGAIN) => Progress::Pending,
            Err(_) => {
                self.guest = None;
                Progress::Pending
            }
        }
    }
}

const EPERM: i32 = 1;
const EAGAIN: i32 = 11;
const EACCES: i32 = 13;
const EADDRINUSE: i32 = 98;
