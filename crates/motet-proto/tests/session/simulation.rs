//! Two sessions and the network between them.

use crate::prng::Prng;
use motet_proto::message::session::handshake::{HANDSHAKE_BYTES, Handshake, HandshakeOp};
use motet_proto::message::session::{MAX_IO_SLICES, MAX_PACKET_BYTES, MAX_RAILS, MAX_UNACKED_BYTES, Role, Session};
use std::collections::VecDeque;
use std::io::IoSlice;

/// Bytes that a connection holds in each direction.
const PIPE_BYTES: usize = 300_000;

/// The handshake of node `n`.
pub fn handshake(n: u8, op: HandshakeOp) -> Handshake {
    Handshake {
        op,
        epoch: 0,
        node: [n; 16],
        session: [7; 16],
        expected: 0,
        secret: 0,
        largest: MAX_PACKET_BYTES as u32,
        port: 0,
    }
}

/// One direction of a connection.
#[derive(Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    /// Nothing more is accepted; the bytes that are there can still be read.
    cut: bool,
}

/// A connection, with its rail's slot at each end once that has one.
struct Connection {
    /// From the caller, and from the called side.
    pipes: [Pipe; 2],
    slots: [Option<usize>; 2],
    /// The ends that have closed it.
    closed: [bool; 2],
    op: HandshakeOp,
}

pub struct Side {
    pub session: Session,
    put: u32,
    got: u32,
}

pub struct Simulation {
    seed: u64,
    prng: Prng,
    pub now: u64,
    pub sides: [Side; 2],
    connections: Vec<Connection>,
    pub cuts: bool,
    pub more_rails: bool,
    pub resumed: u32,
    pub lost_bytes: usize,
    pub most_rails: usize,
}

fn content(side: usize, number: u32) -> (u8, Vec<u8>) {
    let mut prng = Prng(u64::from(number) << 1 | side as u64);
    let length = if prng.one_in(200) { prng.below(1 + MAX_PACKET_BYTES as u64) as usize } else { prng.size(1500) - 1 };
    let first = prng.next() as u8;
    (number as u8, (0..length).map(|i| first.wrapping_add(i as u8)).collect())
}

impl Simulation {
    pub fn new(seed: u64) -> Self {
        let side =
            |role, own, peer| Side { session: Session::new(role, own, &peer, 0).expect("a session"), put: 0, got: 0 };
        let (new, welcome) = (handshake(0, HandshakeOp::New), handshake(1, HandshakeOp::Admitted));
        let mut connection = Connection::new(HandshakeOp::New);
        connection.slots = [None, Some(0)];
        let mut world = Self {
            seed,
            prng: Prng(seed.wrapping_mul(0x1234_5678_9abc_def1)),
            now: 0,
            sides: [side(Role::Caller, new, welcome), side(Role::Called, welcome, new)],
            connections: vec![connection],
            cuts: true,
            more_rails: true,
            resumed: 0,
            lost_bytes: 0,
            most_rails: 1,
        };
        // A caller without an answer has no session, so the first answer arrives.
        let mut pieces = [IoSlice::new(&[]); MAX_IO_SLICES];
        let n = world.sides[1].session.outgoing(0, &mut pieces);
        let welcome: Vec<u8> = pieces[..n].iter().flat_map(|piece| piece.iter().copied()).collect();
        world.sides[1].session.sent(0, welcome.len());
        assert_eq!(
            Handshake::decode(welcome.first_chunk().expect("a handshake")),
            Ok(handshake(1, HandshakeOp::Admitted))
        );
        world.connections[0].slots[0] = Some(0);
        world
    }

    /// One random step.
    pub fn step(&mut self) {
        self.now += self.prng.below(2_000_000);
        let side = self.prng.below(2) as usize;
        match self.prng.below(100) {
            0..30 => self.put(side),
            30..60 => self.write(side),
            60..90 => self.read(side),
            90..95 => self.connect(),
            95 if self.cuts => self.cut_one(),
            96 if self.more_rails && self.sides[0].session.is_up() && self.connections.len() < MAX_RAILS => {
                let handshake = self.sides[0].session.another();
                self.call(handshake);
            }
            97 => assert!(self.sides[side].session.tick(self.now), "seed {}: in time", self.seed),
            98 if self.prng.one_in(20) => self.now += 1_500_000_000, // idle: extra rails end, memory goes back
            _ => {}
        }
        let rails = self.connections.iter().filter(|c| c.slots[0].is_some() && c.slots[1].is_some()).count();
        self.most_rails = self.most_rails.max(rails);
        assert!(
            self.sides.iter().all(|s| s.session.memory() < MAX_UNACKED_BYTES as usize + (2 << 20)),
            "seed {}",
            self.seed
        );
    }

