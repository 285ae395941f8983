//! Packets between two nodes over TCP: a session and the sockets of its rails.
//!
//! What it is: what the session has to send goes to the sockets, at best in the very call that puts it; what they have is
//! received in large chunks; and when they break the caller connects again while the other side waits, and asks meanwhile
//! whether there still is a caller (`connections`). What it is not: order, numbers and what is sent again are the session's.

mod connections;

use crate::acceptor::Door;
use crate::dial::Dial;
use crate::session_table::{Mailbox, Node, lock};
use crate::socket::{self, Set};
use motet_engine::message::transport::{Lost, PacketTransport};
use motet_engine::reason::Reason;
use motet_proto::message::Packets;
use motet_proto::message::session::{MAX_IO_SLICES, MAX_RAILS, Role, Session};
use motet_sys::private_fds::PrivateFd;
use motet_sys::rustix::io::{Errno, Result};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

/// A goodbye that is not answered for so long is none, ns.
const FAREWELL: u64 = 10_000_000_000;

/// As many bytes that come at a time, or are not acknowledged yet, are much; so many times less must come until that is over.
const MUCH: usize = 8 << 10;
const MUCH_OUT: u64 = 64 << 10;
const TIMES: u32 = 16;
/// Empty polls after much has arrived: some 10 us.
const LINGER: u32 = 24;
/// A frame that lacks fewer bytes is waited for like any.
const MUCH_LACKING: usize = 64;

/// The socket of a rail.
#[derive(Debug)]
struct Socket {
    fd: PrivateFd,
    /// The set watches whether it takes more.
    watched: bool,
    /// It takes nothing any more. What has come can still be read.
    failed: bool,
    /// It is not ready before so many bytes are there.
    low: usize,
}

/// A link.
#[derive(Debug)]
pub struct Link {
    session: Session,
    role: Role,
    sockets: [Option<Socket>; MAX_RAILS],
    /// No socket takes more now.
    behind: bool,
    /// Much has come lately: how many times less may come until that is forgotten.
    much: u32,
    /// Much has come since it was last looked for.
    came_much: bool,
    set: Set,
    node: Arc<Node>,
    mailbox: Arc<Mailbox>,
    /// Where the other node listens, if it does.
    address: Option<SocketAddr>,
    /// The called side has asked there once, and when no node answered: then the caller is not there.
    asked: bool,
    refused: Option<u64>,
    dial: Option<Dial>,
    /// Where the other can ask for us, if this link has to see to it, and when it did so last.
    door: Option<Arc<Mutex<Door>>>,
    stepped: u64,
    lost: Option<Reason>,
    /// When waiting for the answer to our goodbye ends.
    farewell: Option<u64>,
}

impl Link {
    /// A link over a session's first connection, which is right behind the greetings.
    pub(crate) fn new(
        session: Session,
        role: Role,
        fd: PrivateFd,
        (node, mailbox): (Arc<Node>, Arc<Mailbox>),
        address: Option<SocketAddr>,
        door: Option<Arc<Mutex<Door>>>,
    ) -> Result<Self> {
        let mut link = Self {
            session,
            role,
            sockets: [const { None }; MAX_RAILS],
            behind: false,
            much: 0,
            came_much: false,
            set: Set::new()?,
            node,
            mailbox,
            address,
            asked: false,
            refused: None,
            dial: None,
            door,
            stepped: 0,
            lost: None,
            farewell: None,
        };
        link.set.add(link.mailbox.bell())?;
        if let Some(door) = &link.door {
            link.set.add(lock(door).set())?;
        }
        link.install(0, fd)?;
        link.flush(false);
        Ok(link)
    }

    /// Connections that it has now.
    pub fn connections(&self) -> usize {
        self.sockets.iter().flatten().count()
    }

    /// Bytes of memory that it holds for packets.
    pub fn memory(&self) -> usize {
        self.session.memory()
    }

    fn install(&mut self, slot: usize, fd: PrivateFd) -> Result<()> {
        self.set.add(&fd)?;
        self.sockets[slot] = Some(Socket { fd, watched: false, failed: false, low: 1 });
        self.behind = false;
        Ok(())
    }

    // ---- in ---------------------------------------------------------------------------------------------------------

    /// Whether a packet is there.
    #[inline]
    fn ready(&mut self, now: u64) -> std::result::Result<bool, Lost> {
        if let Some(reason) = self.lost {
            return Err(Lost(reason));
        }
        Ok(self.take(now)? || self.receive(now) && self.take(now)?)
    }

    fn take(&mut self, now: u64) -> std::result::Result<bool, Lost> {
        match self.session.ready(now) {
            Ok(true) => Ok(true),
            Ok(false) if self.session.is_peer_closed() && self.farewell.is_none() => {
                self.flush(false); // so that the other hears that its goodbye has come
                Err(self.end(Reason::PEER_GONE))
            }
            Ok(false) => Ok(false),
            Err(_) => Err(self.end(Reason::BROKEN)),
        }
    }

