//! The short way of a message of one line that is injected: its words go straight into the lane.
//!
//! What it is: what [`super::sending`] does with such a message. What it is not: it decides nothing. What does not plainly go so is left to
//! that, which finds out why.

use super::core::Core;
use super::links::Joined;
use super::medium::Medium;
use super::packets::BEHIND_WORDS;
use super::sending::Outgoing;
use motet_proto::message::packet::Kind;
use motet_wire::lane::Put;

impl Core {
    /// Sends a message. False, and nothing is done: it goes another way, or not at all.
    #[inline(always)]
    pub(super) fn inject_line(&mut self, message: &Outgoing<'_>, body: &[u8]) -> bool {
        let &Outgoing { channel, tag, headers, .. } = message;
        let length = headers.len().saturating_add(body.len());
        let Ok((joined, _)) = self.link(channel.link) else { return false };
        let Joined { medium: Some(Medium::Lanes(lanes)), proto, .. } = joined else { return false };
        if length > BEHIND_WORDS {
            return false;
        }
        let Some(going) = proto.may_go_now(channel.id, tag, headers.len(), length) else { return false };
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
