//! One link of a node: the protocol's state, the medium under it, and how packets go from one to the other.
//!
//! What it is not: when a link is looked at, is decided in [`super::progress`].

use super::choice::Choice;
use super::desk::{Back, Desk, View};
use super::medium::{Frames, Lanes, Lost, Medium, NodeId};
use super::packets::{LONGEST, Landing, Outward, Way};
use super::segments::Segments;
use super::sheet::Copies;
use super::{LinkId, MessageLimits, early, posted, regions};
use crate::reason::Reason;
use motet_proto::message::{Broken, ChannelId, GUESSED, Link, Refusal};
use motet_sys::{memory, socket};
use motet_wire::lane::bulk::{BulkOut, IN_RING};
use motet_wire::lane::{Glance, Packet};
use std::os::fd::{AsFd, AsRawFd};

/// Packets taken from one link before others have their turn.
const TURN: usize = 32;
/// Pieces of long messages put at a time.
const PIECES: usize = 16;
/// Looks in vain after which a link is taken to be silent.
pub(super) const SILENT: u32 = 20_000;
/// Bytes of a single copy made at a time.
pub(super) const COPY: usize = 256 << 10;

/// A link that is up, or whose operations have not all been told that it is not.
pub struct Joined {
    /// The protocol.
    pub proto: Link,
    /// What the protocol calls back for.
    pub back: Back,
    /// What carries packets; `None` once it is gone.
    pub medium: Option<Medium>,
    /// Who is at the other end.
    pub peer: NodeId,
    /// The driver's name.
    pub driver: &'static str,
    /// Why the link is gone.
    pub gone: Option<Reason>,
    /// The peer has begun it. Once it is gone, and the program holds nothing of it, it is forgotten.
    pub came: bool,
    /// Looks since something came, and lines taken by the last slow round.
    pub silent: u32,
    /// See `silent`.
    pub taken: u64,
    /// It is among those that are looked at in every round.
    pub hot: bool,
    /// When the pages of the ring are given back, unless more than so many bytes have been written by then.
    pub trim: Option<(u64, u64)>,
    /// A send has found no room since it was last seen that there is some.
    pub blocked: bool,
    /// The peer is gone: once nothing of it is left, the link ends.
    pub ending: bool,
    /// What was copied out of the peer's memory.
    pub copies: Copies,
}

/// What came of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Nothing has come.
    Silent,
    /// Something has.
    Came,
    /// A message for a handler: run it, then look again.
    Deliver,
}

pub(super) const BROKEN_LANE: Broken = Broken("the memory between us makes no sense");
pub(super) const GONE: Broken = Broken("the peer is gone");

impl Joined {
    /// A link over a medium that has just come up.
    pub fn new(id: LinkId, peer: NodeId, medium: Medium, driver: &'static str, limits: &MessageLimits) -> Self {
        let lanes = matches!(medium, Medium::Lanes(_));
        let proto = Link::new(id.0, limits.of(lanes), 0);
        let segments = match &medium {
            Medium::Lanes(lanes) => Segments::over(lanes.control.as_fd().as_raw_fd()),
            Medium::Frames(_) => Segments::default(),
        };
        let single_copy = if lanes { regions::COPY } else { u64::MAX };
        let choice = match &medium {
            Medium::Lanes(lanes) => Choice::new(lanes.pid != 0, lanes.process.is_some(), limits.bodies),
            Medium::Frames(_) => Choice::none(),
        };
        let back = Back { single_copy, segments, choice, ..Back::default() };
        Self { proto, back, medium: Some(medium), ..Self::empty(peer, driver) }
    }

    /// The place of a link that is about to be.
    pub fn empty(peer: NodeId, driver: &'static str) -> Self {
        let (proto, back) = (Link::new(0, MessageLimits::default().of(true), 0), Back::default());
        Self {
            proto,
            back,
            medium: None,
            peer,
            driver,
            gone: None,
            came: false,
            silent: 0,
            taken: 0,
            hot: false,
            trim: None,
            blocked: false,
            ending: false,
            copies: Copies::default(),
        }
    }

    /// Whether nothing is to be done for it but to look at what comes.
    #[inline(always)]
    pub fn is_quiet(&self) -> bool {
        !self.ending && !self.blocked && !self.back.copies_wait() && !self.proto.is_due()
    }

