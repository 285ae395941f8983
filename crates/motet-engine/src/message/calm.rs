//! The shortest way of short messages: what all other ways look up for each of them is known, as nobody has used the node otherwise since.
//!
//! What it is: the node is *calm* from a few short messages on one channel until anybody takes its lock for anything else
//! ([`motet_sys::lock::Lock::lock_if_calm`]); meanwhile a send or a receive on that channel looks at its packet, at credit and at room, and at
//! nothing else. What it is not: it decides nothing. What is not plainly so goes the other ways ([`super::sending`], [`super::expect`]),
//! which take the lock as everybody does, and so find things as they are.

use super::core::{Core, Guard};
use super::desk::View;
use super::expect::OTHERS;
use super::links::{BROKEN_LANE, Joined};
use super::medium::{Lanes, Medium};
use super::operations::Got;
use super::packets::{BEHIND_WORDS, Outward};
use super::progress::SLOW;
use super::receiving::From;
use super::{Channel, Context, LinkId, Node};
use crate::reason::Reason;
use motet_proto::message::calm::Calm as Known;
use motet_proto::message::matching::{Selector, Source};
use motet_proto::message::packet::{self, Kind};
use motet_proto::message::pool::Number;
use motet_proto::message::{Packets, Status};
use motet_sys::span::Span;
use motet_wire::lane::{Broken, Glance, Put, Short};

/// Short messages that went another way before the node is calm.
const PROOF: u32 = 3;
/// The word of a line behind those that every message has.
const BODY: usize = packet::MESSAGE / 8;

/// What is true while the node is calm.
pub struct Calm {
    /// Of this channel, and of the link by its index.
    channel: Channel,
    link: u32,
    known: Known,
    /// Nothing can be missed by a look at the link alone.
    receives: bool,
    /// The channel's messages come in order, whatever their tags; the context in which they are received, too.
    ordered: bool,
    context: Option<Context>,
    /// Looks between two at anything else, less one: of a power of two.
    until_slow: u32,
}

impl Calm {
    /// For whom a receive asks: the bits of the tag that it ignores. `None`: somebody else.
    #[inline(always)]
    fn asked(&self, from: From, ignore: u64) -> Option<u64> {
        let ours = match from {
            From::Channel(channel) => self.channel == channel,
            From::Any(context) => self.context == Some(context),
        };
        (ours && self.receives).then_some(if self.ordered { u64::MAX } else { ignore })
    }
}

impl Node {
    /// Sends a message that goes in one packet. False, and nothing is done: it goes another way, if it does.
    #[inline(always)]
    pub fn send_calmly(&self, channel: Channel, tag: u64, headers: &[u8], body: &[u8]) -> bool {
        let Some(mut core) = self.core_if_calm() else { return false };
        let sent = send_on(&mut core, channel, tag, headers, body);
        core.release();
        sent
    }

    /// Receives a message of one line, if it comes within the looks that a wait begins with. `None`: [`Node::receive_other`].
    ///
    /// A caller that returns at once with what it has got here, instead of joining it with what another call says, never has it in memory.
    #[inline(always)]
    pub fn receive_calmly(
        &self,
        from: From,
        tag: u64,
        ignore: u64,
        span: Span,
        headers: Option<&mut Vec<u8>>,
    ) -> Option<Got> {
        let mut core = self.core_if_calm()?;
        let got = self.look_calmly(&mut core, from, tag, ignore, span, headers);
        core.release();
        got
    }

