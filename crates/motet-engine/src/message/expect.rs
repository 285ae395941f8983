//! The short way of a receive: its message is looked for straight in the lane where it comes, before anything is posted.
//!
//! It is taken where nothing can be missed by it: the caller drives, one link is busy, and no other receive waits. What is found
//! there and is not the message stays where it is, and the long way ([`super::wait`], [`super::progress`]) finds it.

use super::core::{Core, Guard};
use super::desk::View;
use super::links::Joined;
use super::medium::Medium;
use super::operations::Got;
use super::packets::IN_RING;
use super::progress::SLOW;
use super::{Channel, Node};
use motet_proto::message::Status;
use motet_proto::message::matching::Selector;
use motet_proto::message::pool::Number;
use motet_sys::span::Span;

/// Looks between two rounds of the long way, where links are not busy.
const OTHERS: u32 = 64;

impl Node {
    /// The message, if it comes within the looks that a wait begins with.
    #[inline(always)]
    pub(super) fn expect(
        &self,
        core: &mut Guard<'_>,
        selector: Selector,
        span: Span,
        headers: &mut Option<&mut Vec<u8>>,
    ) -> Option<Got> {
        let &[link] = core.hot.as_slice() else { return None };
        if core.driving || core.shut || !core.waiters.is_empty() || !core.tasks.is_empty() {
            return None;
        }
        let others = core.others();
        let Core { links, desk, landing: Some(landing), rounds, pace, now, asleep, .. } = &mut **core else { return None };
        let selector = desk.table.alone(selector)?;
        let until_slow = if links.count() > 1 { OTHERS } else { SLOW };
        let joined = links.named(Number(link.0))?;
        if !joined.is_quiet() {
            return None;
        }
        let Joined { medium: Some(Medium::Lanes(lanes)), proto, back, .. } = &mut **joined else { return None };
        *asleep = false;
        for _ in 0..pace.looks(self.spin) {
            *rounds = rounds.wrapping_add(1);
            if rounds.wrapping_add(1).is_multiple_of(until_slow) || others.are_waiting() {
                return None; // there is more to do
            }
            let Some(packet) = lanes.inward.peek(&mut landing.lane).ok()? else {
                std::hint::spin_loop();
                continue;
            };
            if packet.flags & IN_RING != 0 {
                return None;
            }
            let (mut view, bytes) = (View::of(desk, back, link), packet.bytes(&landing.lane));
            let message = proto.expected(&mut view, &selector, packet.kind, bytes, *now)?;
            lanes.inward.consume(&packet);
            let (tag, length, full) = (message.tag, span.fill(0, message.body) as u64, message.body.len() as u64);
            if let (Some(headers), false) = (headers, message.headers.is_empty()) {
                headers.extend_from_slice(message.headers);
            }
            let channel = Some(Channel { link, id: message.channel });
            if lanes.inward.take_wake() {
                lanes.ring();
            }
            joined.silent = 0;
            if joined.proto.owes_credit() {
                joined.flush(link, desk);
            }
            pace.paid();
            if desk.stirred {
                core.stir();
            }
            let status = if length < full { Status::Truncated } else { Status::Done };
            return Some(Got { status, length, tag, full, channel });
        }
        None
    }
}