    /// So many rounds have gone by: where nothing has come meanwhile they count as looks.
    pub fn count_silence(&mut self, rounds: u32) {
        let Some(taken) = self.lanes().map(|lanes| lanes.inward.head()) else { return };
        self.silent = if taken == self.taken { self.silent.saturating_add(rounds) } else { 0 };
        self.taken = taken;
    }

    /// Whether something has come lately, and comes through memory.
    pub fn comes_by_lane(&mut self) -> bool {
        self.silent <= SILENT && self.lanes().is_some()
    }

    /// When it must be looked at although nothing comes.
    pub fn due(&self) -> Option<u64> {
        match &self.medium {
            Some(Medium::Frames(frames)) => frames.due(),
            _ => self.trim.map(|(due, _)| due),
        }
    }

    /// The link is not looked at for a while: the pages of a ring that stays unused are given back.
    pub fn rest(&mut self, now: u64) {
        const UNUSED: u64 = 1_000_000_000;
        let used = self.lanes().map(|lanes| &lanes.bulk.0).filter(|ring| ring.is_used()).map(BulkOut::tail);
        self.trim = used.map(|tail| (now.saturating_add(UNUSED), tail));
    }

    /// Gives them back when it is time. A ring that has been used meanwhile keeps its pages: making them anew costs more than what
    /// goes through them.
    pub fn trim(&mut self, now: u64) {
        let Some((_, tail)) = self.trim.filter(|&(due, _)| due <= now) else { return };
        let unused = |ring: &mut BulkOut| ring.tail() == tail && ring.trim(memory::give_back_part);
        let trimmed = self.lanes().is_none_or(|lanes| unused(&mut lanes.bulk.0));
        self.trim = None;
        if !trimmed {
            self.rest(now);
        }
    }

    /// Runs `f` with the protocol, the way into the medium, and the protocol's owner. A sleeping peer is woken after it.
    #[inline(always)]
    pub fn with<R>(
        &mut self,
        id: LinkId,
        desk: &mut Desk,
        f: impl FnOnce(&mut Link, &mut Way<'_>, &mut View<'_>) -> R,
    ) -> R {
        let mut view = View::of(desk, &mut self.back, id);
        let mut way = match &mut self.medium {
            Some(Medium::Lanes(lanes)) => {
                Way::Lane(Outward::new(&mut lanes.outward, &mut lanes.bulk.0, &lanes.copying))
            }
            Some(Medium::Frames(frames)) => Way::Frames(&mut **frames),
            None => Way::Nowhere,
        };
        let result = f(&mut self.proto, &mut way, &mut view);
        let Way::Lane(Outward { wake, broken, .. }) = way else { return result };
        if broken {
            self.lose(id, desk, Reason::BROKEN, BROKEN_LANE);
        } else if wake {
            self.wake();
        }
        result
    }

    /// Sends a message that goes in one packet, or does nothing. The first `headers` bytes of `all` are its headers.
    #[inline(always)]
    pub fn send_short(
        &mut self,
        id: LinkId,
        desk: &mut Desk,
        channel: ChannelId,
        tag: u64,
        headers: u16,
        all: &[u8],
    ) -> Result<(), Refusal> {
        let Some(Medium::Lanes(lanes)) = &mut self.medium else {
            return self.with(id, desk, |proto, way, _| proto.send_short(way, channel, tag, headers, all));
        };
        let mut outward = Outward::new(&mut lanes.outward, &mut lanes.bulk.0, &lanes.copying);
        let sent = self.proto.send_short(&mut outward, channel, tag, headers, all);
        let Outward { wake, broken, .. } = outward;
        if broken {
            self.lose(id, desk, Reason::BROKEN, BROKEN_LANE);
        } else if wake {
            self.wake();
        }
        sent
    }

    /// Wakes the peer.
    #[cold]
    pub(super) fn wake(&self) {
        if let Some(Medium::Lanes(lanes)) = &self.medium {
            lanes.ring();
        }
    }

