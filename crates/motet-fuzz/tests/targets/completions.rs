//! Messages for posted receives that are delivered directly from cells that the peer writes (`motet_engine::message::completions`).
//!
//! What it is: two complete nodes of the engine with the shared memory driver, because the code under test is behind the node's lock. Both are linked
//! to raw peers, get the same bytes at the same offsets of the peers' memory, and are given the same receives and sends. One has a bias and polls for
//! many completions; the other takes the general path and tests for one completion at a time, which is in its completion queue by then. After every
//! poll of all that has arrived both must agree on the completions, their bytes, and the broken links.
//!
//! What it is not: concurrent (`motet-torture` is). The only writes during a call are those at the delivery of a completion.
//!
//! ```text
//!   settings 1 byte: see `Settings`, then operations
//!   op 1 byte: 0-3 message · 4 cell · 5 packet · 6 write · 7 write at a delivery · 8 receive · 9 poll · 10 send
//!     · 12 cancel · 13 claim · 14 progress · else the peer reads
//!   message: bytes of headers 1, grant 1, tag 1, length 1 · cell: upper half of its word 4, payload 56 · packet: kind 1, length 1, bytes
//!   write: where 2, value 8 · receive: how 1, tag 1, ignored bits 1, room 1 · poll: most 1 · send: tag 1, headers 1, length 1
//!   cancel: receive 1 · claim: tag 1, ignored bits 1
//! ```

mod raw_peer;
mod receive_memory;
mod seeds;

pub use seeds::{honest_count, seeds};

use motet_driver_shm::Shm;
use motet_engine::driver::Driver;
use motet_engine::message::operations::Buffer;
use motet_engine::message::receive::RecvFrom;
use motet_engine::message::send::Outgoing;
use motet_engine::message::{
    Bias, BodyPath, Channel, Completion, CompletionOptions, CompletionRef, Context, CqId, MessageLimits, Mode, Node,
    NodeOptions, OperationId, Serve, SinkFn, Status,
};
use motet_sys::user_memory::OperationMemory;
use raw_peer::{FIRST_CHANNEL, Peer};
use receive_memory::ReceiveMemory;

/// Most operations and most receives of one input.
const MAX_OPERATIONS: usize = 150;
const RECEIVES: usize = 64;
/// Bytes between the buffers of two receives, and the largest buffer. The bytes behind a buffer must stay untouched.
const RECEIVE_STRIDE: usize = 256;
const MAX_ROOM: usize = 200;
const UNTOUCHED: u8 = 0xee;
const SERVICE: u64 = 1;
/// Number of consecutive empty polls after which nothing is left. A round takes 16 packets of a link, and a FIFO has 64 cells.
const EMPTY_POLLS: u32 = 6;
/// Bytes of headers and body that fit into one cell.
const CELL_BODY_BYTES: usize = 40;

/// How often an input reached the paths under test.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Reached {
    /// Polls that delivered completions.
    pub delivered: u64,
    /// Polls that delivered more than one.
    pub batches: u64,
    /// Completions of truncated messages.
    pub truncated: u64,
    /// Completions of receives with owned memory, at which a poll stops.
    pub kept: u64,
    /// Links broken by the peer's writes.
    pub broken: u64,
    /// Writes during a poll.
    pub interleaved: u64,
    /// Receives that were cancelled before their messages arrived.
    pub cancelled: u64,
    /// Messages that were claimed.
    pub claimed: u64,
}

impl Reached {
    /// The sums of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            delivered: self.delivered + other.delivered,
            batches: self.batches + other.batches,
            truncated: self.truncated + other.truncated,
            kept: self.kept + other.kept,
            broken: self.broken + other.broken,
            interleaved: self.interleaved + other.interleaved,
            cancelled: self.cancelled + other.cancelled,
            claimed: self.claimed + other.claimed,
        }
    }
}

/// Settings of the nodes and their peers.
struct Settings(u8);

impl Settings {
    /// Bits: two links per node instead of one; messages matched in order on each channel instead of by tag on any.
    const TWO_LINKS: u8 = 1;
    const ORDERED: u8 = 2;

    fn links(&self) -> usize {
        1 + usize::from(self.0 & Self::TWO_LINKS != 0)
    }

    fn serve(&self, context: Context) -> Serve {
        if self.0 & Self::ORDERED != 0 { Serve::Queue } else { Serve::Tagged(context) }
    }
}

