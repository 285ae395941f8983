//! Two nodes, the transport between them, and what must hold after every step.
//!
//! The headers of every message name the channel, the side and the number of the message, and its bytes follow from that, so a matched
//! message shows loss, duplication, disorder and corrupted bytes.

use crate::prng::Prng;
use crate::side_memory::Remote;
use motet_proto::message::fast_path::{Matched, Receiver};
use motet_proto::message::matching::{PostOutcome, Receive, Selector, Source, Ticket};
use motet_proto::message::packet::{self, RemoteAddress, Route};
use motet_proto::message::session::Session;
use motet_proto::message::slab::SlabId;
use motet_proto::message::{
    Arrival, AssistRequest, BodyTransfer, Callbacks, ChannelId, CopyRequest, Envelope, Event, Limits, Link, Mode,
    Outcome, Packets, ProtocolViolation, Reception, Rejected, Send, Sent, Status, Table, UnexpectedMessage, credit,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::rc::Rc;

/// Largest packet of the simulated transport.
pub const LARGEST: usize = 600;

/// One direction of the transport.
#[derive(Debug, Default)]
pub struct Transport {
    pub packets: VecDeque<(u8, Vec<u8>, u64)>,
    pub bytes: usize,
    pub most: usize,
    pub now: u64,
    pub delay: u64,
    pub put: u64,
    /// Packets go to this session instead, and those of the other side are read from it.
    pub over: Option<Rc<RefCell<Session>>>,
}

impl Packets for Transport {
    fn largest(&self) -> usize {
        LARGEST
    }

    fn room(&mut self) -> usize {
        match &self.over {
            Some(session) => session.borrow().room().min(self.most),
            None => self.most - self.bytes,
        }
    }

    fn put(&mut self, kind: u8, parts: &[&[u8]]) -> bool {
        let packet = parts.concat();
        assert!(packet.len() <= LARGEST);
        if packet.len() > self.room() {
            return false;
        }
        self.put += 1;
        if let Some(session) = &self.over {
            let (front, back) = packet.split_at(packet.len() / 3);
            assert!(session.borrow_mut().put(kind, &[front, back]), "room says that it goes");
            return true;
        }
        self.bytes += packet.len();
        self.packets.push_back((kind, packet, self.now + self.delay));
        true
    }
}

/// The content of the headers of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// The channel and the side.
    pub way: u64,
    /// The number of the message on the channel.
    pub sequence: u64,
}

impl Name {
    pub fn write(self) -> Vec<u8> {
        [self.way.to_le_bytes(), self.sequence.to_le_bytes()].concat()
    }

    pub fn read(headers: &[u8]) -> Self {
        let word = |at: usize| u64::from_le_bytes(headers[at..at + 8].try_into().unwrap());
        Self { way: word(0), sequence: word(8) }
    }

    pub fn body(self, length: u64) -> Vec<u8> {
        let seed = self.way.wrapping_mul(31).wrapping_add(self.sequence.wrapping_mul(17));
        (0..length).map(|at| (seed.wrapping_add(at) ^ at >> 8) as u8).collect()
    }
}

/// A receive of the test.
#[derive(Debug)]
pub struct Reading {
    pub selector: Option<Selector>,
    pub ticket: Option<Ticket>,
    pub buffer: Vec<u8>,
    pub filled: u64,
    pub matched: Option<(Name, u64)>,
}

/// Distinguishes the destination of a copy from the sender's name for the message.
const DESTINATION_BIT: u64 = 1 << 50;

/// The owner of one side.
#[derive(Debug)]
pub struct Side {
    pub table: Table,
    pub sends: HashMap<u64, (Name, Vec<u8>)>,
    pub reads: HashMap<u64, Reading>,
    pub copies: Vec<CopyRequest>,
    /// Copies for which COPY_ASSIST was sent, and requests for assistance by the other side.
    pub shared: Vec<SlabId>,
    pub helps: Vec<AssistRequest>,
    /// Bytes of rendezvous messages that were requested, and that have arrived.
    pub wanted: u64,
    pub landed: u64,
    /// Loaned messages: the record, and the sender's name for the message.
    pub lent: Vec<(SlabId, u64)>,
    pub held: Vec<UnexpectedMessage>,
    /// Names of messages that were matched or delivered, in order, with the receive.
    pub matched: Vec<(Name, u64, Option<Selector>)>,
    pub ended: Vec<(u64, Outcome)>,
    pub events: VecDeque<(ChannelId, Event)>,
    pub unblocked: u64,
    /// The last message of each way that a handler got.
    pub delivered: HashMap<u64, u64>,
    pub remote: Remote,
}