    #[inline(always)]
    fn look_calmly(
        &self,
        core: &mut Guard<'_>,
        from: From,
        tag: u64,
        ignore: u64,
        span: Span,
        headers: Option<&mut Vec<u8>>,
    ) -> Option<Got> {
        let others = core.others();
        let Core { calm: Some(calm), links, desk, rounds, pace, now, .. } = &mut **core else { return None };
        let (Some(ignore), Some(joined)) = (calm.asked(from, ignore), links.get_mut(calm.link)) else {
            return None;
        };
        let Joined { medium: Some(Medium::Lanes(lanes)), proto, back, silent, .. } = &mut **joined else {
            return None;
        };
        let mut looks = 0;
        let short = loop {
            if rounds.wrapping_add(2) & calm.until_slow == 0 || others.are_waiting() {
                return None; // there is more to do: the next look, of the other way, finds that out, too
            }
            *rounds = rounds.wrapping_add(1);
            match lanes.inward.glance() {
                Glance::Short(short) => break short,
                Glance::Flagged(_) | Glance::Other => return None,
                Glance::Nothing => {
                    looks += 1;
                    if looks >= pace.looks(self.spin()) {
                        return None;
                    }
                    std::hint::spin_loop();
                }
            }
        };
        let length = short.length().checked_sub(packet::MESSAGE)?;
        let words = [short.word(0), short.word(1)];
        let message = proto.expects_calmly(&calm.known, short.kind, words, length)?;
        let channel = calm.channel;
        let unfit = (message.tag ^ tag) & !ignore != 0;
        if unfit || proto.take_expected(&mut View::of(desk, back, channel.link), &message, *now).is_err() {
            return None;
        }
        let (landed, body) = match (message.headers, length) {
            // What most short messages are.
            (0, 8) => (span.fill(0, &short.word(BODY).to_le_bytes()), 8),
            _ => land(short, message.headers, span, headers),
        };
        lanes.inward.consume_short();
        *silent = 0;
        pace.paid();
        let woken = lanes.inward.take_wake();
        if woken | proto.owes_credit() | desk.stirred {
            after_receive(core, channel.link, woken);
        }
        let status = if landed < body { Status::Truncated } else { Status::Done };
        Some(Got { status, length: landed as u64, tag: message.tag, full: body as u64, channel: Some(channel) })
    }

    /// The same of one that is there already, of several lines or in the ring. `None`: [`Node::receive_anyhow`].
    #[inline(never)]
    pub fn receive_other(
        &self,
        from: From,
        tag: u64,
        ignore: u64,
        span: Span,
        mut headers: Option<&mut Vec<u8>>,
    ) -> Option<Got> {
        let mut core = self.core_if_calm()?;
        let calm = core.calm.as_ref()?;
        if core.rounds.wrapping_add(2) & calm.until_slow == 0 || core.others().are_waiting() {
            return None; // there is more to do
        }
        let (link, at, ignore) = (calm.channel.link, calm.link, calm.asked(from, ignore)?);
        let selector = Selector { from: Source::One(calm.known.scope()?), tag, ignore };
        if !matches!(core.links.get_mut(at)?.lanes()?.inward.glance(), Glance::Other | Glance::Flagged(_)) {
            return None;
        }
        self.take_expected(&mut core, link, &selector, span, &mut headers)
    }

    /// A short message has gone or come another way: the node may be calm from now on.
    #[inline(always)]
    pub(super) fn calm_down(&self, core: &mut Guard<'_>, channel: Channel) {
        core.restless += 1;
        if core.restless > PROOF {
            self.find_calm(core, channel);
        }
    }

    #[cold]
    #[inline(never)]
    fn find_calm(&self, core: &mut Guard<'_>, channel: Channel) {
        core.restless = 0;
        let free = core.only_link() == Some(channel.link) && !core.asleep;
        let until_slow = if core.links.count() > 1 { OTHERS } else { SLOW };
        let Some(link) = core.links.find(Number(channel.link.0)) else { return };
        let Ok((joined, desk)) = core.link(channel.link) else { return };
        let quiet = joined.is_quiet();
        let Joined { medium: Some(Medium::Lanes(lanes)), proto, .. } = joined else { return };
        let outward = Outward::new(&mut lanes.outward, &mut lanes.bulk.0, &lanes.copying);
        let Some(known) = proto.calm(channel.id, &outward) else { return };
        let place = known.scope().and_then(|scope| desk.table.calm(scope));
        let (ordered, context) = place.unwrap_or_default();
        let receives = free && quiet && place.is_some();
        let (context, until_slow) = (context.map(Context), until_slow - 1);
        core.calm = Some(Calm { channel, link, known, receives, ordered, context, until_slow });
        core.set_calm(true);
    }
}