/// A completion, in a form in which both nodes must agree.
#[derive(Debug, PartialEq, Eq)]
struct End {
    receive: u64,
    status: Status,
    length: u64,
    tag: u64,
    message_length: u64,
    headers: Vec<u8>,
    channel: Option<Channel>,
    /// The bytes of a receive with owned memory.
    bytes: Option<Vec<u8>>,
}

impl End {
    fn of(end: &CompletionRef<'_>) -> Self {
        let &CompletionRef { user_data: receive, status, length, tag, message_length, headers, channel, .. } = end;
        assert!(headers.len() <= 256, "headers within the limit");
        Self { receive, status, length, tag, message_length, headers: headers.to_vec(), channel, bytes: None }
    }

    fn of_completion(end: Completion) -> Self {
        let Completion { user_data: receive, status, length, tag, message_length, headers, channel, memory, .. } = end;
        // Empty memory is not returned to the program.
        let bytes = memory.filter(|bytes| !bytes.is_empty()).map(|bytes| bytes[..length as usize].to_vec());
        Self { receive, status, length, tag, message_length, headers, channel, bytes }
    }
}

/// A node and its peers.
struct Side {
    peers: Vec<Peer>,
    channels: Vec<Channel>,
    context: Context,
    /// Completion queues of receives: the polled one, and another.
    cqs: [CqId; 2],
    bias: Option<Bias>,
    /// Writes at the next delivery: link, offset, value.
    later: Vec<(usize, usize, [u8; 8])>,
    node: Node,
}

impl Side {
    fn new(settings: &Settings, pinned: bool) -> Self {
        static SHM: Shm = Shm;
        let drivers: Vec<&'static dyn Driver> = vec![&SHM];
        // The window is small, so that peers exceed it soon. Single copy is off, because the peer's memory would be this process's.
        let limits = MessageLimits {
            window: 16 << 10,
            max_rendezvous: 4,
            channels: 4,
            body_path: BodyPath::Ring,
            pool: 1 << 20,
            ..MessageLimits::default()
        };
        let node = Node::open(&NodeOptions {
            drivers,
            name: String::new(),
            listen: None,
            secret: None,
            other_users: false,
            limits,
            spin: 10_000,
        })
        .expect("a node");
        let context = node.context().expect("a context");
        node.serve(SERVICE, settings.serve(context)).expect("a service");
        let links = 0..settings.links();
        let (peers, channels): (Vec<_>, Vec<_>) = links.map(|number| Peer::open(&node, SERVICE, number as u8)).unzip();
        let cqs = [(); 2].map(|()| node.add_cq().expect("a cq"));
        let mut side = Self { peers, channels, context, cqs, bias: None, later: Vec::new(), node };
        side.make_busy();
        if !pinned {
            // A receive in another context, posted first, keeps messages off the path that skips matching.
            let other_context = RecvFrom::Any(side.node.context().expect("a context"));
            side.node
                .post(other_context, 0, 0, OperationMemory::Owned(Vec::new()), CompletionOptions::default())
                .expect("a receive");
        }
        side.bias = pinned.then(|| side.node.bias().expect("a pin"));
        side
    }

    /// Makes all links active. Their packets are then found in every round, without doorbells.
    fn make_busy(&mut self) {
        let completion = CompletionOptions { cq: Some(self.cqs[1]), user_data: 0, errors_only: false };
        for (peer, &channel) in self.peers.iter_mut().zip(&self.channels) {
            let memory = OperationMemory::Owned(vec![0; 8]);
            self.node.post(RecvFrom::Channel(channel), 0, u64::MAX, memory, completion).expect("a receive");
            peer.packet(raw_peer::MESSAGE, &raw_peer::message(FIRST_CHANNEL, 0, 0, 0, &[0; 8]));
            let came = (0..1000).any(|_| {
                self.node.progress().expect("a node");
                self.node.test_cq(self.cqs[1]).expect("a cq").is_some()
            });
            assert!(came, "a parked link is polled now and then");
        }
    }

    /// All completions that are there.
    fn ends(&mut self, most: usize, reached: &mut Reached) -> Vec<End> {
        let mut ends = Vec::new();
        let mut empty = 0;
        while empty < EMPTY_POLLS {
            let before = ends.len();
            if self.bias.is_some() {
                self.poll(most, &mut ends, reached);
            } else {
                self.node.progress().expect("a node");
                ends.extend(std::iter::from_fn(|| self.test(0)));
            }
            empty = if ends.len() == before { empty + 1 } else { 0 };
        }
        ends.extend(std::iter::from_fn(|| self.test(1)));
        ends
    }