    /// Takes what has come, up to a turn or the first message for a handler.
    #[inline(always)]
    pub fn look(&mut self, id: LinkId, desk: &mut Desk, landing: &mut Landing, now: u64) -> Look {
        match &mut self.medium {
            Some(Medium::Lanes(lanes)) => {
                let mut view = View::of(desk, &mut self.back, id);
                let look = take_from_lane(lanes, &mut self.proto, &mut view, landing, now);
                let broken = match look {
                    Ok(Look::Silent) => {
                        self.silent = self.silent.saturating_add(1);
                        return Look::Silent;
                    }
                    Ok(look) => {
                        self.silent = 0;
                        return look;
                    }
                    Err(broken) => broken,
                };
                self.lose(id, desk, Reason::BROKEN, broken);
                Look::Came
            }
            Some(Medium::Frames(_)) => self.look_at_frames(id, desk, landing, now),
            None => Look::Silent,
        }
    }

    fn look_at_frames(&mut self, id: LinkId, desk: &mut Desk, landing: &mut Landing, now: u64) -> Look {
        let Some(Medium::Frames(frames)) = &mut self.medium else { return Look::Silent };
        let mut view = View::of(desk, &mut self.back, id);
        let taken = take_frames(&mut **frames, &mut self.proto, &mut view, landing, now);
        match taken {
            Ok(Look::Silent) => self.silent = self.silent.saturating_add(1),
            Ok(_) => self.silent = 0,
            Err(Failed::Peer(broken)) => self.lose(id, desk, Reason::BROKEN, broken),
            Err(Failed::Medium(Lost(reason))) => self.lose(id, desk, reason, GONE),
        }
        taken.unwrap_or(Look::Came)
    }

    /// Puts what is owed to the peer.
    pub fn flush(&mut self, id: LinkId, desk: &mut Desk) {
        if self.proto.is_due() && self.medium.is_some() {
            self.with(id, desk, |proto, packets, view| proto.flush(packets, view, PIECES));
        }
    }

    /// Tells those who found no room when there is some.
    #[cold]
    pub fn look_for_room(&mut self, desk: &mut Desk) {
        let full = self.lanes().is_some_and(|lanes| lanes.outward.room(1) == Ok(false));
        if !full {
            self.blocked = false;
            desk.stirred = true;
        }
    }

    /// The medium is gone: everything on the link ends.
    #[cold]
    pub fn lose(&mut self, id: LinkId, desk: &mut Desk, reason: Reason, broken: Broken) {
        self.end_sharing();
        if let Some(lanes) = self.lanes() {
            // Now, whoever else (a forked child, say) has the descriptor, and before any memory is given back.
            let _ = socket::shutdown(lanes.control.as_fd().as_raw_fd(), 2);
        }
        self.gone.get_or_insert(if broken == GUESSED { Reason::GUESSED } else { reason });
        self.back.helps.clear();
        self.back.segments.leave();
        self.medium = None;
        self.ending = false; // or it would end in every round, and nobody could sleep
        let mut view = View::of(desk, &mut self.back, id);
        self.proto.reset(&mut view, broken);
        while let Some(copying) = view.back.copies.pop_front() {
            self.proto.copied(&mut view, copying.request.record, false);
        }
        while let Some((request, _)) = view.back.remote_copies.pop_front() {
            self.proto.copied_remote(&mut view, request.record, false);
        }
        desk.stirred = true;
        self.note_end(id, desk);
    }

    /// One that a peer has begun is gone, or the program holds less of it: whether anything, is seen by the next round.
    pub fn note_end(&self, id: LinkId, desk: &mut Desk) {
        if self.came && self.gone.is_some() {
            desk.ended.push(id);
        }
    }

    /// Whether the program may still have something of a link that is gone: a channel that it closes, or messages that it takes.
    pub fn is_held(&self) -> bool {
        self.back.is_held() || self.proto.bytes().1 > 0
    }

    /// Ends all of its channels on this side: what waits on them is discarded.
    pub fn release_all(&mut self, id: LinkId, desk: &mut Desk) {
        let channels: Vec<_> = self.back.places.iter().flatten().map(|(channel, _)| *channel).collect();
        let mut view = View::of(desk, &mut self.back, id);
        for channel in channels {
            let _ = self.proto.release(&mut view, channel);
        }
    }

    /// The peer's process has ended, or has closed the link: what it has sent is still taken, then everything ends.
    #[cold]
    pub fn end(&mut self, id: LinkId, desk: &mut Desk) {
        self.lose(id, desk, Reason::PEER_GONE, GONE);
    }

