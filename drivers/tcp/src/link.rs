//! Packets between two nodes over TCP: a session and the sockets of its rails.
//!
//! What the session has to send goes to the sockets, if possible within the call that puts it; what the sockets have is received in large
//! chunks. When connections break, the caller connects again while the called side waits and asks whether the caller still exists
//! (`connections`). What it is not: order, sequence numbers and retransmission are the session's.

mod connections;

use crate::acceptor::Acceptor;
use crate::congestion;
use crate::file_body::{self, FileBodyError};
use crate::node::LocalNode;
use crate::outgoing::OutgoingConnection;
use crate::session_table::{Mailbox, lock};
use crate::socket::{self, PollSet};
use motet_engine::message::transport::{Lost, PacketTransport};
use motet_engine::reason::Reason;
use motet_proto::message::packet::{Kind, MESSAGE_HEAD_BYTES};
use motet_proto::message::session::{MAX_IO_SLICES, MAX_RAILS, Role, Session};
use motet_proto::message::{FileRange, Packets};
use motet_sys::private_fds::PrivateFd;
use motet_sys::rustix::io::{Errno, Result};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

/// A close ends after this time although the peer has not answered the goodbye, ns.
const CLOSE_TIMEOUT_NS: u64 = 10_000_000_000;

/// Traffic is bulk once a receive gets this many bytes, and until BULK_DECAY receives in a row get fewer; and while more than
/// BULK_UNACKNOWLEDGED_BYTES are sent and not acknowledged.
const BULK_BYTES: usize = 8 << 10;
const BULK_UNACKNOWLEDGED_BYTES: u64 = 64 << 10;
const BULK_DECAY: u32 = 16;
/// Polls of the epoll set after bulk has arrived: some 10 us.
const BULK_POLLS: u32 = 24;
/// A frame that lacks at least this many bytes raises the low-water mark of its socket.
const MIN_LOW_WATER_BYTES: usize = 64;

/// The socket of a rail.
#[derive(Debug)]
struct Socket {
    fd: PrivateFd,
    /// The set watches for output.
    watched: bool,
    /// Sends fail. Bytes that have arrived can still be read.
    failed: bool,
    /// The low-water mark: the socket is not readable with fewer bytes.
    low_water: usize,
}

/// A link over TCP.
#[derive(Debug)]
pub struct TcpLink {
    session: Session,
    role: Role,
    sockets: [Option<Socket>; MAX_RAILS],
    /// No socket takes more at present.
    blocked: bool,
    /// Above 0 while incoming traffic is bulk; counts down with each smaller receive.
    bulk_score: u32,
    /// Bulk has arrived since the last wait for it.
    bulk_arrived: bool,
    set: PollSet,
    node: Arc<LocalNode>,
    mailbox: Arc<Mailbox>,
    /// Where the peer node listens, if it does.
    address: Option<SocketAddr>,
    /// The called side has probed that address once.
    probed: bool,
    /// When no node answered that probe: the caller does not listen there.
    probe_refused_at: Option<u64>,
    attempt: Option<OutgoingConnection>,
    /// Where the peer can ask whether this node exists, if this link has to step it.
    acceptor: Option<Arc<Mutex<Acceptor>>>,
    acceptor_stepped_at: u64,
    lost: Option<Reason>,
    /// Until when a close waits for the answer to the goodbye.
    close_deadline: Option<u64>,
}

impl TcpLink {
    /// A link over a session's first connection, whose next byte is the session's.
    pub(crate) fn new(
        session: Session,
        role: Role,
        fd: PrivateFd,
        (node, mailbox): (Arc<LocalNode>, Arc<Mailbox>),
        address: Option<SocketAddr>,
        acceptor: Option<Arc<Mutex<Acceptor>>>,
    ) -> Result<Self> {
        let mut link = Self {
            session,
            role,
            sockets: [const { None }; MAX_RAILS],
            blocked: false,
            bulk_score: 0,
            bulk_arrived: false,
            set: PollSet::new()?,
            node,
            mailbox,
            address,
            probed: false,
            probe_refused_at: None,
            attempt: None,
            acceptor,
            acceptor_stepped_at: 0,
            lost: None,
            close_deadline: None,
        };
        link.set.add(link.mailbox.doorbell())?;
        if let Some(acceptor) = &link.acceptor {
            link.set.add(lock(acceptor).set())?;
        }
        link.add_connection(0, fd)?;
        link.flush(false);
        Ok(link)
    }

    /// The number of its connections.
    pub fn connections(&self) -> usize {
        self.sockets.iter().flatten().count()
    }

    /// Bytes of memory that the session holds for packets.
    pub fn memory(&self) -> usize {
        self.session.memory()
    }

    fn add_connection(&mut self, slot: usize, fd: PrivateFd) -> Result<()> {
        self.set.add(&fd)?;
        congestion::choose(&fd);
        self.sockets[slot] = Some(Socket { fd, watched: false, failed: false, low_water: 1 });
        self.blocked = false;
        Ok(())
    }

    // ---- receive ---------------------------------------------------------------------------------------------------------

    /// Whether a packet is ready.
    #[inline]
    fn ready(&mut self, now: u64) -> std::result::Result<bool, Lost> {
        if let Some(reason) = self.lost {
            return Err(Lost(reason));
        }
        Ok(self.session_ready(now)? || self.receive(now) && self.session_ready(now)?)
    }

    fn session_ready(&mut self, now: u64) -> std::result::Result<bool, Lost> {
        match self.session.ready(now) {
            Ok(true) => Ok(true),
            Ok(false) if self.session.is_peer_closed() && self.close_deadline.is_none() => {
                self.flush(false); // the peer waits for the answer to its goodbye
                Err(self.finish(Reason::PEER_GONE))
            }
            Ok(false) => Ok(false),
            Err(_) => Err(self.finish(Reason::BROKEN)),
        }
    }

