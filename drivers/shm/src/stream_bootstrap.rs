//! How the two ends of one TCP connection find each other.
//!
//! The end that connected listens on an abstract SEQPACKET name made from its socket's SO_COOKIE ([`Listener`]); the end
//! that accepted asks the kernel for the socket at the other end (sock_diag), connects to the name made from *its* cookie
//! and passes the memfd ([`Offering`]). Both check what the kernel attests: credentials of the process, network
//! namespace, and the cookie of the very socket at the other end, so a squatted name, a reused port or a listener inherited
//! by a fork gets nothing. The TCP descriptor never travels (in flight it would delay FIN).
//!
//! The offer is taken when the slot says so; until then the end that accepted holds the connection to the rendezvous, where a
//! refusal comes back. So both ends know why a connection stays on TCP, whatever versions they are.

use crate::links::{Place, Shape};
use crate::offer::{Bad, Offer, REFUSAL_SIZE, Refusal, SIZE};
use crate::segment_pool;
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

/// Users outside our user namespace all look like this one.
const OVERFLOW_UID: u32 = 65534;

static DIAG: Mutex<Option<SockDiag>> = Mutex::new(None);

/// In a forked child: the parent's netlink socket is not ours to read from.
pub fn forget() {
    lock(&DIAG).take();
}

/// For the time of a fork.
pub fn quiet() -> MutexGuard<'static, Option<SockDiag>> {
    lock(&DIAG)
}

/// The same in every version.
fn name(netns: u64, cookie: u64) -> Vec<u8> {
    format!("motet/{netns:x}/{cookie:x}").into_bytes()
}

/// Descriptors that wait for the other end, and the part of all that the process may have which they may be. The rest is the
/// program's, however many connections it makes to peers that never come.
static WAITING: AtomicUsize = AtomicUsize::new(0);
const PART: usize = 4;
/// Connections to the bootstrap socket of one stream: one, unless a process errs.
const BACKLOG: i32 = 4;

/// Leave to hold one such descriptor.
struct Room;

