//! Two sessions and an unreliable network between them, which carries the packets of a link.
//!
//! Connections are byte streams like those of TCP. Faults appear as connections that stall (delay, and disorder between rails), that
//! discard what is written until they die (loss), or that are reset at any byte; connections that are made late or never; and whole
//! frames that are repeated. Nothing here is random: the caller decides every step.

use crate::simulation::{LARGEST, Simulation};
use motet_proto::message::session::frame::{FrameKind, HEADER_BYTES};
use motet_proto::message::session::handshake::{HANDSHAKE_BYTES, Handshake, HandshakeOp};
use motet_proto::message::session::{MAX_IO_SLICES, MAX_RAILS, Role, Session};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::rc::Rc;

/// Bytes that a connection holds in each direction.
const PIPE_BYTES: usize = 20_000;
/// A connection that discards bytes is dead after this time, ns.
const DEAD_AFTER_NS: u64 = 30_000_000;
/// Frames of a direction that may be repeated.
const MAX_REPEATED_FRAMES: usize = 8;

/// One direction of a connection.
struct Pipe {
    bytes: VecDeque<u8>,
    /// Nothing more is accepted; the bytes that are there can still be read.
    cut: bool,
    /// Nothing can be read before this time.
    until: u64,
    /// Written bytes are lost, and the connection dies at this time.
    swallows: Option<u64>,
    /// Bytes of the handshake that are still to be written; the frame being written; those before it.
    handshake: usize,
    frame: Vec<u8>,
    frames: VecDeque<Vec<u8>>,
    /// An earlier frame, this many back, is repeated at the next boundary.
    repeat: Option<usize>,
}

impl Pipe {
    fn new(handshake: usize) -> Self {
        let (bytes, frame, frames) = Default::default();
        Self { bytes, cut: false, until: 0, swallows: None, handshake, frame, frames, repeat: None }
    }

    /// Accepts what a session writes. Returns the number of repeated frames.
    fn write(&mut self, written: impl Iterator<Item = u8>) -> u64 {
        let mut repeated = 0;
        for byte in written {
            if self.cut || self.swallows.is_some() {
                continue;
            }
            self.bytes.push_back(byte);
            if self.handshake > 0 {
                self.handshake -= 1;
                continue;
            }
            self.frame.push(byte);
            let length = |frame: &[u8]| u32::from_le_bytes([frame[4], frame[5], frame[6], frame[7]]) as usize;
            if self.frame.len() < HEADER_BYTES || self.frame.len() < HEADER_BYTES + length(&self.frame) {
                continue;
            }
            let frame = std::mem::take(&mut self.frame);
            if frame[0] == FrameKind::Packet as u8 {
                self.frames.push_back(frame);
                if self.frames.len() > MAX_REPEATED_FRAMES {
                    self.frames.pop_front();
                }
            }
            repeated += self.again();
        }
        repeated
    }

    /// Repeats an earlier frame, if requested and no frame is half written.
    fn again(&mut self) -> u64 {
        let whole = self.frame.is_empty() && self.handshake == 0 && !self.cut && self.swallows.is_none();
        let Some(back) = self.repeat.filter(|_| whole && !self.frames.is_empty()) else { return 0 };
        let at = self.frames.len() - 1 - back % self.frames.len();
        self.bytes.extend(&self.frames[at]);
        self.repeat = None;
        1
    }
}

/// A connection, with its rail's slot at each end once that has one.
struct Connection {
    /// From the caller, and from the called side.
    pipes: [Pipe; 2],
    slots: [Option<usize>; 2],
    closed: [bool; 2],
    op: HandshakeOp,
}

impl Connection {
    fn close(&mut self, side: usize) {
        self.closed[side] = true;
        self.pipes.iter_mut().for_each(|pipe| pipe.cut = true);
    }
}

/// Counts of what happened, so that tests can check that it did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    pub resumed: u64,
    pub repeated: u64,
    pub swallowed: u64,
    pub cut: u64,
    pub stalled: u64,
    pub most_rails: usize,
}

/// The network.
pub struct Network {
    pub sessions: [Rc<RefCell<Session>>; 2],
    connections: Vec<Connection>,
    pub seen: Seen,
    /// No connection can be made.
    pub down: bool,
    moved: bool,
}

fn handshake(node: u8, op: HandshakeOp) -> Handshake {
    let largest = LARGEST as u32;
    Handshake { op, epoch: 0, node: [node; 16], session: [7; 16], expected: 0, secret: 0, largest, port: 0 }
}

