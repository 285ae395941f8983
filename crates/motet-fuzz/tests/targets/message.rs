//! The packets of a hostile peer, to one side of a link: the link must keep its limits, break at the first packet that violates the protocol, and
//! complete every operation once.
//!
//! The input is a sequence of steps: a kind, a length of two bytes, the packet. Kinds from `OWN_STEPS` on are steps of this side.
//!
//! Two sides get every step. For some messages one of them uses the direct path, the other one always the general one ([`direct`]). They must agree
//! after every step.

pub mod cells;
pub mod direct;
mod memory;

use motet_proto::message::matching::{PostOutcome, Receive, Scope, Selector, Source};
use motet_proto::message::packet::{Head, Hello, Kind, LongHeader, RemoteAddress};
use motet_proto::message::slab::SlabId;
use motet_proto::message::{
    Arrival, AssistRequest, Callbacks, ChannelId, CopyRequest, Envelope, Event, Limits, Link, Mode, Outcome, Packets,
    ProtocolViolation, Reception, Send, Sent, Table, UnexpectedMessage, credit,
};

const LIMITS: Limits = Limits {
    window: 4096,
    max_rendezvous: 4,
    channels: 4,
    ahead: 1000,
    max_pulls: 2,
    reserve: 0,
    eager: 2000,
    requests: 4,
};
/// Bytes of every receive buffer, and of every body sent.
const BUFFER: u64 = 200;
const BODY: usize = 3000;
/// The first kind that is a step of this side: flush, post, send, copy, discard, release, loan, release a loan, and those of `memory`.
pub const OWN_STEPS: u8 = 200;
const STEPS: u8 = 8;

/// The owner of a side.
#[derive(Debug)]
pub struct Side {
    table: Table,
    operations: Vec<u64>,
    held: Vec<UnexpectedMessage>,
    copies: Vec<CopyRequest>,
    loans: Vec<SlabId>,
    offers: Vec<(ChannelId, bool)>,
    memory: memory::Ours,
    watched: Option<direct::Watched>,
}

impl Callbacks for Side {
    type Buffer = ();
    fn matching(&mut self) -> &mut Table {
        &mut self.table
    }

    fn deliver(&mut self, _: &Envelope<'_>, arrival: Arrival<'_>) {
        if let Arrival::Long(held) = arrival {
            self.held.push(held);
        }
    }

    fn matched(&mut self, operation: u64, envelope: &Envelope<'_>) {
        assert!(self.operations.contains(&operation), "a pending receive is matched");
        if let Some(watched) = self.watched.as_mut().filter(|watched| watched.operation == operation) {
            watched.matched(envelope);
        }
    }

    fn place(&mut self, operation: u64, at: u64, bytes: &[u8]) {
        assert!(self.operations.contains(&operation), "bytes go to a pending receive");
        assert!(at + bytes.len() as u64 <= BUFFER.max(memory::REGION as u64), "and fit");
        if let Some(watched) = self.watched.as_mut().filter(|watched| watched.operation == operation) {
            watched.placed(bytes);
        }
    }

    fn copy(&mut self, request: CopyRequest) {
        assert!(request.length <= BUFFER);
        self.copies.push(request);
    }

    fn assist_copy(&mut self, request: AssistRequest) {
        assert!(self.operations.contains(&request.operation), "a copy assist is for a pending send");
        assert!(request.shared.length <= BODY as u64, "and with no more than its body");
    }

    fn body(&mut self, _: u64, at: u64, length: usize, put: &mut dyn FnMut(&[&[u8]]) -> bool) -> bool {
        assert!(at + length as u64 <= BODY as u64, "only bytes of the body are asked for");
        put(&[&[0; BODY][..length]])
    }

    fn completed(&mut self, operation: u64, _: Outcome) {
        let at = self.operations.iter().position(|&known| known == operation);
        self.operations.swap_remove(at.expect("an operation completes once"));
        if let Some(watched) = self.watched.as_mut().filter(|watched| watched.operation == operation) {
            watched.over = true;
        }
    }

    fn event(&mut self, channel: ChannelId, event: Event) {
        if let Event::Offered(service) = event {
            self.offers.push((channel, service.is_multiple_of(2)));
        }
    }

    fn unblocked(&mut self) {}
}

/// A transport without limits.
struct Unlimited;

impl Packets for Unlimited {
    fn largest(&self) -> usize {
        600
    }

    fn room(&mut self) -> usize {
        usize::MAX / 2
    }

    fn put(&mut self, _: u8, parts: &[&[u8]]) -> bool {
        assert!(parts.iter().map(|part| part.len()).sum::<usize>() <= self.largest());
        true
    }
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let _why = play(input);
}