impl Side {
    pub fn new(seed: u64) -> Self {
        let (sends, reads, copies, held, lent) = Default::default();
        let (shared, helps, wanted, landed) = Default::default();
        let (matched, ended, events) = Default::default();
        let (delivered, unblocked, table) = (HashMap::new(), 0, Table::new([seed, !seed]));
        let remote = Remote::default();
        Self {
            remote,
            table,
            sends,
            reads,
            copies,
            shared,
            helps,
            wanted,
            landed,
            lent,
            held,
            matched,
            ended,
            events,
            unblocked,
            delivered,
        }
    }
}

impl Callbacks for Side {
    type Buffer = ();
    fn matching(&mut self) -> &mut Table {
        &mut self.table
    }

    fn deliver(&mut self, envelope: &Envelope<'_>, arrival: Arrival<'_>) {
        let name = Name::read(envelope.headers);
        let before = self.delivered.insert(name.way, name.sequence);
        assert!(before.is_none_or(|before| before < name.sequence), "handlers run in order");
        match arrival {
            Arrival::Whole(body) => {
                assert_eq!(body, name.body(envelope.length));
                self.matched.push((name, envelope.length, None));
            }
            Arrival::Long(held) => {
                assert_eq!(held.headers(), envelope.headers);
                self.held.push(held);
            }
        }
    }

    fn matched(&mut self, operation: u64, envelope: &Envelope<'_>) {
        let name = Name::read(envelope.headers);
        let read = self.reads.get_mut(&operation).expect("a receive in progress");
        assert!(read.matched.is_none(), "matched once");
        if let Some(selector) = read.selector {
            assert_eq!((selector.tag ^ envelope.tag) & !selector.ignore, 0, "the tag matches");
        }
        read.matched = Some((name, envelope.length));
        read.ticket = None;
        self.matched.push((name, envelope.length, read.selector));
    }

    fn place(&mut self, operation: u64, at: u64, bytes: &[u8]) {
        if self.remote_place(operation, at, bytes) {
            return;
        }
        let read = self.reads.get_mut(&operation).expect("a receive in progress");
        assert!(read.matched.is_some() && at == read.filled && !bytes.is_empty());
        read.buffer[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        read.filled += bytes.len() as u64;
    }

    fn choose_transfer(&mut self, length: u64, shown: bool) -> BodyTransfer {
        self.wanted += length;
        let routes = [Route::Any, Route::Cached, Route::NonTemporal, Route::MeasureCached, Route::MeasureNonTemporal];
        match (self.wanted ^ self.landed) % 7 {
            _ if !shown => BodyTransfer::Pieces(routes[length as usize % 5]),
            at @ 0..5 if length.is_multiple_of(3) => BodyTransfer::Pieces(routes[at as usize]),
            _ => BodyTransfer::Copy,
        }
    }

    fn body_received(&mut self, length: u64) {
        self.landed += length;
        assert!(self.landed <= self.wanted);
    }

    fn copy(&mut self, request: CopyRequest) {
        assert!(self.reads.contains_key(&request.operation));
        self.copies.push(request);
    }

    fn assist_copy(&mut self, request: AssistRequest) {
        let (_, body) = &self.sends[&request.operation];
        assert!(
            request.shared.length <= body.len() as u64 && request.shared.address == request.operation ^ DESTINATION_BIT
        );
        assert!(self.helps.iter().all(|known| known.operation != request.operation), "asked once");
        self.helps.push(request);
    }

    fn body(&mut self, operation: u64, at: u64, length: usize, put: &mut dyn FnMut(&[&[u8]]) -> bool) -> bool {
        let body = self.remote.running.get(&operation).map(|running| &running.body);
        let bytes = &body.unwrap_or_else(|| &self.sends[&operation].1)[at as usize..at as usize + length];
        let (front, back) = bytes.split_at(length / 3);
        put(&[front, back])
    }

    fn completed(&mut self, operation: u64, outcome: Outcome) {
        if self.remote_completed(operation, outcome) {
            return;
        }
        if self.sends.remove(&operation).is_none() {
            let read = self.reads.remove(&operation).expect("completes once, and only what was begun");
            if matches!(outcome.status, Status::Done | Status::Truncated) {
                let (name, length) = read.matched.expect("matched before it completes");
                let fits = length.min(read.buffer.len() as u64);
                assert_eq!((outcome.length, read.filled), (fits, fits));
                assert_eq!(outcome.status == Status::Truncated, fits < length);
                assert_eq!(read.buffer[..fits as usize], name.body(length)[..fits as usize]);
            }
        }
        self.ended.push((operation, outcome));
    }

    fn event(&mut self, channel: ChannelId, event: Event) {
        self.events.push_back((channel, event));
    }

    fn unblocked(&mut self) {
        self.unblocked += 1;
    }
}

/// A channel of one side.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    pub channel: ChannelId,
    pub reception: Reception,
    /// The name of the messages that this side sends on it.
    pub way: u64,
    pub sequence: u64,
    pub open: bool,
}

