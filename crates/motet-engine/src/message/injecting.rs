//! The short way of a message of one line that is injected: its words go straight into the lane.
//!
//! What it is: what [`super::sending`] does with such a message. What it is not: it decides nothing. What does not plainly go so is left to
//! that, which finds out why.

use super::Channel;
use super::core::Core;
use super::links::Joined;
use super::medium::Medium;
use super::packets::BEHIND_WORDS;
use motet_proto::message::packet::Kind;
use motet_proto::message::pool::Number;
use motet_wire::lane::Put;

impl Core {
    /// Sends a message, of a node that is still or not. False, and nothing is done: it goes another way, or not at all.
    #[inline(always)]
    pub(super) fn inject_line(&mut self, channel: Channel, tag: u64, headers: &[u8], body: &[u8], still: bool) -> bool {
        let length = headers.len().saturating_add(body.len());
        let Self { links, lately, .. } = self;
        let Some(joined) = links.named(Number(channel.link.0)) else { return false };
        let Joined { medium: Some(Medium::Lanes(lanes)), proto, .. } = &mut **joined else { return false };
        if length > BEHIND_WORDS {
            return false;
        }
        let to = match lately.way(channel) {
            Some(to) if still => to,
            _ => {
                let Some(to) = proto.outgoing(channel.id) else { return false };
                lately.note_way(channel, to);
                to
            }
        };
        let Some(going) = proto.may_go_now(to, tag, headers.len(), length) else { return false };
        let (kind, words) = (Kind::Message as u8, going.words);
        let put = match headers.len() {
            0 => lanes.outward.try_put_line(kind, words, body),
            _ => lanes.outward.try_put_line_of(kind, words, [headers, body]),
        };
        if !matches!(put, Ok(Put::Published | Put::Wake)) {
            return false;
        }
        proto.gone(going);
        if put == Ok(Put::Wake) {
            joined.wake();
        }
        true
    }
}