impl Network {
    /// A session that is up over one connection.
    pub fn new() -> Self {
        let (new, welcome) = (handshake(0, HandshakeOp::New), handshake(1, HandshakeOp::Admitted));
        let session = |role, own, peer| Session::new(role, own, peer, 0).expect("a session");
        let sessions = [session(Role::Caller, new, &welcome), session(Role::Called, welcome, &new)];
        let sessions = sessions.map(|session| Rc::new(RefCell::new(session)));
        let pipes = [Pipe::new(0), Pipe::new(HANDSHAKE_BYTES)];
        let first = Connection { pipes, slots: [None, Some(0)], closed: [false; 2], op: HandshakeOp::New };
        let mut network = Self { sessions, connections: vec![first], seen: Seen::default(), down: false, moved: false };
        // A caller without an answer has no session, so the first answer arrives.
        network.write(1, usize::MAX);
        let welcomed: Vec<u8> = network.connections[0].pipes[1].bytes.drain(..HANDSHAKE_BYTES).collect();
        assert_eq!(Handshake::decode(welcomed.first_chunk().expect("64 bytes")), Ok(welcome));
        network.connections[0].slots[0] = Some(0);
        network
    }

    /// A simulation whose links are over the network.
    pub fn under(&self, world: &mut Simulation) {
        for (lane, session) in world.transports.iter_mut().zip(&self.sessions) {
            lane.over = Some(session.clone());
        }
    }

    // ---- bytes ------------------------------------------------------------------------------------------------------

    /// A session writes at most this many bytes to each of its connections.
    pub fn write(&mut self, side: usize, most: usize) {
        let mut session = self.sessions[side].borrow_mut();
        for connection in &mut self.connections {
            let Some(slot) = connection.slots[side] else { continue };
            let pipe = &mut connection.pipes[side];
            let mut pieces = [IoSlice::new(&[]); MAX_IO_SLICES];
            let n = session.outgoing(slot, &mut pieces);
            let all: usize = pieces[..n].iter().map(|piece| piece.len()).sum();
            let bytes = all.min(most).min(PIPE_BYTES.saturating_sub(pipe.bytes.len()));
            self.seen.repeated += pipe.write(pieces[..n].iter().flat_map(|piece| piece.iter().copied()).take(bytes));
            session.sent(slot, bytes);
            if bytes < all {
                session.blocked();
            }
            self.moved |= bytes > 0;
        }
    }

    /// A session reads at most this many bytes of each of its connections.
    pub fn read(&mut self, side: usize, most: usize, now: u64) {
        let mut lost = false;
        for at in 0..self.connections.len() {
            if self.connections[at].slots[side].is_none() && !self.greeted(at, side, now) {
                continue;
            }
            let Some(slot) = self.connections[at].slots[side] else { continue };
            if self.end(at, side, slot) {
                continue;
            }
            let pipe = &mut self.connections[at].pipes[1 - side];
            if pipe.until > now {
                continue;
            }
            let mut session = self.sessions[side].borrow_mut();
            let Some(space) = session.space(slot) else { continue };
            let bytes = space.len().min(most).min(pipe.bytes.len());
            for (to, from) in space.iter_mut().zip(pipe.bytes.drain(..bytes)) {
                *to = from;
            }
            session.received(slot, bytes);
            lost |= pipe.cut && pipe.bytes.is_empty() && bytes == 0;
            self.moved |= bytes > 0;
        }
        if lost {
            // Bytes before the break count: the break is noticed once they are read.
            self.sessions[side].borrow_mut().lost(now);
            for connection in &mut self.connections {
                if connection.slots[side].take().is_some() {
                    connection.close(side);
                }
            }
            self.moved = true;
        }
        self.connections.retain(|c| {
            c.slots != [None; 2] || c.pipes.iter().any(|p| !p.cut || !p.bytes.is_empty()) && c.closed != [true; 2]
        });
    }

    /// Whether a rail has ended rather than broken.
    fn end(&mut self, at: usize, side: usize, slot: usize) -> bool {
        let ended = self.sessions[side].borrow_mut().has_ended(slot);
        if ended {
            self.connections[at].slots[side] = None;
            self.connections[at].close(side);
        }
        ended
    }

    /// Reads the first bytes of a connection, as drivers do. Returns whether there is a rail.
    fn greeted(&mut self, at: usize, side: usize, now: u64) -> bool {
        let connection = &mut self.connections[at];
        let pipe = &mut connection.pipes[1 - side];
        if connection.closed[side] || pipe.until > now || pipe.bytes.len() < HANDSHAKE_BYTES {
            return false;
        }
        let bytes: Vec<u8> = pipe.bytes.drain(..HANDSHAKE_BYTES).collect();
        let handshake = Handshake::decode(bytes.first_chunk().expect("64 bytes")).expect("a handshake");
        let op = connection.op;
        let slot = match side {
            0 => self.sessions[0].borrow_mut().welcomed(op, &handshake, now),
            _ => self.sessions[1].borrow_mut().visited(&handshake, now),
        };
        let Some(slot) = slot.expect("an honest peer") else {
            connection.close(side);
            return false;
        };
        if op == HandshakeOp::Resume {
            self.seen.resumed += 1;
            for (other, void) in self.connections.iter_mut().enumerate() {
                if other != at && void.slots[side].take().is_some() {
                    void.close(side);
                }
            }
        }
        self.connections[at].slots[side] = Some(slot);
        self.moved = true;
        true
    }

