//! Short messages in both directions over FIFOs with a hostile peer, on the direct and on the general path.
//!
//! What it is: two sides with FIFOs of their own that get the same packets and the same garbage, and are given the same receives and sends. After
//! every operation both must agree on the received message, the result of a send, the packets sent, what broke the link, and the link's state.
//!
//! ```text
//!   op 1 byte: below 170 a packet of this kind · 170-179 write · 180-189 receive · 190-198 send · 199 the peer reads · from 200 steps of this side
//!   packet: flags and continuation cells 1, length 1, bytes · write: where 2, value 8 · receive: tag 1, ignored bits 1
//!   send: tag 1, bytes of headers 2, of a body 2
//! ```

use super::direct::{Path, Taken, posted};
use super::{Model, OWN_STEPS};
use motet_proto::message::matching::{Scope, Selector, Source};
use motet_proto::message::packet::{self, Head, Hello, Kind};
use motet_proto::message::slab::SlabId;
use motet_proto::message::{ChannelId, Mode, Packets, ProtocolViolation, Rejected, Send, header_stack};
use motet_sys::memory;
use motet_sys::rustix::fd::OwnedFd;
use motet_sys::rustix::io::pwrite;
use motet_wire::message::fifo::{
    Buffer, CELL_PAYLOAD, Fifo, FifoRx, FifoTx, MAX_CONTINUATIONS, PutOutcome, SleepFence,
};
use std::sync::atomic::{AtomicU64, Ordering};

/// Messages sent on the direct path, in all inputs of the process.
pub static MESSAGES_SENT: AtomicU64 = AtomicU64::new(0);

/// Cells of a FIFO: few, so that positions wrap often.
const CELLS: usize = 16;
/// Offset of the second FIFO.
const SECOND: usize = 4096;
/// Most operations of one input.
const MAX_OPERATIONS: usize = 200;
/// Bytes of the longest packet that these FIFOs take.
const MAX_PACKET_BYTES: usize = 304;
/// Bytes of headers and body that fit into one cell.
const CELL_BODY_BYTES: usize = CELL_PAYLOAD - packet::MESSAGE_HEAD_BYTES;
/// The first id that a side gives to a channel.
const FIRST_CHANNEL: u32 = 1 << 20;
const BROKEN: ProtocolViolation = ProtocolViolation("the memory makes no sense");

/// The memory of two FIFOs: to this side and from it.
struct LinkMemory {
    file: OwnedFd,
    fifos: [Fifo; 2],
}

thread_local! {
    static MEMORY: Option<[LinkMemory; 2]> = exposed();
}

fn exposed() -> Option<[LinkMemory; 2]> {
    let both = || {
        let (file, mapping) = memory::create_mapped("motet-cells", 2 * SECOND, &[], 2 * SECOND).ok()?;
        Some(LinkMemory { file, fifos: [Fifo::over(mapping, 0, CELLS)?, Fifo::over(mapping, SECOND, CELLS)?] })
    };
    Some([both()?, both()?])
}

/// One operation.
#[derive(Debug, Clone, Copy)]
enum Op<'a> {
    Packet { kind: u8, flags: u8, more: u8, bytes: &'a [u8] },
    Write { at: usize, value: &'a [u8; 8] },
    Receive { tag: u64, ignore: u64 },
    Send { tag: u64, headers: &'a [u8], body: &'a [u8] },
    Read,
    Ours(u8),
}

impl<'a> Op<'a> {
    fn decode(input: &mut &'a [u8]) -> Option<Self> {
        const CONTENT: &[u8; 600] = &[0x5a; 600];
        let (&op, rest) = input.split_first()?;
        *input = rest;
        let mut take = |length: usize| {
            let (bytes, rest) = input.split_at_checked(length)?;
            *input = rest;
            Some(bytes)
        };
        let number = |bytes: &[u8]| usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
        Some(match op {
            0..170 => {
                let &[flags, length] = take(2)? else { return None };
                let bytes = take(usize::from(length))?;
                // Only the two flags with a meaning here; mostly none.
                Self::Packet { kind: op, flags: flags & 3, more: flags >> 5 & MAX_CONTINUATIONS, bytes }
            }
            170..180 => Self::Write { at: number(take(2)?), value: take(8)?.first_chunk()? },
            180..190 => {
                let &[tag, ignore] = take(2)? else { return None };
                let ignore = if ignore == 255 { u64::MAX } else { u64::from(ignore) };
                Self::Receive { tag: u64::from(tag), ignore }
            }
            190..199 => {
                let bytes = take(5)?;
                let (headers, body) = (number(&bytes[1..]) % 300, number(&bytes[3..]) % 300);
                let tag = u64::from(bytes[0]);
                Self::Send { tag, headers: &CONTENT[..headers], body: &CONTENT[..body] }
            }
            199 => Self::Read,
            _ => Self::Ours(op - OWN_STEPS),
        })
    }
}

/// The visible result of an operation.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    taken: Option<Taken>,
    sent: Option<Result<(), Rejected>>,
    wake: bool,
    /// What the peer has read: kind, flags, bytes.
    read: Vec<(u8, u8, Vec<u8>)>,
    broken: Option<ProtocolViolation>,
}