/// Runs one input. Returns what broke the link.
pub fn play(mut input: &[u8]) -> Option<ProtocolViolation> {
    let (mut model, mut twin) = (Model::new(), Model::new());
    while let Some((&[kind, low, high], rest)) = input.split_first_chunk::<3>() {
        let (packet, rest) = rest.split_at(usize::from(u16::from_le_bytes([low, high])).min(rest.len()));
        input = rest;
        match kind.checked_sub(OWN_STEPS) {
            None => {
                let scope = model.channels.iter().find_map(|channel| channel.1);
                match (scope, model.next % 4) {
                    (Some(scope), 0) => direct::arrived(&mut model, &mut twin, scope, kind, packet),
                    (_, 1 | 2) => direct::arrived_early(&mut model, &mut twin, kind, packet),
                    _ => {
                        for model in [&mut model, &mut twin] {
                            model.arrived(|link, side, now| link.arrived(side, kind, packet, now));
                        }
                    }
                }
            }
            Some(step) => {
                model.own_step(step);
                twin.own_step(step);
            }
        }
        assert_eq!(model.visible_state(), twin.visible_state(), "both paths agree");
    }
    let broken = model.end();
    assert_eq!(twin.end(), broken);
    broken
}

/// One side of a link, with checks after each step.
pub struct Model {
    link: Link,
    side: Side,
    channels: Vec<(ChannelId, Option<Scope>)>,
    next: u64,
}

impl Model {
    /// A new link.
    pub fn new() -> Self {
        let (operations, held, copies, loans, offers) = Default::default();
        let (table, memory) = (Table::new([1, 2]), memory::Ours::new());
        let side = Side { table, operations, held, copies, loans, offers, memory, watched: None };
        Self { link: Link::new(0, LIMITS, 0), side, channels: Vec::new(), next: 0 }
    }

    /// Passes a packet to the link, which breaks if the packet violates the protocol.
    pub fn arrived(&mut self, packet: impl FnOnce(&mut Link, &mut Side, u64) -> Result<(), ProtocolViolation>) {
        self.next += 1;
        let result = packet(&mut self.link, &mut self.side, self.next);
        assert_eq!(self.link.broken(), result.err(), "broken at once and permanently");
        self.check();
    }

    /// Makes a step of this side.
    pub fn own_step(&mut self, step: u8) {
        self.next += 1;
        let Self { link, side, channels, next } = self;
        match step % (STEPS + memory::STEPS) {
            step @ 0..STEPS => own_step(link, side, channels, step, *next),
            step => memory::own_step(link, side, step - STEPS, *next),
        }
        self.check();
    }

    fn check(&mut self) {
        let Self { link, side, channels, .. } = self;
        for (channel, matched) in std::mem::take(&mut side.offers) {
            let scope = matched.then(|| side.table.add_scope(None).expect("few scopes"));
            let _accepted = link.accept_channel(channel, scope.map_or(Reception::Handler, Reception::Matched));
            channels.push((channel, scope));
        }
        memory::check(link, side);
        let (records, used) = link.bytes();
        assert!(used as u64 <= LIMITS.window && records < 30_000, "memory within the limits");
        let most = LIMITS.window / credit::RECORD_BYTES as u64 + u64::from(LIMITS.max_rendezvous);
        assert!(u64::from(side.table.len().1) <= most, "and few messages that wait");
    }

    /// The state that is visible from outside.
    fn visible_state(&self) -> impl PartialEq + std::fmt::Debug {
        let Self { link, side, next, .. } = self;
        let (link, waits) =
            ((link.broken(), link.bytes().1, link.counts(), link.requests(), link.owes_credit()), side.table.len());
        let first = |&(_, scope): &(ChannelId, Option<Scope>)| {
            let held = side.table.peek(Selector { from: Source::One(scope?), tag: 0, ignore: u64::MAX })?;
            let body = held.body().map(<[u8]>::to_vec);
            Some((held.channel, held.tag, held.length, held.headers().to_vec(), body))
        };
        let waits = (waits, self.channels.iter().map(first).collect::<Vec<_>>());
        (link, waits, side.held.len(), side.copies.len(), side.loans.len(), side.operations.len(), *next)
    }

    /// Ends the link and checks that everything has completed. Returns what broke it.
    pub fn end(self) -> Option<ProtocolViolation> {
        let Self { mut link, mut side, channels, .. } = self;
        let broken = link.broken();
        link.reset(&mut side, ProtocolViolation("the end of the input"));
        for request in std::mem::take(&mut side.copies) {
            link.copied(&mut side, request.record, true);
        }
        memory::finish(&mut link, &mut side);
        assert!(side.operations.is_empty(), "every operation has completed");
        for held in std::mem::take(&mut side.held) {
            link.discard(held);
        }
        for (channel, _) in channels {
            let _gone = link.release(&mut side, channel);
        }
        assert_eq!((link.counts(), side.table.len()), ([0; 3], (0, 0)), "nothing is left");
        broken
    }
}

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

