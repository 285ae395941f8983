//! The short way of a short message for which a receive is posted: from the line where it lies to the receive's memory, and its end into the
//! group.
//!
//! What it is: a step of a [look](super::links::Joined::look). What it is not: it decides nothing. Whatever is not plainly such a message is
//! left as it is, to the protocol's [`Link::arrived`].

use super::Channel;
use super::desk::View;
use motet_proto::message::packet;
use motet_proto::message::posted::Matched;
use motet_proto::message::{Envelope, Link};
use motet_wire::lane::Short;

/// Words of a line that every message has.
const WORDS: usize = packet::MESSAGE / 8;

/// Takes the message of a line that is still to be consumed. False: it is another packet, and nothing has been done.
#[inline(always)]
pub fn take(short: &Short, proto: &mut Link, view: &mut View<'_>, now: u64) -> bool {
    let Some(length) = short.length().checked_sub(packet::MESSAGE) else { return false };
    let words = [short.word(0), short.word(1)];
    let Some(matched) = proto.match_short(view, short.kind, words, length, now) else { return false };
    let bytes = short.behind::<WORDS>();
    let (pushed, body) = bytes[..length.min(bytes.len())].split_at(matched.headers.min(length));
    let channel = Channel { link: view.link, id: matched.channel };
    if !view.desk.operations.receive_line(matched.receive, channel, matched.tag, [pushed, body]) {
        receive(view, channel, &matched, pushed, body);
    }
    view.desk.stirred = true;
    true
}

/// Any other receive than those of groups.
#[inline(never)]
fn receive(view: &mut View<'_>, channel: Channel, matched: &Matched, headers: &[u8], body: &[u8]) {
    let &Matched { receive, tag, .. } = matched;
    let envelope = Envelope { source: view.link.0, channel: channel.id, tag, length: body.len() as u64, headers };
    view.desk.operations.receive(receive, channel, &envelope, body);
}