/// Sends packets through a FIFO, as a node does.
struct CellPackets<'a> {
    fifo: &'a mut FifoTx,
    wake: bool,
    broken: bool,
}

impl CellPackets<'_> {
    fn put_was(&mut self, put: Result<PutOutcome, motet_wire::message::fifo::Broken>) -> bool {
        self.broken |= put.is_err();
        self.wake |= put == Ok(PutOutcome::Wake);
        matches!(put, Ok(PutOutcome::Published | PutOutcome::Wake))
    }
}

impl Packets for CellPackets<'_> {
    fn largest(&self) -> usize {
        MAX_PACKET_BYTES
    }

    fn room(&mut self) -> usize {
        let free = self.fifo.free();
        self.broken |= free.is_err();
        free.unwrap_or(0)
    }

    fn put(&mut self, kind: u8, parts: &[&[u8]]) -> bool {
        let put = self.fifo.try_put(kind, 0, parts);
        self.put_was(put)
    }
}

/// One of the two sides.
struct Endpoint<'a> {
    path: Path,
    file: &'a OwnedFd,
    /// The peer's ends: it puts into one FIFO and reads from the other.
    theirs: (FifoTx, FifoRx),
    /// Our ends.
    inward: FifoRx,
    outward: FifoTx,
    buffer: Buffer,
    model: Model,
}

impl<'a> Endpoint<'a> {
    fn new(path: Path, LinkMemory { file, fifos: [inward, outward] }: &'a LinkMemory) -> Self {
        [inward, outward].iter().for_each(|fifo| fifo.prepare(SleepFence::Both));
        let theirs = (inward.tx(), outward.rx());
        let (inward, outward, buffer) = (inward.rx(), outward.tx(), Buffer::new());
        Self { path, file, theirs, inward, outward, buffer, model: Model::new() }
    }

    fn channel(&self) -> Option<(ChannelId, Scope)> {
        self.model.channels.iter().find_map(|&(channel, scope)| Some((channel, scope?)))
    }

    fn apply(&mut self, op: Op<'_>) -> Seen {
        let mut seen = Seen::default();
        match op {
            Op::Packet { kind, flags, more, bytes } => {
                let put = match more {
                    1.. if bytes.len() <= CELL_PAYLOAD => self.theirs.0.try_put_open(kind, flags, bytes, more),
                    _ => self.theirs.0.try_put(kind, flags, &[bytes]),
                };
                seen.wake = put == Ok(PutOutcome::Wake);
            }
            Op::Write { at, value } => {
                // Mostly a word of the next cells to us; otherwise the peer's positions in the other FIFO.
                let cell = self.inward.head() as usize + at / 8 % 3;
                let at = match at % 8 {
                    0 => SECOND + 128 + at / 8 % 2 * 8,
                    1 => SECOND + 256,
                    2 => at / 8 % (2 * SECOND / 8) * 8,
                    _ => 384 + cell % CELLS * 64 + at / 32 % 8 * 8,
                };
                pwrite(self.file, value, at as u64).expect("inside the file");
            }
            Op::Receive { tag, ignore } => match self.receive(tag, ignore) {
                Ok(taken) => seen.taken = taken,
                Err(broken) => seen.broken = Some(broken),
            },
            Op::Send { tag, headers, body } => self.send(tag, headers, body, &mut seen),
            Op::Read => {
                let mut buffer = Buffer::new();
                while let Ok(Some(packet)) = self.theirs.1.poll(&mut buffer) {
                    seen.read.push((packet.kind, packet.flags, packet.bytes(&buffer).to_vec()));
                }
            }
            Op::Ours(step) => self.model.own_step(step),
        }
        seen
    }