impl Room {
    fn enter() -> Option<Self> {
        if WAITING.fetch_add(1, Ordering::Relaxed) < private_fds::descriptor_limit() / PART {
            return Some(Self);
        }
        WAITING.fetch_sub(1, Ordering::Relaxed);
        None
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

fn shape(pair: &Pair) -> Shape {
    Shape { ring: pair.ring, bulk: pair.bulk, limit: pair.memory, huge: pair.huge }
}

/// The cookie and owner of the socket at the other end of a connection.
fn other_end(pair: &Pair) -> Result<Option<motet_sys::sock_diag::SocketInfo>, Reason> {
    let mut diag = lock(&DIAG);
    if diag.is_none() {
        *diag = Some(SockDiag::open().map_err(|_| Reason::NOT_PERMITTED)?);
    }
    let found = diag.as_ref().map_or(Ok(None), |d| d.find(pair.peer, pair.local));
    found.map_err(|_| {
        diag.take(); // an answer out of step: begin with a fresh socket next time
        Reason::NOT_PERMITTED
    })
}

/// We are a user that means something here.
fn usable_uid() -> Result<(), Reason> {
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
    offered: Option<Offered>,
}

/// An offer that was made and not answered yet.
struct Offered {
    /// Where a refusal comes back.
    rendezvous: PrivateFd,
    peer: Credentials,
    place: Option<Place>,
    /// The process that made it; a forked child has a copy.
    by: u32,
    _room: Room,
}

impl Drop for Offered {
    fn drop(&mut self) {
        match &self.place {
            Some(place) if self.by == thread::pid() => segment_pool::leave(&place.slot),
            Some(place) => segment_pool::abandon(&place.slot),
            None => {}
        }
    }
}

impl Offering {
    /// Looks for the other end.
    pub fn begin(pair: &Pair) -> Result<Box<dyn Connecting>, Reason> {
        let netns = socket::netns_cookie(pair.fd).map_err(|_| Reason::NOT_PERMITTED)?;
        match other_end(pair)? {
            None => Err(Reason::OTHER_HOST),
            Some(found) if found.uid != euid() => Err(Reason::OTHER_USER),
            Some(found) => {
                let offering = Self { pair: *pair, netns, other: found.cookie, offered: None };
                usable_uid().map(|()| Box::new(offering) as Box<dyn Connecting>)
            }
        }
    }

    fn offer(&self, rendezvous: OwnedFd, peer: Credentials, place: Place, room: Room) -> Result<Offered, Reason> {
        let offer = Offer {
            netns: self.netns,
            offerer: self.pair.cookie,
            other: self.other,
            slot: place.index,
            nonce: place.nonce,
        };
        if socket::send_with_fd(&rendezvous, &offer.encode(), &*place.file).is_err() {
            segment_pool::withdraw(&place);
            return Err(Reason::NOT_PERMITTED);
        }
        let rendezvous = PrivateFd::new(rendezvous);
        Ok(Offered { rendezvous, peer, place: Some(place), by: thread::pid(), _room: room })
    }

    /// What became of the offer.
    fn hear(&mut self) -> Progress {
        let Some(offered) = &mut self.offered else { return Progress::Pending };
        if offered.by != thread::pid() {
            self.offered = None; // the parent's
            return Progress::Pending;
        }
        let taken = |place: &mut Place| place.slot.head().attached[1].load(Ordering::SeqCst) != 0;
        let mut answer = [0; REFUSAL_SIZE];
        let mut heard = None;
        loop {
            if let Some(place) = offered.place.take_if(taken) {
                return Progress::Up(Wire { slot: place.slot, peer: offered.peer, peer_cookie: self.other });
            }
            // Once more after an end: the end that takes an offer says so first, then leaves.
            match heard {
                None => heard = Some(socket::receive_with_fd(&offered.rendezvous, &mut answer)),
                Some(Err(EAGAIN)) => return Progress::Pending,
                Some(Ok((n @ 1.., _))) => return Progress::Rejected(Refusal::decode(&answer[..n]).0),
                Some(_) => {
                    self.offered = None;
                    return Progress::Pending;
                }
            }
        }
    }
}

impl Connecting for Offering {
    fn step(&mut self) -> Progress {
        if self.offered.is_some() {
            return self.hear();
        }
        let Some(room) = Room::enter() else { return Progress::Busy };
        let rendezvous = match socket::connect_abstract(&name(self.netns, self.other)) {
            Ok(rendezvous) => rendezvous,
            Err(EPERM | EACCES) => return Progress::Rejected(Reason::NOT_PERMITTED),
            Err(_) => return Progress::Pending, // without Motet, or not yet listening
        };
        let Ok(peer) = socket::peer_credentials(&rendezvous) else { return Progress::Pending };
        if !trusted(&peer) {
            return Progress::Rejected(Reason::OTHER_USER);
        }
        let place = match segment_pool::place(peer, shape(&self.pair), [self.pair.cookie, self.other]) {
            Ok(place) => place,
            Err(reason) => {
                let _ = socket::send_message(&rendezvous, &Refusal(reason).encode());
                return Progress::Rejected(reason);
            }
        };
        match self.offer(rendezvous, peer, place, room) {
            Ok(offered) => {
                self.offered = Some(offered);
                Progress::Pending
            }
            Err(reason) => Progress::Rejected(reason),
        }
    }
}

/// The end that connected: waits for the offer.
pub struct Listener {
    pair: Pair,
    netns: u64,
    listener: Option<(PrivateFd, Room)>,
    /// Somebody who has come and not spoken yet.
    guest: Option<PrivateFd>,
}

impl Listener {
    /// Opens the rendezvous of this connection, now or when there is room for it.
    pub fn begin(pair: &Pair) -> Result<Box<dyn Connecting>, Reason> {
        usable_uid()?;
        let netns = socket::netns_cookie(pair.fd).map_err(|_| Reason::NOT_PERMITTED)?;
        let mut listening = Self { pair: *pair, netns, listener: None, guest: None };
        listening.open()?;
        Ok(Box::new(listening))
    }

    fn open(&mut self) -> Result<(), Reason> {
        let Some(room) = Room::enter() else { return Ok(()) };
        let listener = socket::listen_abstract(&name(self.netns, self.pair.cookie), BACKLOG)
            .map_err(|e| if e == EADDRINUSE { Reason::NAME_TAKEN } else { Reason::NO_MEMORY })?;
        self.listener = Some((PrivateFd::new(listener), room));
        Ok(())
    }

    /// Hears out who has come. `None`: they say nothing yet.
    fn hear(&self, guest: impl AsFd) -> Option<Progress> {
        let Ok(peer) = socket::peer_credentials(&guest) else { return Some(Progress::Pending) };
        if !trusted(&peer) {
            return Some(Progress::Pending); // the connection is of another process; the right one may still come
        }
        let mut bytes = [0; SIZE + 1];
        let (n, file) = match socket::receive_with_fd(&guest, &mut bytes) {
            Ok(message) => message,
            Err(EAGAIN) => return None,
            Err(_) => return Some(Progress::Pending),
        };
        let bytes = &bytes[..n.min(bytes.len())];
        if let Some(Refusal(reason)) = Refusal::from(bytes) {
            return Some(Progress::Rejected(reason));
        }
        Some(match self.take(bytes, file, peer) {
            Ok(wire) => Progress::Up(wire),
            Err(Reason::BAD_OFFER) => Progress::Pending,
            Err(reason) => {
                let _ = socket::send_message(&guest, &Refusal(reason).encode());
                Progress::Rejected(reason)
            }
        })
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
        let file = file.ok_or(Reason::BAD_OFFER)?;
        let slot = segment_pool::take(peer, &file, (offer.slot, offer.nonce), shape(&self.pair))?;
        // Attached first, checked then: an offerer that sees us attached does not give the slot to another connection.
        slot.head().attached[1].store(1, Ordering::SeqCst);
        if slot.head().cookies.each_ref().map(|c| c.load(Ordering::SeqCst)) != [offer.offerer, offer.other] {
            segment_pool::abandon(&slot);
            return Err(Reason::BAD_OFFER);
        }
        Ok(Wire { slot, peer, peer_cookie: offer.offerer })
    }
}

impl Connecting for Listener {
    fn step(&mut self) -> Progress {
        if self.listener.is_none()
            && let Err(reason) = self.open()
        {
            return Progress::Rejected(reason);
        }
        let Some((listener, _)) = &self.listener else { return Progress::Busy };
        if let Some(guest) = self.guest.take() {
            return self.hear(&guest).unwrap_or_else(|| {
                self.guest = Some(guest);
                Progress::Pending
            });
        }
        // Asked first: a failed accept still makes a socket.
        let Some(guest) =
            socket::readable(listener.as_fd().as_raw_fd()).then(|| socket::accept(listener).ok()).flatten()
        else {
            return Progress::Pending;
        };
        self.hear(&guest).unwrap_or_else(|| {
            self.guest = Some(PrivateFd::new(guest));
            Progress::Pending
        })
    }
}

const EPERM: i32 = 1;
const EAGAIN: i32 = 11;
const EACCES: i32 = 13;
const EADDRINUSE: i32 = 98;