    /// Takes a completion from a queue.
    fn test(&self, cq: usize) -> Option<End> {
        self.node.test_cq(self.cqs[cq]).expect("a cq").map(End::of_completion)
    }

    /// Polls for many completions.
    fn poll(&mut self, most: usize, ends: &mut Vec<End>, reached: &mut Reached) {
        let cq = self.cqs[0];
        let Self { node, bias, later, peers, .. } = &mut *self;
        let before = ends.len();
        let record = |end: &CompletionRef<'_>| {
            ends.push(End::of(end));
            for (link, at, value) in later.drain(..) {
                peers[link].write(at, &value);
                reached.interleaved += 1;
            }
        };
        let (delivered, kept) = node.poll_cq_with(cq, most, &mut SinkFn(record), bias.as_mut()).expect("a cq");
        assert!(delivered == ends.len() - before && delivered <= most, "{delivered} of at most {most}");
        reached.delivered += u64::from(delivered > 0);
        reached.batches += u64::from(delivered > 1);
        if kept {
            ends.push(self.test(0).expect("a completion in the queue"));
            reached.kept += 1;
        }
    }

    fn gone(&self) -> Vec<bool> {
        self.channels.iter().map(|channel| self.node.link_info(channel.link).expect("a link").gone.is_some()).collect()
    }
}

thread_local! {
    static RECEIVE_MEMORY: [ReceiveMemory; 2] = [(); 2].map(|()| ReceiveMemory::new(RECEIVES * RECEIVE_STRIDE));
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let _reached = play(input);
}

/// Runs one input. Returns what it reached.
pub fn play(input: &[u8]) -> Reached {
    let Some((&settings, input)) = input.split_first() else { return Reached::default() };
    let settings = Settings(settings);
    RECEIVE_MEMORY.with(|receive_memory| {
        let sides = [true, false].map(|pinned| Side::new(&settings, pinned));
        let harness =
            Harness { sides, receive_memory, receives: Vec::new(), puts: 0, agree: true, reached: Reached::default() };
        harness.play(input)
    })
}

/// A receive.
struct Receive {
    /// Its link, whether it takes messages of any channel, its completion queue, the size of its buffer, and whether it owns that.
    link: usize,
    any: bool,
    other: bool,
    room: usize,
    owned: bool,
    /// Its operation on each side, if it has one, and whether it has completed there.
    names: [Option<OperationId>; 2],
    ended: [bool; 2],
}

/// The state of one input.
struct Harness<'a> {
    sides: [Side; 2],
    receive_memory: &'a [ReceiveMemory; 2],
    receives: Vec<Receive>,
    puts: u8,
    /// Both sides have seen the same writes so far.
    agree: bool,
    reached: Reached,
}