    /// Receives at most the next packet. An incomplete one stays in the FIFO.
    fn receive(&mut self, tag: u64, ignore: u64) -> Result<Option<Taken>, ProtocolViolation> {
        let selector = self.channel().map(|(_, scope)| Selector { from: Source::One(scope), tag, ignore });
        let Some(packet) = self.inward.poll(&mut self.buffer).map_err(|_| BROKEN)? else { return Ok(None) };
        let (mut taken, mut result) = (None, Ok(()));
        let (kind, bytes, path) = (packet.kind, packet.bytes(&self.buffer), self.path);
        self.model.arrived(|link, side, now| {
            (taken, result) = match selector {
                Some(selector) => posted(link, side, selector, (kind, bytes), now, path),
                None => (None, link.arrived(side, kind, bytes, now)),
            };
            result
        });
        result.map(|()| taken)
    }

    fn send(&mut self, tag: u64, headers: &[u8], body: &[u8], seen: &mut Seen) {
        let Some((channel, _)) = self.channel() else { return };
        if self.path == Path::Direct
            && let Some(put) = self.put_directly(channel, tag, headers, body)
        {
            MESSAGES_SENT.fetch_add(1, Ordering::Relaxed);
            (seen.sent, seen.wake) = (Some(Ok(())), put == PutOutcome::Wake);
            return;
        }
        let mut packets = CellPackets { fifo: &mut self.outward, wake: false, broken: false };
        let link = &mut self.model.link;
        let sent = if self.path == Path::General || headers.len() > header_stack::MAX_HEADERS_BYTES {
            let send = Send {
                channel,
                tag,
                headers,
                body: &[body],
                mode: Mode::Inject,
                operation: 0,
                place: packet::RemoteAddress::default(),
            };
            link.send(&mut packets, &send).map(drop)
        } else {
            link.send_short(&mut packets, channel, tag, headers.len() as u16, &[headers, body].concat())
        };
        (seen.sent, seen.wake) = (Some(sent), packets.wake);
        if packets.broken {
            seen.broken = Some(BROKEN);
        }
    }

    fn put_directly(&mut self, channel: ChannelId, tag: u64, headers: &[u8], body: &[u8]) -> Option<PutOutcome> {
        let length = headers.len() + body.len();
        let to =
            self.model.link.outgoing(channel).filter(|_| length <= MAX_PACKET_BYTES - packet::MESSAGE_HEAD_BYTES)?;
        let going = self.model.link.prepare_send(to, tag, headers.len(), length)?;
        let (kind, words) = (Kind::Message as u8, going.words);
        let put = match length {
            0..=CELL_BODY_BYTES if headers.is_empty() => self.outward.try_put_cell(kind, words, body),
            0..=CELL_BODY_BYTES => self.outward.try_put_cell_parts(kind, words, [headers, body]),
            _ => self.outward.try_put(kind, 0, &[words.map(u64::to_le_bytes).as_flattened(), headers, body]),
        };
        let put = put.ok().filter(|put| matches!(put, PutOutcome::Published | PutOutcome::Wake))?;
        self.model.link.mark_sent(going);
        Some(put)
    }

    /// The state that is visible from outside, and the positions in the FIFOs.
    fn visible_state(&self) -> impl PartialEq + std::fmt::Debug {
        (self.model.visible_state(), self.inward.head(), self.outward.tail(), self.theirs.1.head())
    }
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let _why = play(input);
}

/// Runs one input. Returns what broke the link.
pub fn play(mut input: &[u8]) -> Option<ProtocolViolation> {
    MEMORY.with(|memory| {
        let [first, second] = memory.as_ref()?;
        let mut endpoints = [(Path::Direct, first), (Path::General, second)].map(|(path, at)| Endpoint::new(path, at));
        let mut broken = None;
        for _ in 0..MAX_OPERATIONS {
            let Some(op) = Op::decode(&mut input) else { break };
            let [direct, general] = endpoints.each_mut().map(|end| end.apply(op));
            broken = direct.broken;
            assert_eq!(direct, general, "both paths agree: {op:?}");
            let [direct, general] = endpoints.each_ref().map(Endpoint::visible_state);
            assert_eq!(direct, general, "and so do their states: {op:?}");
            if broken.is_some() {
                break;
            }
        }
        let kept = endpoints.each_ref().map(|end| format!("{:?}", end.model.link));
        assert!(kept[0] == kept[1], "everything that the links keep: {kept:#?}");
        let [direct, general] = endpoints.map(|end| end.model.end());
        assert_eq!(direct, general);
        broken.or(direct)
    })
}