    /// Receives what has arrived; whether there was anything.
    fn receive(&mut self, now: u64) -> bool {
        // During bulk traffic, polling with `recv` would hold the socket's lock most of the time, and the kernel needs that lock to take in
        // packets and acknowledgements. Polling the epoll set holds no socket lock, but costs one more call when bytes are there.
        if (self.bulk_score > 0 || self.session.unacknowledged() >= BULK_UNACKNOWLEDGED_BYTES) && !self.poll_for_bulk()
        {
            return false;
        }
        let (mut received, mut any, mut broken) = (0, false, false);
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
                    received += n;
                    any = true;
                    // A wakeup is expensive, mostly for the sender's CPU: there is none for a part of a frame.
                    let missing = self.session.missing_bytes(slot);
                    let low_water = if missing >= MIN_LOW_WATER_BYTES { missing } else { 1 };
                    if low_water != socket.low_water {
                        socket::set_low_water(&socket.fd, low_water);
                        socket.low_water = low_water;
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => broken |= socket.failed,
                Err(_) => broken = true,
            }
        }
        if any {
            self.bulk_arrived = received >= BULK_BYTES;
            self.bulk_score = if received >= BULK_BYTES { BULK_DECAY } else { self.bulk_score.saturating_sub(1) };
        }
        // Bytes that arrived before the break are received first.
        if broken && !any {
            self.connection_broke(now);
        }
        any
    }

    /// Whether there is anything to receive. After bulk has arrived it polls for some 10 us, as a wakeup costs the sender's CPU more than
    /// polling costs this one; only once for each arrival of bulk, so that other links do not wait for long.
    fn poll_for_bulk(&mut self) -> bool {
        let polls = if std::mem::take(&mut self.bulk_arrived) { BULK_POLLS } else { 1 };
        (0..polls).any(|_| self.set.is_ready())
    }

    // ---- send --------------------------------------------------------------------------------------------------------

    /// Sends without blocking. `again`: an earlier send was blocked, so the set watches a socket that is still full.
    fn flush(&mut self, again: bool) {
        self.blocked = true;
        for slot in 0..MAX_RAILS {
            self.blocked &= self.flush_rail(slot, again);
        }
    }

    /// Whether the rail takes no more at present, or does not exist.
    fn flush_rail(&mut self, slot: usize, again: bool) -> bool {
        let Some(socket) = &mut self.sockets[slot] else { return true };
        while !socket.failed {
            let mut pieces = [IoSlice::new(&[]); MAX_IO_SLICES];
            let (n, file) = self.session.outgoing_with_file(slot, &mut pieces);
            let size: usize = pieces[..n].iter().map(|piece| piece.len()).sum();
            let (size, sent) = match (size, &file) {
                (0, None) => {
                    if socket.watched {
                        socket.watched = self.set.change(&socket.fd, true, false).is_err();
                    }
                    return false;
                }
                (0, Some(file)) => match file_body::send(&socket.fd, file) {
                    Err(FileBodyError::Unreadable) => {
                        // What was promised cannot be sent, now or over another connection.
                        self.finish(Reason::UNREADABLE);
                        return true;
                    }
                    Err(FileBodyError::Socket(errno)) => (0, Err(errno)),
                    Ok(sent) => (file.len() as usize, Ok(sent)),
                },
                (size, file) => (size, socket::send(&socket.fd, &pieces[..n], file.is_some())),
            };
            match sent {
                Ok(sent) => {
                    self.session.sent(slot, sent);
                    if sent == size {
                        continue;
                    }
                }
                Err(Errno::AGAIN) => {}
                Err(Errno::INTR) => continue,
                Err(_) => {
                    // The receive side handles the break, after the bytes that arrived before it.
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

impl Packets for TcpLink {
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
        if !self.blocked {
            self.flush(false);
        }
        true
    }

    fn takes_files(&self) -> bool {
        file_body::is_possible()
    }

    fn put_file_piece(&mut self, head: &[u8; MESSAGE_HEAD_BYTES], body: FileRange) -> bool {
        if self.lost.is_some() || !self.session.put_file(Kind::Piece as u8, head, body) {
            return false;
        }
        if !self.blocked {
            self.flush(false);
        }
        self.lost.is_none()
    }
}

impl PacketTransport for TcpLink {
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
            return Some(0); // `poll` reports it: a send can have found it
        }
        let acceptor = self.acceptor.as_ref().and_then(|acceptor| lock(acceptor).due());
        let attempt = self.attempt.as_ref().map(OutgoingConnection::deadline);
        [self.session.due(), attempt, self.close_deadline, acceptor].into_iter().flatten().min()
    }

    fn counts(&self) -> [u64; 3] {
        self.session.counts()
    }

    fn close(&mut self, now: u64) -> bool {
        let deadline = *self.close_deadline.get_or_insert(now.saturating_add(CLOSE_TIMEOUT_NS));
        self.session.say_goodbye();
        // Packets that still arrive are discarded; the answer to the goodbye is among the bytes.
        while let Ok(true) = self.ready(now) {}
        if self.progress(now).is_ok() && !self.session.is_done() && now < deadline {
            return false;
        }
        if self.lost.is_none() {
            self.finish(Reason::PEER_GONE);
        }
        true
    }
}

impl Drop for TcpLink {
    fn drop(&mut self) {
        if self.lost.is_none() {
            self.node.sessions.remove(self.session.number());
        }
    }
}