    /// The lanes, if that is what the link has.
    #[inline(always)]
    pub fn lanes(&mut self) -> Option<&mut Lanes> {
        match &mut self.medium {
            Some(Medium::Lanes(lanes)) => Some(lanes),
            _ => None,
        }
    }
}

#[inline(always)]
fn take_from_lane(
    lanes: &mut Lanes,
    proto: &mut Link,
    view: &mut View<'_>,
    landing: &mut Landing,
    now: u64,
) -> Result<Look, Broken> {
    let mut look = Look::Silent;
    for _ in 0..TURN {
        match lanes.inward.glance() {
            Glance::Nothing => break,
            Glance::Short(short) if posted::take(&short, proto, view, now) => {
                lanes.inward.consume_short();
                look = Look::Came;
                if view.desk.operations.blocking_has_ended() {
                    break; // as below
                }
                continue;
            }
            Glance::Short(_) | Glance::Flagged(_) | Glance::Other => {}
        }
        let Some(packet) = lanes.inward.peek(&mut landing.lane).map_err(|_| BROKEN_LANE)? else { break };
        landing.is_long = false;
        if packet.more() > 0 && !lanes.inward.follows(packet.more()).map_err(|_| BROKEN_LANE)? {
            let early = packet.flags & IN_RING != 0;
            if !early || !early::take(lanes, proto, view, &packet, packet.bytes(&landing.lane), now)? {
                break; // not all of it is there
            }
        } else if packet.flags & IN_RING == 0 {
            lanes.inward.consume(&packet);
            proto.arrived(view, packet.kind, packet.bytes(&landing.lane), now)?;
        } else {
            lanes.inward.consume(&packet);
            take_from_ring(lanes, proto, view, packet, landing, now)?;
        }
        look = Look::Came;
        if view.desk.delivery.is_some() {
            look = Look::Deliver;
            break;
        }
        if view.desk.operations.blocking_has_ended() {
            break; // somebody waits for it, and then for the next one
        }
    }
    if lanes.inward.take_wake() {
        lanes.ring();
    }
    Ok(look)
}

/// A packet of which only the first bytes lie in the lane: behind them it says how many lie in the ring.
#[inline(never)]
fn take_from_ring(
    lanes: &mut Lanes,
    proto: &mut Link,
    view: &mut View<'_>,
    packet: Packet,
    landing: &mut Landing,
    now: u64,
) -> Result<(), Broken> {
    let inward = &mut lanes.bulk.1;
    let (front, run) = inward.behind(packet.bytes(&landing.lane)).map_err(|_| BROKEN_LANE)?;
    let result = if proto.reads_from_ring(packet.kind, front) {
        proto.arrived_with(view, packet.kind, front, run, now)
    } else if run.len() > LONGEST {
        Err(BROKEN_LANE)
    } else {
        landing.long.clear();
        landing.long.extend_from_slice(front);
        landing.long.resize(front.len() + run.len(), 0);
        run.read(&mut landing.long[front.len()..]);
        landing.is_long = true;
        proto.arrived(view, packet.kind, &landing.long, now)
    };
    inward.release(run.len());
    lanes.inward.freed();
    result
}

/// Why a link is at its end.
#[derive(Clone, Copy)]
enum Failed {
    Peer(Broken),
    Medium(Lost),
}

fn take_frames(
    frames: &mut dyn Frames,
    proto: &mut Link,
    view: &mut View<'_>,
    landing: &mut Landing,
    now: u64,
) -> Result<Look, Failed> {
    let mut look = Look::Silent;
    for _ in 0..TURN {
        let Some((kind, bytes)) = frames.poll(now).map_err(Failed::Medium)? else { break };
        proto.arrived(view, kind, bytes, now).map_err(Failed::Peer)?;
        look = Look::Came;
        if view.desk.delivery.is_some() {
            landing.long.clear();
            landing.long.extend_from_slice(bytes);
            landing.is_long = true;
            look = Look::Deliver;
            break;
        }
        if view.desk.operations.blocking_has_ended() {
            break;
        }
    }
    // Behind the packets: what is owed for them goes with it.
    frames.progress(now).map_err(Failed::Medium)?;
    Ok(look)
}
