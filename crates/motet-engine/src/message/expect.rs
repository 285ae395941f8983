//! The short way of a receive: its message is looked for straight in the lane where it comes, before anything is posted.
//!
//! It is taken where nothing can be missed by it: the caller drives, one link is busy, and no other receive waits. What is found
//! there and is not the message stays where it is, and the long way ([`super::wait`], [`super::progress`]) finds it.

use super::core::{Core, Guard};
use super::desk::View;
use super::links::Joined;
use super::medium::Medium;
use super::operations::Got;
use super::packets::chunk_of;
use super::progress::SLOW;
use super::{Channel, Node};
use motet_proto::message::Status;
use motet_proto::message::matching::Selector;
use motet_proto::message::pool::Number;
use motet_sys::span::Span;
use motet_wire::lane::bulk::{IN_RING, Run};
use motet_wire::lane::{Consumer, Packet};

/// Looks between two rounds of the long way, where links are not busy.
pub(super) const OTHERS: u32 = 64;
/// Looks for the next bytes of a message that its sender is copying.
const PATIENCE: u32 = 2000;

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
        let Core { links, desk, landing: Some(landing), rounds, pace, now, asleep, .. } = &mut **core else {
            return None;
        };
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
            let bytes = packet.bytes(&landing.lane);
            let (front, rest) = bytes.split_first_chunk()?;
            let run = if packet.flags & IN_RING == 0 { None } else { Some(lanes.bulk.1.behind(bytes).ok()?.1) };
            let length = run.map_or(rest.len(), |run| run.len());
            let message = proto.expects(&desk.table, &selector, packet.kind, front, length)?;
            let body = length - message.headers;
            let landed = match run {
                None => span.fill(0, &rest[message.headers..]),
                Some(run) if message.headers == 0 => land_from_ring(&lanes.inward, &packet, run, span)?,
                Some(run) if packet.more() == 0 => span.write(0, body, |into| {
                    run.read_from(message.headers, into);
                    into.len()
                }),
                Some(_) => return None,
            };
            proto.take_expected(&mut View::of(desk, back, link), &message, *now).ok()?;
            if let (Some(headers), 1..) = (headers, message.headers) {
                match run {
                    None => headers.extend_from_slice(&rest[..message.headers]),
                    Some(run) => {
                        headers.resize(message.headers, 0);
                        run.read(headers);
                    }
                }
            }
            lanes.inward.consume(&packet);
            if run.is_some() {
                lanes.bulk.1.release(length);
                lanes.inward.freed();
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
            let status = if landed < body { Status::Truncated } else { Status::Done };
            return Some(Got { status, length: landed as u64, tag: message.tag, full: body as u64, channel });
        }
        None
    }
}

/// Copies a body as its sender shows it, chunk by chunk. None: the sender does not go on, so the long way.
#[inline(never)]
fn land_from_ring(inward: &Consumer, packet: &Packet, run: Run, span: Span) -> Option<usize> {
    let chunk = chunk_of(run.len());
    if run.len().div_ceil(chunk) != 1 + usize::from(packet.more()) {
        return None;
    }
    for more in 0..=packet.more() {
        let mut looks = 0;
        while more > 0 && !inward.follows(more).ok()? {
            looks += 1;
            if looks > PATIENCE {
                return None;
            }
            std::hint::spin_loop();
        }
        let from = usize::from(more) * chunk;
        span.write(from, chunk, |into| run.read_from(from, into));
    }
    Some(span.len().min(run.len()))
}