    fn put(&mut self, side: usize) {
        for _ in 0..1 + self.prng.below(8) {
            let (kind, bytes) = content(side, self.sides[side].put);
            let (a, b) = bytes.split_at(bytes.len() / 3);
            let room = self.sides[side].session.room();
            let put = self.sides[side].session.put(kind, &[a, b]);
            assert_eq!(put, room >= bytes.len() && room > 0 || put && bytes.is_empty(), "room says whether it goes");
            self.sides[side].put += u32::from(put);
        }
    }

    fn write(&mut self, side: usize) {
        for connection in &mut self.connections {
            let Some(slot) = connection.slots[side] else { continue };
            let pipe = &mut connection.pipes[side];
            let mut pieces = [IoSlice::new(&[]); MAX_IO_SLICES];
            let n = self.sides[side].session.outgoing(slot, &mut pieces);
            let all: usize = pieces[..n].iter().map(|piece| piece.len()).sum();
            let room = PIPE_BYTES.saturating_sub(pipe.bytes.len());
            let most = if self.prng.one_in(3) { self.prng.below(1 + all as u64) as usize } else { all };
            let n_bytes = most.min(room);
            if !pipe.cut {
                pipe.bytes.extend(pieces[..n].iter().flat_map(|piece| piece.iter()).take(n_bytes));
            }
            self.sides[side].session.sent(slot, n_bytes);
            if n_bytes < all {
                self.sides[side].session.blocked();
            }
        }
    }

    fn read(&mut self, side: usize) {
        self.take(side);
        let mut lost = false;
        for i in 0..self.connections.len() {
            let connection = &mut self.connections[i];
            if connection.slots[side].is_none() && !self.greeted(i, side) {
                continue;
            }
            let connection = &mut self.connections[i];
            let Some(slot) = connection.slots[side] else { continue };
            if self.sides[side].session.has_ended(slot) {
                connection.slots[side] = None;
                connection.close(side);
                continue;
            }
            let pipe = &mut connection.pipes[1 - side];
            let Some(space) = self.sides[side].session.space(slot) else { continue };
            let most = if self.prng.one_in(3) { self.prng.below(1 + space.len() as u64) as usize } else { space.len() };
            let n = most.min(pipe.bytes.len());
            for (to, from) in space.iter_mut().zip(pipe.bytes.drain(..n)) {
                *to = from;
            }
            self.sides[side].session.received(slot, n);
            lost |= pipe.cut && pipe.bytes.is_empty() && n == 0;
        }
        self.take(side);
        if lost {
            // A rail may have ended rather than broken.
            let ended = (0..self.connections.len()).all(|i| {
                let connection = &mut self.connections[i];
                let Some(slot) = connection.slots[side] else { return true };
                let pipe = &connection.pipes[1 - side];
                if !(pipe.cut && pipe.bytes.is_empty()) {
                    return true;
                }
                let ended = self.sides[side].session.has_ended(slot);
                if ended {
                    connection.slots[side] = None;
                    connection.close(side);
                }
                ended
            });
            if !ended {
                self.lose(side);
            }
        }
        self.connections.retain(|c| {
            c.slots != [None; 2] || c.pipes.iter().any(|p| !p.cut || !p.bytes.is_empty()) && c.closed != [true; 2]
        });
    }

    /// Checks that the received packets are those that were put.
    fn take(&mut self, side: usize) {
        let now = self.now;
        let seed = self.seed;
        let mut most = self.prng.below(60);
        let this = &mut self.sides[side];
        while most > 0 && this.session.ready(now).unwrap_or_else(|broken| panic!("seed {seed}: {broken}")) {
            let (kind, bytes) = this.session.packet().expect("it is ready");
            let expected = content(1 - side, this.got);
            assert!((kind, bytes) == (expected.0, &expected.1[..]), "seed {seed}: packet {} of {}", this.got, 1 - side);
            this.got += 1;
            most -= 1;
        }
        assert!(self.sides[side].got <= self.sides[1 - side].put);
    }