#[derive(Debug)]
pub struct Node {
    pub link: Link,
    pub side: Side,
    pub ways: Vec<Way>,
}

/// Handles a whole message by the fast path. Returns false, and does nothing, for any other packet.
pub fn arrive_shortly(link: &mut Link, owner: &mut impl Callbacks, (kind, packet): (u8, &[u8]), now: u64) -> bool {
    let Some((front, rest)) = packet.split_first_chunk::<{ packet::MESSAGE_HEAD_BYTES }>() else { return false };
    let words = std::array::from_fn(|at| u64::from_le_bytes(std::array::from_fn(|byte| front[8 * at + byte])));
    let Some(matched) = link.match_message(owner, kind, words, rest.len(), (now, None)) else { return false };
    let Matched { receiver, channel, tag, headers } = matched;
    let oldest = match receiver {
        Receiver::PostedReceive(oldest) => oldest,
        Receiver::Unposted => panic!("no receive is alone"),
        Receiver::Unexpected => {
            link.keep_message(owner, &matched, rest.into());
            owner.event(channel, Event::Queued);
            return true;
        }
    };
    let (headers, body) = rest.split_at(headers);
    let envelope = Envelope { source: 0, channel, tag, length: body.len() as u64, headers };
    let receive = owner.matching().take(oldest).expect("a receive");
    let operation = owner.start_receive(receive);
    owner.received(operation, receive.capacity, &envelope, body);
    true
}

/// Both nodes.
pub struct Simulation {
    pub nodes: [Node; 2],
    /// The packets in flight from each side.
    pub transports: [Transport; 2],
    pub prng: Prng,
    pub limits: Limits,
    pub now: u64,
    pub next: u64,
    /// Sent and not matched: the tag, and whether it need not be matched (cancelled, or its channel was released).
    pub unmatched: BTreeMap<Name, (u64, bool)>,
    /// Messages that were claimed.
    pub claimed: BTreeSet<Name>,
    /// The messages of sends in progress.
    pub names: HashMap<u64, Name>,
    /// Channels whose receiver has released them; they are not checked for loss.
    pub lossy: bool,
    pub reset: bool,
    /// Whether no RMA operation is meant to fail.
    pub calm: bool,
    /// Results of RMA operations and ways of their bytes, which schedules must reach.
    pub seen: BTreeMap<String, u64>,
}

impl Simulation {
    pub fn new(seed: u64, limits: Limits, room: usize) -> Self {
        let node = |side: u32| Node {
            link: Link::new(side, limits, 0),
            side: Side::new(seed + u64::from(side)),
            ways: Vec::new(),
        };
        let lane = || Transport { most: room, ..Transport::default() };
        let (prng, transports) = (Prng(seed), [lane(), lane()]);
        let (unmatched, claimed, names, seen) = Default::default();
        let (now, next, lossy, reset) = (0, 1, false, false);
        Self {
            nodes: [node(0), node(1)],
            transports,
            prng,
            limits,
            now,
            next,
            unmatched,
            claimed,
            names,
            lossy,
            reset,
            seen,
            calm: false,
        }
    }

    pub fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    // ---- steps ------------------------------------------------------------------------------------------------------