    // ---- connections ------------------------------------------------------------------------------------------------

    /// The caller connects, if an attempt is due or one more rail would help; `lost`: the handshake never arrives.
    pub fn connect(&mut self, now: u64, lost: bool) {
        let mut session = self.sessions[0].borrow_mut();
        let handshake = match session.attempt(now) {
            Some(handshake) => Some(handshake),
            None if session.wants_rail() && self.connections.len() < MAX_RAILS => Some(session.another()),
            None => None,
        };
        drop(session);
        if let Some(handshake) = handshake.filter(|_| !lost && !self.down) {
            self.call(handshake);
        }
        // The called side probes at times, too; no answer does no harm.
        let _ = self.sessions[1].borrow_mut().attempt(now);
    }

    /// The caller opens one more rail, needed or not.
    pub fn add_rail(&mut self) {
        let mut session = self.sessions[0].borrow_mut();
        if session.is_up() && self.connections.len() < MAX_RAILS && !self.down {
            let handshake = session.another();
            drop(session);
            self.call(handshake);
        }
        let rails = self.connections.iter().filter(|c| c.slots[0].is_some() && c.slots[1].is_some()).count();
        self.seen.most_rails = self.seen.most_rails.max(rails);
    }

    fn call(&mut self, handshake: Handshake) {
        let mut pipes = [Pipe::new(HANDSHAKE_BYTES), Pipe::new(HANDSHAKE_BYTES)];
        pipes[0].write(handshake.encode().into_iter());
        let op = handshake.op;
        self.connections.push(Connection { pipes, slots: [None; 2], closed: [false; 2], op });
        self.moved = true;
    }

    // ---- faults -----------------------------------------------------------------------------------------------------

    fn pipe(&mut self, which: usize, side: usize) -> Option<&mut Pipe> {
        let count = self.connections.len();
        (count > 0).then(|| &mut self.connections[which % count].pipes[side])
    }

    /// Resets a connection: of the bytes in flight only this many still arrive, each way.
    pub fn cut(&mut self, which: usize, keep: usize) {
        if self.connections.is_empty() {
            return;
        }
        let at = which % self.connections.len();
        for pipe in &mut self.connections[at].pipes {
            pipe.bytes.truncate(keep);
            pipe.cut = true;
        }
        self.seen.cut += 1;
    }

    /// Bytes written to a connection from here on are lost, until it is found dead.
    pub fn swallow(&mut self, which: usize, side: usize, now: u64) {
        if let Some(pipe) = self.pipe(which, side) {
            pipe.swallows.get_or_insert(now + DEAD_AFTER_NS);
            self.seen.swallowed += 1;
        }
    }

    /// Delays the bytes in flight over a connection.
    pub fn stall(&mut self, which: usize, side: usize, until: u64) {
        if let Some(pipe) = self.pipe(which, side) {
            pipe.until = pipe.until.max(until);
            self.seen.stalled += 1;
        }
    }

    /// Repeats an earlier frame.
    pub fn repeat(&mut self, which: usize, side: usize, back: usize) {
        if let Some(pipe) = self.pipe(which, side) {
            pipe.repeat = Some(back);
            self.seen.repeated += pipe.again();
        }
    }

    /// Advances the time. Returns false when a session is lost.
    pub fn pass(&mut self, now: u64) -> bool {
        for connection in &mut self.connections {
            if connection.pipes.iter().any(|pipe| pipe.swallows.is_some_and(|dead| dead <= now)) {
                connection.pipes.iter_mut().for_each(|pipe| pipe.cut = true);
            }
        }
        let [caller, called] = &self.sessions;
        caller.borrow_mut().tick(now) & called.borrow_mut().tick(now)
    }

    /// One round of everything without faults. Returns whether anything moved.
    pub fn round(&mut self, now: u64) -> bool {
        self.moved = false;
        self.connections.iter_mut().flat_map(|c| &mut c.pipes).for_each(|pipe| pipe.repeat = None);
        assert!(self.pass(now), "in time");
        self.connect(now, false);
        for side in [0, 1] {
            self.write(side, usize::MAX);
            self.read(side, usize::MAX, now);
        }
        self.moved || self.sessions.iter().any(|session| !session.borrow().is_up())
    }
}