    /// Reads the first bytes of a connection, as drivers do. Returns whether there is a rail.
    fn greeted(&mut self, i: usize, side: usize) -> bool {
        let connection = &mut self.connections[i];
        let pipe = &mut connection.pipes[1 - side];
        if connection.closed[side] || pipe.bytes.len() < HANDSHAKE_BYTES {
            return false;
        }
        let bytes: Vec<u8> = pipe.bytes.drain(..HANDSHAKE_BYTES).collect();
        let handshake = Handshake::decode(bytes.first_chunk().expect("64 bytes")).expect("a handshake");
        let op = connection.op;
        let session = &mut self.sides[side].session;
        let slot = match side {
            0 => session.welcomed(op, &handshake, self.now),
            _ => session.visited(&handshake, self.now),
        };
        let slot = slot.unwrap_or_else(|broken| panic!("seed {}: {broken}", self.seed));
        let Some(slot) = slot else {
            self.lost_bytes += connection.close(side);
            return false;
        };
        self.resumed += u32::from(op == HandshakeOp::Resume);
        if op == HandshakeOp::Resume {
            // All other connections are void.
            for (j, other) in self.connections.iter_mut().enumerate() {
                if j != i && other.slots[side].take().is_some() {
                    self.lost_bytes += other.close(side);
                }
            }
        }
        self.connections[i].slots[side] = Some(slot);
        true
    }

    fn connect(&mut self) {
        let session = &mut self.sides[0].session;
        if let Some(handshake) = session.attempt(self.now) {
            if !self.cuts || !self.prng.one_in(4) {
                self.call(handshake);
            }
        } else if self.more_rails && session.wants_rail() && self.connections.len() < MAX_RAILS {
            let handshake = session.another();
            self.call(handshake);
        }
        // The called side probes at times, too; no answer does no harm.
        let _ = self.sides[1].session.attempt(self.now);
    }

    fn call(&mut self, handshake: Handshake) {
        let mut connection = Connection::new(handshake.op);
        connection.pipes[0].bytes.extend(handshake.encode());
        self.connections.push(connection);
    }

    fn lose(&mut self, side: usize) {
        self.sides[side].session.lost(self.now);
        for connection in &mut self.connections {
            if connection.slots[side].take().is_some() {
                self.lost_bytes += connection.close(side);
            }
        }
    }

    /// Cuts a connection: a part of the bytes in flight still arrives.
    fn cut_one(&mut self) {
        if self.connections.is_empty() {
            return;
        }
        let i = self.prng.below(self.connections.len() as u64) as usize;
        for pipe in &mut self.connections[i].pipes {
            let keep = self.prng.below(1 + pipe.bytes.len() as u64) as usize;
            self.lost_bytes += pipe.bytes.len() - keep;
            pipe.bytes.truncate(keep);
            pipe.cut = true;
        }
    }

    /// All connections break, and both sides notice.
    pub fn cut_all(&mut self) {
        for side in 0..2 {
            self.lose(side);
        }
    }

    /// Without further breaks everything arrives, and both sides say goodbye.
    pub fn settle(&mut self) {
        (self.cuts, self.more_rails) = (false, false);
        let mut rounds = 0;
        let mut said = false;
        while !(said && self.sides.iter().all(|side| side.session.is_done() && side.session.is_peer_closed())) {
            self.now += 1_000_000;
            self.connect();
            for side in 0..2 {
                self.write(side);
                self.read(side);
                assert!(self.sides[side].session.tick(self.now), "seed {}: in time", self.seed);
            }
            if !said && (0..2).all(|side| self.sides[side].got == self.sides[1 - side].put) {
                said = true;
                self.sides.iter_mut().for_each(|side| side.session.say_goodbye());
            }
            rounds += 1;
            assert!(rounds < 20_000, "seed {}: it settles", self.seed);
        }
        for side in 0..2 {
            assert_eq!(self.sides[side].got, self.sides[1 - side].put, "seed {}", self.seed);
        }
    }
}

impl Connection {
    fn new(op: HandshakeOp) -> Self {
        Self { pipes: Default::default(), slots: [None, None], closed: [false; 2], op }
    }

    /// Closes the connection for the other end, too. Bytes in flight are lost.
    fn close(&mut self, side: usize) -> usize {
        self.closed[side] = true;
        self.pipes.iter_mut().for_each(|pipe| pipe.cut = true);
        self.pipes.iter().map(|pipe| pipe.bytes.len()).sum()
    }
}