/// Sends it on the channel of which that is known. False, and nothing is done, where it does not go so.
#[inline(always)]
fn send_on(core: &mut Guard<'_>, channel: Channel, tag: u64, headers: &[u8], body: &[u8]) -> bool {
    let Core { calm: Some(calm), links, .. } = &mut **core else { return false };
    if calm.channel != channel {
        return false;
    }
    let Some(joined) = links.get_mut(calm.link) else { return false };
    let length = headers.len() + body.len();
    let Some(going) = joined.proto.may_go(&calm.known, tag, headers.len(), length) else { return false };
    let Some(Medium::Lanes(lanes)) = &mut joined.medium else { return false };
    let (kind, words) = (Kind::Message as u8, going.words);
    let put = match length {
        0..=BEHIND_WORDS if headers.is_empty() => lanes.outward.try_put_line(kind, words, body),
        0..=BEHIND_WORDS => lanes.outward.try_put_line_of(kind, words, [headers, body]),
        _ => put_longer(lanes, words, headers, body),
    };
    let sent = matches!(put, Ok(Put::Published | Put::Wake));
    if sent {
        joined.proto.gone(going);
    }
    if !matches!(put, Ok(Put::Published | Put::Full | Put::TooLong)) {
        after_send(core, channel, sent);
    }
    sent
}

/// Copies headers and body out of the line: bytes that are placed of the body, and that there are.
#[inline(never)]
fn land(short: Short, pushed: usize, span: Span, headers: Option<&mut Vec<u8>>) -> (usize, usize) {
    let bytes = short.behind::<BODY>();
    let length = short.length() - packet::MESSAGE;
    let (pushed, body) = bytes[..length.min(bytes.len())].split_at(pushed.min(length));
    if let (Some(headers), false) = (headers, pushed.is_empty()) {
        headers.extend_from_slice(pushed);
    }
    (span.fill(0, body), body.len())
}

/// Puts what is no line.
#[inline(never)]
fn put_longer(lanes: &mut Lanes, words: [u64; 2], headers: &[u8], body: &[u8]) -> Result<Put, Broken> {
    let mut outward = Outward::new(&mut lanes.outward, &mut lanes.bulk.0, &lanes.copying);
    let words = words.map(u64::to_le_bytes);
    let put = outward.put(Kind::Message as u8, &[words.as_flattened(), headers, body]);
    match outward {
        Outward { broken: true, .. } => Err(Broken),
        Outward { wake: true, .. } => Ok(Put::Wake),
        _ if put => Ok(Put::Published),
        _ => Ok(Put::Full),
    }
}

/// What a send brings with it now and then: a peer that sleeps, or one that has broken the lane.
#[cold]
#[inline(never)]
fn after_send(core: &mut Guard<'_>, channel: Channel, sent: bool) {
    core.set_calm(false);
    let Ok((joined, desk)) = core.link(channel.link) else { return };
    if sent { joined.wake() } else { joined.lose(channel.link, desk, Reason::BROKEN, BROKEN_LANE) }
}

/// What a receive does.
#[cold]
#[inline(never)]
fn after_receive(core: &mut Guard<'_>, link: LinkId, woken: bool) {
    core.set_calm(false);
    if let Ok((joined, desk)) = core.link(link) {
        if woken {
            joined.wake();
        }
        if joined.proto.owes_credit() {
            joined.flush(link, desk);
        }
    }
    if core.desk.stirred {
        core.stir();
    }
}