/// The number of seeds that keep to the protocol; they come first.
pub const HONEST_SEEDS: usize = 5;

/// Messages of every form in cells, sends between them, returned credit, and hostile peers.
pub fn seeds() -> Vec<Vec<u8>> {
    let packet = |kind: Kind, bytes: &[u8]| [&[kind as u8, 0, bytes.len() as u8][..], bytes].concat();
    let message = |tag, headers: u16, grant, length: usize| {
        let head = Head { to: SlabId(FIRST_CHANNEL), own: headers, grant }.write_word(tag);
        packet(Kind::Message, &[&head[..], &vec![7; length]].concat())
    };
    let receive = |tag, ignore| vec![180, tag, ignore];
    let send =
        |tag: u8, headers: u16, body: u16| [&[190, tag][..], &headers.to_le_bytes(), &body.to_le_bytes()].concat();
    let write = |at: u16, value: u64| [&[170][..], &at.to_le_bytes(), &value.to_le_bytes()].concat();
    let (any, ours) = (receive(0, 255), |step: u8| vec![OWN_STEPS + step]);
    let hello = packet(Kind::Hello, &Hello { window: 100, max_rendezvous: 4, channels: 4, requests: 4 }.write());
    // To a service with matching: HELLO, OPEN, and the answers that are due.
    let open = packet(Kind::Open, &Head { to: SlabId(7), own: 0, grant: 0 }.write_word(0));
    let begin = [ours(0), hello, any.clone(), open, any.clone(), ours(0)].concat();
    let exchange = |tag: u8| [message(u64::from(tag), 0, 0, 8), any.clone(), send(tag, 0, 8), vec![199]].concat();
    let usual = [begin, exchange(1), exchange(2)].concat();
    let lengths = [0, 1, 8, 20, 39, 40].map(|length| [message(3, 0, 0, length), any.clone()].concat()).concat();
    let headers = [(4, 12), (40, 40), (20, 90), (1, 1)].map(|(headers, length)| {
        [message(4, headers, 0, length), any.clone(), send(4, headers, length as u16), vec![199]].concat()
    });
    let credit = [send(1, 0, 8), send(2, 8, 8), message(1, 0, 10, 8), any.clone(), send(3, 0, 200)].concat();
    let full = [send(5, 0, 8).repeat(17), vec![199], exchange(3)].concat();
    let tags = [message(5, 0, 0, 8), receive(5, 0), message(6, 0, 0, 8), receive(5, 3), receive(9, 0)].concat();
    let copy_id = |position: u64, length: u64, kind: u64| position | length << 32 | kind << 48;
    let hostile = [
        message(1, 9, 0, 8),     // more headers than bytes
        message(1, 0, 60000, 8), // more credit than allowed
        packet(Kind::Message, &Head { to: SlabId(FIRST_CHANNEL + 1), own: 0, grant: 0 }.write_word(1)), // unknown channel
        packet(Kind::Message, &[1; 15]), // shorter than a message's header
        [60, 0, 24].iter().copied().chain([1; 24]).collect(), // unknown kind
        write(3, copy_id(5, 200, 2)),    // longer than the packet
        write(3, copy_id(5, 8191, 2)),   // longer than any packet
        [write(0, u64::MAX), send(5, 0, 8).repeat(17)].concat(), // more consumed than was put
        (0..20).flat_map(|_| [message(1, 0, 0, 200), any.clone()].concat()).collect(), // beyond the credit
    ];
    let honest = [lengths, headers.concat(), credit, full, tags];
    let honest = honest.into_iter().map(|then| [usual.clone(), then, exchange(9)].concat());
    honest.chain(hostile.into_iter().map(|garbage| [usual.clone(), garbage, any.clone()].concat())).collect()
}