impl Harness<'_> {
    fn play(mut self, mut input: &[u8]) -> Reached {
        for _ in 0..MAX_OPERATIONS {
            let Some(()) = self.step(&mut input) else { break };
        }
        self.poll(32);
        for (side, sent) in self.sides.iter().enumerate() {
            let counts = sent.cqs.map(|cq| sent.node.cq_counts(cq).expect("a cq"));
            let under_way = counts.iter().map(|counts| counts[2]).sum::<u64>();
            let left = self.receives.iter().filter(|receive| !receive.ended[side]).count();
            assert_eq!(under_way, left as u64, "every receive ends once, or waits");
        }
        self.reached
    }

    fn step(&mut self, input: &mut &[u8]) -> Option<()> {
        let mut take = |length: usize| {
            let (bytes, rest) = input.split_at_checked(length)?;
            *input = rest;
            Some(bytes)
        };
        let &[op] = take(1)? else { return None };
        let links = self.sides[0].peers.len();
        match op {
            0..=3 => {
                let &[headers, grant, tag, length] = take(4)? else { return None };
                self.puts = self.puts.wrapping_add(1);
                let bytes = [self.puts; 56];
                let to = if op & 2 == 0 { FIRST_CHANNEL } else { FIRST_CHANNEL + u32::from(grant >> 4) };
                let packet = raw_peer::message(
                    to,
                    headers,
                    grant & 15,
                    tag,
                    &bytes[..usize::from(length) % (CELL_BODY_BYTES + 1)],
                );
                self.put(usize::from(op) % links, |peer| peer.packet(raw_peer::MESSAGE, &packet));
            }
            4 => {
                let word = u32::from_le_bytes(*take(4)?.first_chunk()?);
                let bytes = take(56)?;
                self.put(0, |peer| peer.line(bytes, word.into()));
            }
            5 => {
                let &[kind, length] = take(2)? else { return None };
                let bytes = take(usize::from(length) % 57)?;
                self.put(0, |peer| peer.packet(kind, bytes));
            }
            6 | 7 => {
                let at = u16::from_le_bytes(*take(2)?.first_chunk()?);
                let value = *take(8)?.first_chunk()?;
                let link = usize::from(at) % links;
                let at = self.sides[0].peers[link].place(at);
                if op == 6 {
                    self.put(link, |peer| peer.write(at, &value));
                    self.agree &= !raw_peer::is_in_node_fifo(at);
                } else if self.sides[0].later.len() < 8 {
                    self.sides[0].later.push((link, at, value));
                    self.agree = false;
                }
            }
            8 => {
                let &[how, tag, ignore, room] = take(4)? else { return None };
                self.receive(how, tag, ignore, usize::from(room));
            }
            9 => {
                let &[most] = take(1)? else { return None };
                self.poll(1 + usize::from(most) % 40);
            }
            10 => {
                let &[tag, headers, length] = take(3)? else { return None };
                self.send(tag, usize::from(headers) % 60, usize::from(length));
            }
            12 => {
                let &[number] = take(1)? else { return None };
                self.cancel(usize::from(number) % RECEIVES);
            }
            13 => {
                let &[tag, ignore] = take(2)? else { return None };
                self.claim(tag, ignore);
            }
            14 => self.sides.iter().for_each(|side| assert!(side.node.progress().is_ok())),
            _ => {
                let [one, other] =
                    self.sides.each_mut().map(|side| side.peers.iter_mut().map(Peer::read).collect::<Vec<_>>());
                assert!(!self.agree || one == other, "the same messages");
            }
        }
        Some(())
    }

    /// Does the same on both sides.
    fn put(&mut self, link: usize, put: impl Fn(&mut Peer)) {
        self.sides.iter_mut().for_each(|side| put(&mut side.peers[link]));
    }

    fn receive(&mut self, how: u8, tag: u8, ignore: u8, room: usize) {
        let (number, room) = (self.receives.len(), room % (MAX_ROOM + 1));
        if number == RECEIVES {
            return;
        }
        // The order in which two links are polled is not specified, so a receive is for one of them.
        let links = self.sides[0].channels.len();
        let (owned, other, any, link) =
            (how & 1 != 0, how & 2 != 0, how & 4 != 0 && links == 1, usize::from(how >> 3) % links);
        let ignore = if ignore == 255 { u64::MAX } else { ignore.into() };
        let posted = [0, 1].map(|side| {
            let (receive_memory, Side { node, bias, cqs, channels, context, .. }) =
                (&self.receive_memory[side], &mut self.sides[side]);
            receive_memory.fill(number * RECEIVE_STRIDE, RECEIVE_STRIDE, UNTOUCHED);
            let memory = if owned {
                OperationMemory::Owned(vec![UNTOUCHED; room])
            } else {
                OperationMemory::User(receive_memory.span(number * RECEIVE_STRIDE, room))
            };
            let from = if any { RecvFrom::Any(*context) } else { RecvFrom::Channel(channels[link]) };
            let (cq, context) = (cqs[usize::from(other)], number as u64);
            let asked = (from, tag.into(), ignore);
            match memory {
                // Every second one has no operation record on the biased side.
                OperationMemory::User(span) if bias.is_some() && number % 2 == 1 => {
                    node.post_unrecorded(asked, Buffer { span, user_data: context }, cq, bias.as_mut()).map(|()| None)
                }
                memory => {
                    let completion = CompletionOptions { cq: Some(cq), user_data: context, errors_only: false };
                    node.post_with(asked, memory, completion, bias.as_mut()).map(Some)
                }
            }
        });
        let errors = posted.map(Result::err);
        assert!(!self.agree || errors[0] == errors[1], "{posted:?}");
        let (names, ended) = (posted.map(|posted| posted.ok().flatten()), posted.map(|posted| posted.is_err()));
        self.receives.push(Receive { link, any, other, room, owned, names, ended });
    }

    /// Cancels a receive, which may have completed or matched a message already.
    fn cancel(&mut self, number: usize) {
        if self.sides[0].channels.len() > 1 {
            self.poll(32); // the order of polls of two links is not specified
        }
        let Some(&Receive { link, any, other, names, ended, .. }) = self.receives.get(number) else { return };
        let cancelled = [0, 1].map(|side| {
            let Side { node, cqs, channels, context, .. } = &self.sides[side];
            match names[side] {
                Some(name) => node.cancel(name).is_ok(),
                None => {
                    let from = if any { RecvFrom::Any(*context) } else { RecvFrom::Channel(channels[link]) };
                    node.cancel_unrecorded(cqs[usize::from(other)], from, number as u64, false) == Ok(true)
                }
            }
        });
        // A completion that one node has delivered may still be in a queue of the other.
        assert!(!cancelled[0] || !ended[0], "a completed receive cannot be cancelled");
        assert!(!cancelled[1] || !ended[1], "a completed receive cannot be cancelled");
    }

    /// Claims a message for which no receive is posted.
    fn claim(&mut self, tag: u8, ignore: u8) {
        let ignore = if ignore == 255 { u64::MAX } else { ignore.into() };
        let links = self.sides[0].channels.len();
        let claimed = self.sides.each_mut().map(|Side { node, context, channels, .. }| {
            let from = if links == 1 { RecvFrom::Channel(channels[0]) } else { RecvFrom::Any(*context) };
            let Ok(Some(held)) = node.claim(from, tag.into(), ignore) else { return None };
            let seen = (held.tag, held.length, held.headers().to_vec());
            node.discard_body(held).expect("a node");
            Some(seen)
        });
        let several = links > 1; // the order of messages of two links is not specified
        assert!(!self.agree || several || claimed[0] == claimed[1], "{claimed:?}");
        self.agree &= !several || claimed == [None, None];
        self.reached.claimed += u64::from(claimed[0].is_some());
    }

    fn send(&mut self, tag: u8, headers: usize, length: usize) {
        let content = [tag; 256];
        let sent = self.sides.each_mut().map(|Side { node, bias, channels, .. }| {
            let (headers, mode) = (&content[..headers], Mode::Inject);
            let message = Outgoing { channel: channels[0], tag: tag.into(), headers, mode };
            node.try_inject_parts_with(&message, &[&content[..length]], bias.as_mut())
        });
        assert!(!self.agree || sent[0] == sent[1], "{sent:?}");
    }

    /// Polls both sides and compares their completions.
    fn poll(&mut self, most: usize) {
        let [one, other] = &mut self.sides;
        let mut ends = [one.ends(most, &mut self.reached), other.ends(most, &mut self.reached)];
        for (side, end) in ends.iter().enumerate().flat_map(|(side, ends)| ends.iter().map(move |end| (side, end))) {
            let number = end.receive as usize;
            let Receive { room, owned, ended, .. } = &mut self.receives[number];
            assert!(!std::mem::replace(&mut ended[side], true), "a receive ends once");
            assert!(end.length <= *room as u64 && end.length <= end.message_length, "{end:?} has room for {room}");
            if *owned {
                assert_eq!(end.bytes.as_ref().map_or(0, Vec::len) as u64, end.length);
            } else {
                let place = self.receive_memory[side].bytes(number * RECEIVE_STRIDE, RECEIVE_STRIDE);
                assert!(
                    place[*room..].iter().all(|&byte| byte == UNTOUCHED),
                    "nothing outside of the buffer is written"
                );
            }
            self.reached.truncated += u64::from(end.status == Status::Truncated);
            self.reached.cancelled += u64::from(end.status == Status::Cancelled && side == 0);
        }
        let gone = [self.sides[0].gone(), self.sides[1].gone()];
        if !self.agree {
            return;
        }
        ends.iter_mut().for_each(|ends| ends.sort_by_key(|end| self.receives[end.receive as usize].link));
        assert_eq!(ends[0], ends[1], "completions agree on both paths");
        assert_eq!(gone[0], gone[1], "broken links agree");
        for end in ends[0].iter().filter(|end| end.bytes.is_none()) {
            let bytes = [0, 1].map(|side| {
                self.receive_memory[side].bytes(end.receive as usize * RECEIVE_STRIDE, end.length as usize)
            });
            assert_eq!(bytes[0], bytes[1], "and the bytes agree");
        }
        self.reached.broken = gone[0].iter().filter(|&&gone| gone).count() as u64;
    }
}
