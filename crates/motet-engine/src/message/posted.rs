//! The short way of a short message for which a receive is posted: from the line where it lies to the receive's memory, and its end into the
//! group, or straight to whoever looks for the ends of that.
//!
//! What it is: a step of a [look](super::links::Joined::look). What it is not: it decides nothing. Whatever is not plainly such a message is
//! left as it is, to the protocol's [`Link::arrived`].

use super::Channel;
use super::desk::View;
use super::operations::{GroupId, Teller};
use motet_proto::message::packet;
use motet_proto::message::posted::{Incoming, Matched};
use motet_proto::message::{Envelope, Link};
use motet_wire::lane::Short;

/// Words of a line that every message has.
pub const WORDS: usize = packet::MESSAGE / 8;

/// Takes the message of a line that is still to be consumed. False: it is another packet, and nothing has been done.
#[inline(always)]
pub fn take(short: &Short, proto: &mut Link, view: &mut View<'_>, now: u64) -> bool {
    let Some(length) = short.length().checked_sub(packet::MESSAGE) else { return false };
    let words = [short.word(0), short.word(1)];
    let Some(incoming) = proto.incoming(view, words[0]) else { return false };
    let Some(matched) = proto.match_short(view, incoming, short.kind, words, length, now) else { return false };
    let bytes = short.behind::<WORDS>();
    let (pushed, body) = bytes[..length.min(bytes.len())].split_at(matched.headers.min(length));
    let channel = Channel { link: view.link, id: matched.channel };
    keep(view, channel, &matched, pushed, body);
    true
}

/// What became of a packet.
#[derive(Debug, Clone, Copy)]
pub enum Taken {
    /// It is another one than a message for the receive that was posted first, and nothing has been done.
    Nothing,
    /// It was that; its end lies with its operation.
    Kept,
    /// The same, and its end was told: it came on this channel.
    Told(Incoming),
}

/// Takes the message of a line that is still to be consumed, with so many bytes behind the packet's first words, and tells its end if the
/// receive is one of this group. What has ended in that group before must have been told. `incoming` says, by the message's first word, for
/// which channel it may be.
#[inline(always)]
pub fn tell(
    (short, length): (&Short, usize),
    proto: &mut Link,
    view: &mut View<'_>,
    (group, now): (GroupId, u64),
    incoming: impl FnOnce(&Link, &mut View<'_>, u64) -> Option<Incoming>,
    teller: &mut impl Teller,
) -> Taken {
    let words = [short.word(0), short.word(1)];
    let Some(incoming) = incoming(proto, view, words[0]) else { return Taken::Nothing };
    let Some(matched) = proto.match_short(view, incoming, short.kind, words, length, now) else {
        return Taken::Nothing;
    };
    let (words, bytes);
    let (pushed, body) = match matched.headers {
        // What most short messages are: a word, behind none or that of a library that has a header.
        headers @ (0 | 8) if length == headers + 8 => {
            words = [short.word(WORDS), short.word(WORDS + 1)].map(u64::to_le_bytes);
            let (pushed, body) = words.as_flattened().split_at(headers);
            (pushed, &body[..8])
        }
        headers => {
            bytes = short.behind::<WORDS>();
            bytes[..length.min(bytes.len())].split_at(headers.min(length))
        }
    };
    let channel = Channel { link: view.link, id: matched.channel };
    let operations = &mut view.desk.operations;
    if operations.tell_line(matched.receive, channel, matched.tag, [pushed, body], group, teller) {
        return Taken::Told(incoming);
    }
    keep(view, channel, &Matched { ..matched }, pushed, body);
    Taken::Kept
}

/// The end of its receive lies with its operation from now on.
#[inline(never)]
fn keep(view: &mut View<'_>, channel: Channel, matched: &Matched, pushed: &[u8], body: &[u8]) {
    if !view.desk.operations.receive_line(matched.receive, channel, matched.tag, [pushed, body]) {
        receive(view, channel, matched, pushed, body);
    }
    view.desk.stirred = true;
}

/// Any other receive than those of groups.
#[inline(never)]
fn receive(view: &mut View<'_>, channel: Channel, matched: &Matched, headers: &[u8], body: &[u8]) {
    let &Matched { receive, tag, .. } = matched;
    let envelope = Envelope { source: view.link.0, channel: channel.id, tag, length: body.len() as u64, headers };
    view.desk.operations.receive(receive, channel, &envelope, body);
}