    /// Receives what is there; whether anything was.
    fn receive(&mut self, now: u64) -> bool {
        // While much is on its way, looking for it with `recv` would hold the socket's lock, under which the kernel takes in what comes
        // and what is acknowledged, most of the time. Asking the set holds none; but it is one call more for what is there.
        if (self.much > 0 || self.session.unacknowledged() >= MUCH_OUT) && !self.linger() {
            return false;
        }
        let (mut came, mut any, mut broken) = (0, false, false);
        for slot in 0..MAX_RAILS {
            let Some(socket) = &mut self.sockets[slot] else { continue };
            if self.session.has_ended(slot) {
                self.sockets[slot] = None;
                continue;
            }
            let Some(space) = self.session.space(slot) else { continue };
            match socket::receive(&socket.fd, space) {
                Ok(0) => broken = true,
                Ok(n) => {
                    self.session.received(slot, n);
                    came += n;
                    any = true;
                    // Being woken is dear, for the sender's CPU above all: not for a part of a frame.
                    let lacks = self.session.missing_bytes(slot);
                    let low = if lacks >= MUCH_LACKING { lacks } else { 1 };
                    if low != socket.low {
                        socket::wait_for(&socket.fd, low);
                        socket.low = low;
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => broken |= socket.failed,
                Err(_) => broken = true,
            }
        }
        if any {
            self.came_much = came >= MUCH;
            self.much = if came >= MUCH { TIMES } else { self.much.saturating_sub(1) };
        }
        // What has come before the break counts: only then is it a break.
        if broken && !any {
            self.broke(now);
        }
        any
    }

    /// Whether there is anything to receive, soon after much has come: waking who sleeps costs the sender's CPU more than looking a
    /// little longer costs this one. Once for each time that much comes, so that no other link waits for long.
    fn linger(&mut self) -> bool {
        let looks = if std::mem::take(&mut self.came_much) { LINGER } else { 1 };
        (0..looks).any(|_| self.set.is_ready())
    }

    // ---- out --------------------------------------------------------------------------------------------------------

    /// Sends what goes at once. `again`: it did not go before, so a socket that still takes nothing is watched.
    fn flush(&mut self, again: bool) {
        self.behind = true;
        for slot in 0..MAX_RAILS {
            self.behind &= self.flush_rail(slot, again);
        }
    }

    /// Whether the rail takes no more now, or is none.
    fn flush_rail(&mut self, slot: usize, again: bool) -> bool {
        let Some(socket) = &mut self.sockets[slot] else { return true };
        while !socket.failed {
            let mut pieces = [IoSlice::new(&[]); MAX_IO_SLICES];
            let n = self.session.outgoing(slot, &mut pieces);
            let size: usize = pieces[..n].iter().map(|piece| piece.len()).sum();
            if size == 0 {
                if socket.watched {
                    socket.watched = self.set.change(&socket.fd, true, false).is_err();
                }
                return false;
            }
            match socket::send(&socket.fd, &pieces[..n]) {
                Ok(sent) => {
                    self.session.sent(slot, sent);
                    if sent == size {
                        continue;
                    }
                }
                Err(Errno::AGAIN) => {}
                Err(Errno::INTR) => continue,
                Err(_) => {
                    // Reading finds out, after what came before.
                    socket.failed = true;
                    break;
                }
            }
            self.session.blocked();
            if again && !socket.watched {
                socket.watched = self.set.change(&socket.fd, true, true).is_ok();
            }
            break;
        }
        true
    }
}

impl Packets for Link {
    fn largest(&self) -> usize {
        self.session.largest()
    }

    fn room(&mut self) -> usize {
        if self.lost.is_some() { 0 } else { self.session.room() }
    }

    #[inline]
    fn put(&mut self, kind: u8, parts: &[&[u8]]) -> bool {
        if self.lost.is_some() || !self.session.put(kind, parts) {
            return false;
        }
        if !self.behind {
            self.flush(false);
        }
        true
    }
}

impl PacketTransport for Link {
    fn poll(&mut self, now: u64) -> std::result::Result<Option<(u8, &[u8])>, Lost> {
        if !self.ready(now)? {
            return Ok(None);
        }
        Ok(self.session.packet())
    }

    fn progress(&mut self, now: u64) -> std::result::Result<(), Lost> {
        if let Some(reason) = self.lost {
            return Err(Lost(reason));
        }
        self.connections_step(now)?;
        if self.session.has_outgoing() {
            self.flush(true);
        }
        Ok(())
    }

    fn descriptor(&self) -> RawFd {
        self.set.descriptor()
    }

    fn due(&self) -> Option<u64> {
        if self.lost.is_some() {
            return None;
        }
        let door = self.door.as_ref().and_then(|door| lock(door).due());
        [self.session.due(), self.dial.as_ref().map(Dial::due), self.farewell, door].into_iter().flatten().min()
    }

    fn counts(&self) -> [u64; 3] {
        self.session.counts()
    }

    fn close(&mut self, now: u64) -> bool {
        let until = *self.farewell.get_or_insert(now.saturating_add(FAREWELL));
        self.session.say_goodbye();
        // What still arrives is discarded, but the answer is among it.
        while let Ok(true) = self.ready(now) {}
        if self.progress(now).is_ok() && !self.session.is_done() && now < until {
            return false;
        }
        if self.lost.is_none() {
            self.end(Reason::PEER_GONE);
        }
        true
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.lost.is_none() {
            self.node.leave(self.session.number());
        }
    }
}