    pub fn flush(&mut self, side: usize, pieces: usize) -> bool {
        self.transports[side].now = self.now;
        let node = &mut self.nodes[side];
        let more = node.link.flush(&mut self.transports[side], &mut node.side, pieces);
        self.after(side);
        more
    }

    /// One packet arrives at `side`, if one is due.
    pub fn arrive(&mut self, side: usize) -> bool {
        let Some((kind, bytes)) = self.next_packet(side) else { return false };
        let node = &mut self.nodes[side];
        if self.prng.one_in(2) && arrive_shortly(&mut node.link, &mut node.side, (kind, &bytes), self.now) {
            *self.seen.entry("a message by the fast path".into()).or_default() += 1;
            self.after(side);
            return true;
        }
        let result = node.link.arrived(&mut node.side, kind, &bytes, self.now);
        assert!(result.is_ok() || self.reset, "an honest peer: {result:?}");
        self.after(side);
        true
    }

    fn next_packet(&mut self, side: usize) -> Option<(u8, Vec<u8>)> {
        if let Some(session) = &self.transports[side].over {
            let mut session = session.borrow_mut();
            let ready = session.ready(self.now).expect("an honest peer");
            return ready.then(|| session.packet().map(|(kind, bytes)| (kind, bytes.to_vec()))).flatten();
        }
        let lane = &mut self.transports[1 - side];
        if lane.packets.front().is_none_or(|packet| packet.2 > self.now) {
            return None;
        }
        let (kind, bytes, _) = lane.packets.pop_front().unwrap();
        lane.bytes -= bytes.len();
        Some((kind, bytes))
    }

    pub fn open(&mut self, side: usize, matched: bool) -> Result<(), Rejected> {
        let way = self.fresh();
        let node = &mut self.nodes[side];
        let reception = reception(&mut node.side.table, matched);
        let opened = node.link.open(u64::from(matched), reception);
        match opened {
            Ok(channel) => node.ways.push(Way { channel, reception, way, sequence: 0, open: true }),
            Err(_) => drop(leave(&mut node.side.table, reception)),
        }
        opened.map(drop)
    }

    pub fn send(&mut self, side: usize, way: usize, tag: u64, length: u64, mode: Mode) -> Result<Sent, Rejected> {
        let operation = self.fresh();
        let node = &mut self.nodes[side];
        let way = &mut node.ways[way];
        let name = Name { way: way.way, sequence: way.sequence };
        let (headers, body) = (name.write(), name.body(length));
        let cut = length as usize / 2;
        let shown = self.prng.one_in(2);
        let place =
            if shown { RemoteAddress { address: operation, key: operation % 2 * 7 } } else { RemoteAddress::default() };
        let (parts, channel) = ([&body[..cut], &body[cut..]], way.channel);
        let send = Send { channel, tag, headers: &headers, body: &parts, mode, operation, place };
        self.transports[side].now = self.now;
        let sent = node.link.send(&mut self.transports[side], &send);
        if let Ok(sent) = sent {
            way.sequence += 1;
            self.unmatched.insert(name, (tag, false));
            if let Sent::Pending(_) = sent {
                self.names.insert(operation, name);
                node.side.sends.insert(operation, (name, body));
            }
        }
        self.after(side);
        sent
    }

    pub fn post(&mut self, side: usize, selector: Selector, capacity: usize) {
        let operation = self.fresh();
        let node = &mut self.nodes[side];
        let buffer = vec![0; capacity];
        let selector_kept = Some(selector);
        let mut read = Reading { selector: selector_kept, ticket: None, buffer, filled: 0, matched: None };
        let receive = Receive { operation, capacity: capacity as u64, buffer: () };
        let simply = if self.prng.one_in(2) { node.side.table.post_fast(selector, receive) } else { None };
        let simply = simply.map(PostOutcome::Posted);
        match simply.unwrap_or_else(|| node.side.table.post(selector, receive)) {
            PostOutcome::Posted(ticket) => {
                read.ticket = Some(ticket);
                node.side.reads.insert(operation, read);
            }
            PostOutcome::Matched(held) => {
                node.side.reads.insert(operation, read);
                node.link.accept(&mut node.side, held, operation, capacity as u64);
            }
            PostOutcome::Ended(status) => assert!(matches!(status, Status::Closed | Status::LinkDown)),
        }
        self.after(side);
    }

