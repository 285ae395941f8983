//! The short way of a receive in place: the announcement is looked for straight in the lane where it comes, and found in a segment that
//! is known, before anything is posted or recorded.
//!
//! It is taken as [`super::expect`] is, where nothing can be missed by it. Of other packets it takes those that say that a message of
//! ours has been taken, which come before the peer's next loan; everything else it leaves to the long way ([`super::loans`]).

use super::core::{Core, Guard};
use super::desk::View;
use super::expect::OTHERS;
use super::links::Joined;
use super::loans::Lent;
use super::medium::Medium;
use super::progress::SLOW;
use super::receiving::From;
use super::{Channel, Error, LinkId, Node};
use crate::reason::Reason;
use motet_proto::message::matching::Selector;
use motet_proto::message::packet::Kind;
use motet_proto::message::pool::Number;
use motet_wire::lane::bulk::IN_RING;

/// A message that is lent, with its tag and where it came.
pub type GotLent = (u64, Channel, Lent);

impl Node {
    /// The next message whose tag is `tag` but for the bits in `ignore`, if it is lent, has no headers and at most `most` bytes, and
    /// comes within the looks that a wait begins with. Otherwise nothing has happened, and a receive must be posted
    /// ([`Node::post_in_place`]).
    pub fn receive_lent(&self, from: From, tag: u64, ignore: u64, most: u64) -> Result<Option<GotLent>, Error> {
        let mut core = self.core()?;
        let selector = core.selector(from, tag, ignore)?;
        let got = self.expect_lent(&mut core, selector, most);
        if core.desk.stirred {
            core.stir();
        }
        Ok(got)
    }

    fn expect_lent(&self, core: &mut Guard<'_>, selector: Selector, most: u64) -> Option<GotLent> {
        let link = core.only_link()?;
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
        *asleep = false;
        let mut looks = pace.looks(self.spin());
        while looks > 0 {
            looks -= 1;
            *rounds = rounds.wrapping_add(1);
            if rounds.wrapping_add(1).is_multiple_of(until_slow) || others.are_waiting() {
                return None; // there is more to do
            }
            let Joined { medium: Some(Medium::Lanes(lanes)), proto, back, .. } = &mut **joined else { return None };
            let Some(packet) = lanes.inward.peek(&mut landing.lane).ok()? else {
                std::hint::spin_loop();
                continue;
            };
            if packet.flags & IN_RING != 0 || packet.more() > 0 {
                return None;
            }
            let bytes = packet.bytes(&landing.lane);
            if packet.kind == Kind::Done as u8 {
                let arrived = proto.arrived(&mut View::of(desk, back, link), packet.kind, bytes, *now);
                lanes.inward.consume(&packet);
                if let Err(broken) = arrived {
                    joined.lose(link, desk, Reason::BROKEN, broken);
                    return None;
                }
                if lanes.inward.take_wake() {
                    lanes.ring();
                }
                looks += 1; // something has come; and there are no more of these than loans of ours on their way
                continue;
            }
            let message = proto.expects_loan(&desk.table, &selector, packet.kind, bytes)?;
            if message.long.length > most {
                return None;
            }
            let returns = desk.operations.returns.clone()?;
            let part = back.segments.find_known(message.place, message.long.length as usize)?;
            let record = proto.take_expected_loan(&mut View::of(desk, back, link), &message, *now).ok()?;
            lanes.inward.consume(&packet);
            if lanes.inward.take_wake() {
                lanes.ring();
            }
            back.segments.counts.lent += 1;
            joined.silent = 0;
            pace.paid();
            let channel = Channel { link, id: message.channel };
            return Some((message.long.tag, channel, Lent::new(part, LinkId(link.0), record, returns)));
        }
        None
    }
}