fn own_step(
    link: &mut Link,
    side: &mut Side,
    channels: &mut Vec<(ChannelId, Option<Scope>)>,
    step: u8,
    operation: u64,
) {
    let channel = channels.last().copied();
    match (step, channel) {
        (0, _) => drop(link.flush(&mut Unlimited, side, 3)),
        (1, Some((_, Some(scope)))) => {
            side.operations.push(operation);
            let selector = Selector { from: Source::One(scope), tag: 0, ignore: u64::MAX };
            match side.table.post(selector, Receive { operation, capacity: BUFFER, buffer: () }) {
                PostOutcome::Posted(_) => {}
                PostOutcome::Matched(held) => link.accept(side, held, operation, BUFFER),
                PostOutcome::Ended(_) => drop(side.operations.pop()),
            }
        }
        (2, Some((channel, _))) => {
            // Every second body has an address, so its receiver may ask for help with the copy.
            let (mode, place) = (Mode::Automatic, RemoteAddress { address: operation % 2, key: 0 });
            let send = Send { channel, tag: 0, headers: &[], body: &[&[0; BODY]], mode, operation, place };
            if let Ok(Sent::Pending(_)) = link.send(&mut Unlimited, &send) {
                side.operations.push(operation);
            }
        }
        (3, _) if !side.copies.is_empty() => {
            let request = side.copies.remove(0);
            link.copied(side, request.record, operation.is_multiple_of(2));
        }
        (4, _) if !side.held.is_empty() => {
            let held = side.held.remove(0);
            link.discard(held);
        }
        (5, Some((channel, _))) => {
            channels.pop();
            let _gone = link.release(side, channel);
        }
        (6, _) if !side.copies.is_empty() => {
            let record = side.copies.remove(0).record;
            if link.loan_in_place(side, record) {
                side.loans.push(record);
            }
        }
        (7, _) if !side.loans.is_empty() => link.release_loan(side.loans.remove(0)),
        _ => {}
    }
}

/// A step of an input.
fn step(kind: u8, packet: &[u8]) -> Vec<u8> {
    [&[kind][..], &(packet.len() as u16).to_le_bytes(), packet].concat()
}

/// Well-formed exchanges: short messages, a long eager one, rendezvous by copy and by packets, the end of a channel.
pub fn seeds() -> Vec<Vec<u8>> {
    let of = |kind: Kind, packet: &[u8]| step(kind as u8, packet);
    let head = |to: u32, own: u16| Head { to: SlabId(to), own, grant: 0 };
    let ours = |number: u8| step(OWN_STEPS + number, &[]);
    let hello = of(Kind::Hello, &Hello { window: 100, max_rendezvous: 4, channels: 4, requests: 4 }.write());
    // The first id that a side gives to a channel or a long message.
    let one = 1 << 20;
    let open = |service| [hello.clone(), ours(0), of(Kind::Open, &head(7, 0).write_word(service)), ours(0)].concat();
    let message = of(Kind::Message, &[&head(one, 2).write_word(5)[..], b"hhbody"].concat());
    let long = LongHeader { tag: 5, length: 300, number: SlabId(one) };
    let first = of(Kind::First, &[&long.write(head(one, 0))[..], &[1; 200]].concat());
    let piece =
        |at: u64, length: usize| of(Kind::Piece, &[&head(one, 0).write_word(at)[..], &vec![1; length]].concat());
    let announce = |address| of(Kind::Rts, &long.write_at(head(one, 0), RemoteAddress { address, key: 1 }));
    let close = of(Kind::Close, &head(one, 3).write());
    let pull = of(Kind::Cts, &head(one, 0).write_word(1500));
    let done = of(Kind::Fin, &head(one, 0).write());
    let remote = memory::seeds(|step| ours(STEPS + step), &ours(0), of);
    let begin = [hello.clone(), ours(0)].concat();
    let messages = vec![
        [open(0), message.clone(), ours(1), ours(1), message.clone(), close.clone()].concat(),
        [open(1), message.clone(), first.clone(), piece(200, 100), ours(4)].concat(),
        [open(0), first.clone(), ours(1), piece(200, 100), ours(0), message].concat(),
        [open(0), announce(9), ours(1), ours(3), ours(0)].concat(),
        [open(0), announce(9), ours(1), ours(6), ours(7), ours(0)].concat(),
        [open(0), announce(9), ours(1), ours(6), ours(7), ours(0), announce(9)].concat(),
        [open(0), ours(1), announce(0), ours(0), piece(0, 200), ours(0), ours(5), close].concat(),
        [open(0), ours(2), pull, ours(0), done].concat(),
        [open(1), announce(0), ours(4), of(Kind::Ask, &head(3, 0).write()), ours(0)].concat(),
        [open(0), announce(0), of(Kind::Cancel, &head(one, 0).write()), ours(0)].concat(),
    ];
    messages.into_iter().chain(remote.into_iter().map(|seed| [&begin[..], &seed].concat())).collect()
}