    /// Gives a claimed or delivered message a buffer, or discards it.
    pub fn decide(&mut self, side: usize, held: UnexpectedMessage, take: Option<usize>) {
        let operation = self.fresh();
        let name = Name::read(held.headers());
        let node = &mut self.nodes[side];
        match take {
            Some(capacity) => {
                let (selector, ticket, buffer) = (None, None, vec![0; capacity]);
                node.side.reads.insert(operation, Reading { selector, ticket, buffer, filled: 0, matched: None });
                node.link.accept(&mut node.side, held, operation, capacity as u64);
            }
            None => {
                node.link.discard(held);
                self.unmatched.remove(&name);
            }
        }
        self.after(side);
    }

    /// Executes a copy between the processes. The sender must still keep the body.
    pub fn copy(&mut self, side: usize, allowed: bool) {
        let at = self.prng.below(self.nodes[side].side.copies.len() as u64) as usize;
        let known = self.nodes[side].side.copies[at];
        if known.key == 0 && self.prng.one_in(3) && !self.nodes[side].side.shared.contains(&known.record) {
            // With COPY_ASSIST before the end. Here the address of a body is the sender's name for the message.
            let node = &mut self.nodes[side];
            node.link.offer_copy_assist(known.record, known.address ^ DESTINATION_BIT, known.length as u32);
            node.side.shared.push(known.record);
            return self.after(side);
        }
        self.nodes[side].side.shared.retain(|&record| record != known.record);
        let request = self.nodes[side].side.copies.swap_remove(at);
        if allowed && self.nodes[side].link.broken().is_none() {
            let bytes = self.nodes[1 - side].side.sends.get(&request.address).map(|send| send.1.clone());
            let there = self.nodes[1 - side].link.broken().is_none();
            assert!(bytes.is_some() || !there, "the sender keeps a rendezvous body until FIN");
            let Some(bytes) = bytes else { return self.copied(side, request.record, false) };
            self.nodes[side].side.place(request.operation, 0, &bytes[..request.length as usize]);
        }
        self.copied(side, request.record, allowed);
    }

    /// Loans a message to the program, which reads the sender's memory.
    pub fn lend(&mut self, side: usize) {
        let at = self.prng.below(self.nodes[side].side.copies.len() as u64) as usize;
        let request = self.nodes[side].side.copies.swap_remove(at);
        let bytes = self.nodes[1 - side].side.sends.get(&request.address).map(|send| send.1.clone());
        let broken = self.nodes[side].link.broken().is_some();
        if bytes.is_none() && !broken {
            assert!(self.nodes[1 - side].link.broken().is_some(), "the sender keeps a rendezvous body until FIN");
            return self.copied(side, request.record, false);
        }
        let node = &mut self.nodes[side];
        if let (Some(bytes), false) = (bytes, broken) {
            node.side.place(request.operation, 0, &bytes[..request.length as usize]);
        }
        assert_eq!(node.link.loan_in_place(&mut node.side, request.record), !broken);
        assert!(!node.link.loan_in_place(&mut node.side, request.record), "once");
        if !broken {
            node.side.lent.push((request.record, request.address));
        }
        self.after(side);
    }

    /// Releases a loaned message, which the sender must have kept.
    pub fn give_back(&mut self, side: usize) {
        let at = self.prng.below(self.nodes[side].side.lent.len() as u64) as usize;
        let (record, address) = self.nodes[side].side.lent.swap_remove(at);
        let whole = self.nodes.iter().all(|node| node.link.broken().is_none());
        let there = self.nodes[1 - side].side.sends.contains_key(&address);
        assert!(there || !whole, "the sender keeps what is lent");
        let link = &mut self.nodes[side].link;
        if self.prng.below(2) == 0 {
            link.release_loan(record);
        } else {
            self.transports[side].now = self.now;
            link.release_loan_now(&mut self.transports[side], record);
        }
        link.release_loan(record);
        link.release_loan_now(&mut self.transports[side], record);
        self.after(side);
    }

    fn copied(&mut self, side: usize, record: SlabId, done: bool) {
        let node = &mut self.nodes[side];
        node.link.copied(&mut node.side, record, done);
        self.after(side);
    }

