//! The short way of a receive: its message is looked for straight in the lane where it comes, before anything is posted.
//!
//! It is taken where nothing can be missed by it: the caller drives, one link is busy, and no other receive waits. What is found
//! there and is not the message stays where it is, and the long way ([`super::wait`], [`super::progress`]) finds it.

use super::core::{Core, Guard};
use super::desk::View;
use super::links::Joined;
use super::medium::{Lanes, Medium};
use super::operations::Got;
use super::progress::SLOW;
use super::{Channel, LinkId, Node, early};
use motet_proto::message::expected::Expected;
use motet_proto::message::matching::Selector;
use motet_proto::message::pool::Number;
use motet_proto::message::{Link, Status};
use motet_sys::span::Span;
use motet_wire::lane::bulk::IN_RING;
use motet_wire::lane::{Glance, Packet};
use std::ops::Range;

/// Looks between two rounds of the long way, where links are not busy.
pub(super) const OTHERS: u32 = 64;

impl Node {
    /// The message, if it comes within the looks that a wait begins with.
    pub(super) fn expect(
        &self,
        core: &mut Guard<'_>,
        selector: Selector,
        span: Span,
        headers: &mut Option<&mut Vec<u8>>,
    ) -> Option<Got> {
        let link = core.only_link()?;
        let others = core.others();
        let Core { links, desk, rounds, pace, asleep, .. } = &mut **core;
        let selector = desk.table.alone(selector)?;
        let until_slow = if links.count() > 1 { OTHERS } else { SLOW };
        let joined = links.named(Number(link.0))?;
        if !joined.is_quiet() {
            return None;
        }
        let Joined { medium: Some(Medium::Lanes(lanes)), .. } = &mut **joined else { return None };
        *asleep = false;
        for _ in 0..pace.looks(self.spin()) {
            *rounds = rounds.wrapping_add(1);
            if rounds.wrapping_add(1).is_multiple_of(until_slow) || others.are_waiting() {
                return None; // there is more to do
            }
            if matches!(lanes.inward.glance(), Glance::Nothing) {
                std::hint::spin_loop();
                continue;
            }
            let got = self.take_expected(core, link, &selector, span, headers)?;
            if let Some(channel) = got.channel {
                self.calm_down(core, channel);
            }
            return Some(got);
        }
        None
    }

    /// The message, if that is the next packet.
    #[inline(never)]
    pub(super) fn take_expected(
        &self,
        core: &mut Guard<'_>,
        link: LinkId,
        selector: &Selector,
        span: Span,
        headers: &mut Option<&mut Vec<u8>>,
    ) -> Option<Got> {
        let Core { links, desk, landing: Some(landing), pace, now, .. } = &mut **core else { return None };
        let joined = links.named(Number(link.0))?;
        let Joined { medium: Some(Medium::Lanes(lanes)), proto, back, .. } = &mut **joined else { return None };
        let packet = lanes.inward.peek(&mut landing.lane).ok()??;
        let (mut view, bytes) = (View::of(desk, back, link), packet.bytes(&landing.lane));
        let Taken { message, landed, body } = if packet.flags & IN_RING == 0 {
            if packet.more() > 0 {
                return None; // no honest peer puts such a one: the long way sees what follows it
            }
            let (front, rest) = bytes.split_first_chunk()?;
            let message = proto.expects(&view.desk.table, selector, packet.kind, front, rest.len())?;
            let (pushed, body) = rest.split_at_checked(message.headers)?;
            proto.take_expected(&mut view, &message, *now).ok()?;
            let landed = span.fill(0, body);
            if let (Some(headers), false) = (headers, pushed.is_empty()) {
                headers.extend_from_slice(pushed);
            }
            lanes.inward.consume(&packet);
            Taken { message, landed, body: body.len() }
        } else {
            take_from_ring(lanes, proto, &mut view, (&packet, bytes), selector, span, headers, *now)?
        };
        let channel = Some(Channel { link, id: message.channel });
        if lanes.inward.take_wake() {
            lanes.ring();
        }
        joined.silent = 0;
        if joined.proto.owes_credit() {
            joined.flush(link, desk);
        }
        pace.paid();
        let quiet = joined.is_quiet();
        if desk.stirred {
            core.stir();
        }
        if !quiet {
            core.set_calm(false);
        }
        let status = if landed < body { Status::Truncated } else { Status::Done };
        Some(Got { status, length: landed as u64, tag: message.tag, full: body as u64, channel })
    }
}

impl Core {
    /// The one link that is busy, where the caller may drive and nobody else waits for anything: the short ways look at it alone.
    #[inline(always)]
    pub(super) fn only_link(&self) -> Option<LinkId> {
        let &[link] = self.hot.as_slice() else { return None };
        let free = !self.driving && !self.shut && self.waiters.is_empty() && self.tasks.is_empty();
        free.then_some(link)
    }
}

/// A message that has been taken.
struct Taken {
    message: Expected,
    /// Bytes of its body that were placed, and that there were.
    landed: usize,
    body: usize,
}

/// The message, if it is that, of a packet in the ring. None: the long way.
#[inline(never)]
#[expect(
    clippy::too_many_arguments,
    reason = "the other half of a function, apart so that short messages do not pay for it"
)]
fn take_from_ring(
    lanes: &mut Lanes,
    proto: &mut Link,
    view: &mut View<'_>,
    (packet, bytes): (&Packet, &[u8]),
    selector: &Selector,
    span: Span,
    headers: &mut Option<&mut Vec<u8>>,
    now: u64,
) -> Option<Taken> {
    let (front, run) = lanes.bulk.1.behind(bytes).ok()?;
    let message = proto.expects(&view.desk.table, selector, packet.kind, front.try_into().ok()?, run.len())?;
    let body = run.behind(message.headers);
    let place = |part: Range<usize>| {
        let start = part.start.max(message.headers);
        let bytes = run.behind(start).front(part.end.saturating_sub(start));
        span.write(start - message.headers, bytes.len(), |into| bytes.read(into));
    };
    match packet.more() {
        0 => place(0..run.len()),
        _ if early::follow(&lanes.inward, packet, run, place) => {}
        _ => return None,
    }
    let landed = span.len().min(body.len());
    proto.take_expected(view, &message, now).ok()?;
    if let (Some(headers), 1..) = (headers, message.headers) {
        headers.resize(message.headers, 0);
        run.read(headers);
    }
    lanes.inward.consume(packet);
    lanes.bulk.1.release(run.len());
    lanes.inward.freed();
    Some(Taken { message, landed, body: body.len() })
}