    pub fn release(&mut self, side: usize, way: usize) {
        let node = &mut self.nodes[side];
        let way = node.ways.swap_remove(way);
        assert_eq!(node.link.release(&mut node.side, way.channel), Ok(()));
        self.lossy = true;
        self.after(side);
    }

    pub fn break_link(&mut self, side: usize) {
        self.reset = true;
        let node = &mut self.nodes[side];
        node.link.reset(&mut node.side, ProtocolViolation("the transport failed"));
        self.after(side);
    }

    // ---- what must hold ---------------------------------------------------------------------------------------------

    /// Checks the effects of a step on a side, and answers offered channels.
    pub fn after(&mut self, side: usize) {
        for (name, _, selector) in std::mem::take(&mut self.nodes[side].side.matched) {
            let found = self.unmatched.remove(&name);
            assert!(found.is_some(), "{name:?} is matched once");
            // M6: no earlier message of the same sender and channel would have matched.
            let from = Name { way: name.way, sequence: 0 };
            for (earlier, (tag, gone)) in self.unmatched.range(from..name) {
                let matches = selector.is_some_and(|selector| (selector.tag ^ tag) & !selector.ignore == 0);
                assert!(*gone || !matches || self.claimed.contains(earlier), "{earlier:?} was overtaken by {name:?}");
            }
        }
        for (operation, outcome) in std::mem::take(&mut self.nodes[side].side.ended) {
            if let (Some(name), Status::Cancelled | Status::Closed) = (self.names.remove(&operation), outcome.status) {
                self.unmatched.remove(&name);
            }
        }
        while let Some((channel, event)) = self.nodes[side].side.events.pop_front() {
            self.event(side, channel, event);
        }
        self.check_memory(side);
        self.check(side);
    }

    fn event(&mut self, side: usize, channel: ChannelId, event: Event) {
        let way = self.fresh();
        let refuse = self.prng.one_in(8);
        let node = &mut self.nodes[side];
        let known = node.ways.iter().position(|way| way.channel == channel);
        match event {
            Event::Offered(_) if refuse => assert!(node.link.release(&mut node.side, channel).is_ok()),
            Event::Offered(service) => {
                let reception = reception(&mut node.side.table, service == 1);
                match node.link.accept_channel(channel, reception) {
                    Ok(()) => node.ways.push(Way { channel, reception, way, sequence: 0, open: true }),
                    Err(_) => drop(leave(&mut node.side.table, reception)),
                }
            }
            Event::Refused => node.ways[known.unwrap()].open = false,
            Event::NotReceived | Event::LinkDown => {
                // Messages may be lost with the channel.
                self.lossy = true;
                if let Some(known) = known {
                    node.ways[known].open = false;
                }
            }
            Event::Opened | Event::Queued | Event::EndOfMessages => {}
        }
    }

    /// M3, M7: memory is bounded.
    fn check(&self, side: usize) {
        let Node { link, side: owner, .. } = &self.nodes[side];
        let (records, used) = link.bytes();
        assert!(used as u64 <= self.limits.window);
        let [_, coming, _] = link.counts();
        let eager = self.limits.window as usize / credit::RECORD_BYTES;
        assert!(coming as usize <= self.limits.max_rendezvous as usize + eager);
        let (_, kept) = owner.table.len();
        assert!(kept as usize <= self.limits.max_rendezvous as usize + eager, "{kept} kept");
        let most = 800 * (2 + self.limits.requests as usize);
        assert!(
            records
                <= most
                    + 600 * (2 * self.limits.channels as usize + 2 * self.limits.max_rendezvous as usize + eager + 64)
        );
    }
}

fn reception(table: &mut Table, matched: bool) -> Reception {
    if matched { Reception::Matched(table.add_scope(None).unwrap()) } else { Reception::Handler }
}

fn leave(table: &mut Table, reception: Reception) -> bool {
    let Reception::Matched(scope) = reception else { return true };
    table.remove_source(Source::One(scope))
}

/// Limits that are reached soon.
pub const TIGHT: Limits = Limits {
    window: 6000,
    max_rendezvous: 5,
    channels: 6,
    ahead: 1500,
    max_pulls: 2,
    reserve: 400,
    eager: 2000,
    requests: 6,
};

const _: () = assert!(LARGEST >= packet::MIN_PACKET_BYTES);
