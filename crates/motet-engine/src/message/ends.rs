//! The ends of many operations, for a program that posts receives and polls.
//!
//! What it is: one look, with the lock taken once, that tells what has ended; and the shortest way of a short message for a posted receive,
//! whose end is told while it is taken out of its line, without lying in its group between. What it is not: it decides nothing. Whatever is
//! not plainly such a message goes the posted way (`posted`) or the general one, and its end through its group.

use super::core::{Core, Guard};
use super::desk::View;
use super::error::Error;
use super::lately::{Lately, Told};
use super::links::Joined;
use super::medium::Medium;
use super::operations::{Calls, Ended, GroupId, Teller};
use super::posted::{self, Taken};
use super::progress::{SLOW, SWEEP};
use super::{Node, Pin};
use motet_proto::message::Link;
use motet_proto::message::packet::{self, Kind};
use motet_proto::message::pool::Number;
use motet_wire::lane::Glance;

/// Most messages taken in one look.
const TURN: usize = 32;

/// What came of a look at the one busy link.
enum Lines {
    /// So many messages were told.
    Told(usize),
    /// Nothing has come, and that is all that there was to look at.
    Nothing,
    /// There is more to do than that; nothing was told.
    More,
}

impl Node {
    /// Tells up to `most` of the next ends in a group, one after the other, where their records lie; where there is none, after one
    /// round of progress, unless another thread makes some. How many; and whether the next one has memory, or a message in place, that
    /// is the program's to keep: [`Node::test_group`] takes that. `tell` may not use the node.
    #[inline]
    pub fn take_ends(&self, group: GroupId, most: usize, tell: impl FnMut(&Ended<'_>)) -> Result<(usize, bool), Error> {
        if self.is_vain(group) { Ok((0, false)) } else { self.look_for_ends(group, most, tell, None) }
    }

    /// The same where it is not [plain](Node::is_vain) that there is none, by the one who is favoured if that is so.
    #[inline(always)]
    pub fn look_for_ends(
        &self,
        group: GroupId,
        most: usize,
        tell: impl FnMut(&Ended<'_>),
        pin: Option<&mut Pin>,
    ) -> Result<(usize, bool), Error> {
        self.look_for_ends_of(group, most, &mut Calls(tell), pin)
    }

    /// The same for who would not have a call be made for each.
    #[inline(always)]
    pub fn look_for_ends_of(
        &self,
        group: GroupId,
        most: usize,
        teller: &mut impl Teller,
        pin: Option<&mut Pin>,
    ) -> Result<(usize, bool), Error> {
        let (mut core, still) = self.core_as_found(pin)?;
        if still {
            let told = self.tell_as_lately(&mut core, group, most.min(TURN), teller);
            if told > 0 {
                core.release();
                return Ok((told, false));
            }
        }
        self.look_otherwise(core, group, most, &mut |end| teller.tell(end))
    }

    /// The next messages of the link that had the last one, if the node is still since that was told, and they are for the same channel: all
    /// that there is to know but for the messages themselves, credit and receives is known from then. 0: more is to be looked at.
    #[inline(always)]
    fn tell_as_lately(&self, core: &mut Guard<'_>, group: GroupId, most: usize, teller: &mut impl Teller) -> usize {
        let Core { links, desk, now, lately: Lately { told: Some(last), .. }, .. } = &mut **core else { return 0 };
        let Some(joined) = links.named(Number(last.link.0)).filter(|_| last.group == group) else { return 0 };
        let Joined { medium: Some(Medium::Lanes(lanes)), proto, back, silent, .. } = &mut **joined else { return 0 };
        let looks = self.looks_left();
        if looks == 0 || most == 0 {
            return 0;
        }
        let mut view = View::of(desk, back, last.link);
        let (mut told, mut kept) = (0, false);
        while let Some((short, length)) = lanes.inward.glance_for(Kind::Message as u8, packet::MESSAGE) {
            let known = |_: &Link, _: &mut View<'_>, word| Some(last.incoming).filter(|known| known.is_for(word));
            match posted::tell((&short, length), proto, &mut view, (group, *now), known, teller) {
                Taken::Told(_) => told += 1,
                Taken::Kept => kept = true, // behind one whose end lies in its group come others
                Taken::Nothing => break,
            }
            lanes.inward.consume_short();
            if kept || !lanes.inward.goes_on() || told == most {
                break;
            }
        }
        if told == 0 {
            return 0;
        }
        *silent = 0;
        self.look_on(&lanes.inward, looks - 1);
        let woken = lanes.inward.take_wake();
        if woken | proto.owes_credit() | desk.stirred {
            self.after_ends(core, woken);
        } else {
            core.set_still();
        }
        told
    }

    /// What messages bring with them now and then: a peer that sleeps until there is room, or is to have credit, or something for others.
    #[cold]
    #[inline(never)]
    fn after_ends(&self, core: &mut Guard<'_>, woken: bool) {
        let Some(link) = core.only_link() else { return };
        let Ok((joined, _)) = core.link(link) else { return };
        if woken {
            joined.wake();
        }
        let quiet = joined.is_quiet();
        if core.desk.stirred {
            core.stir();
        }
        if !quiet {
            self.look_everywhere(core); // the peer may wait for what is owed, and nobody look here again for long
        }
    }

    /// The same where it is not as it was lately.
    #[inline(never)]
    fn look_otherwise(
        &self,
        mut core: Guard<'_>,
        group: GroupId,
        most: usize,
        mut tell: &mut dyn FnMut(&Ended<'_>),
    ) -> Result<(usize, bool), Error> {
        self.count_vain(&mut core);
        let mut came = true;
        if !core.driving && core.desk.operations.nothing_has_ended(group)? {
            match self.take_lines(&mut core, group, most.min(TURN), &mut Calls(&mut tell)) {
                Lines::Told(told) => {
                    core.release();
                    return Ok((told, false));
                }
                Lines::Nothing => {
                    core.release();
                    return Ok((0, false));
                }
                Lines::More => came = self.look_around(&mut core),
            }
        }
        let told = core.desk.operations.tell_ends(group, most, tell);
        if !came && told == Ok((0, false)) {
            self.be_still(&mut core, group);
        }
        core.release();
        told
    }

    /// A round where one link is busy and nobody but the caller waits for anything, as long as nothing comes on it but short messages for
    /// receives of this group.
    fn take_lines(&self, core: &mut Guard<'_>, group: GroupId, most: usize, teller: &mut impl Teller) -> Lines {
        let Some(link) = core.only_link() else { return Lines::More };
        let Core { links, desk, rounds, now, asleep, .. } = &mut **core;
        let round = rounds.wrapping_add(1);
        let until_slow = if links.count() > 1 { SWEEP } else { SLOW };
        let Some(joined) = links.named(Number(link.0)) else { return Lines::More };
        let idle = desk.offers.is_empty() && desk.spent.is_empty();
        if *asleep || !idle || round.is_multiple_of(until_slow) {
            return Lines::More;
        }
        let Joined { medium: Some(Medium::Lanes(lanes)), proto, back, silent, .. } = &mut **joined else {
            return Lines::More;
        };
        let mut view = View::of(desk, back, link);
        let (mut told, mut kept, mut incoming) = (0, false, None);
        while told < most && !kept {
            let short = match lanes.inward.glance() {
                Glance::Short(short) => short,
                Glance::Nothing if told == 0 => {
                    *silent = silent.saturating_add(1);
                    if lanes.inward.take_wake() {
                        lanes.ring();
                    }
                    if !joined.is_quiet() {
                        return Lines::More;
                    }
                    let Some(lanes) = joined.lanes() else { return Lines::More };
                    *rounds = round;
                    if desk.stirred {
                        core.stir();
                    } else if self.may_be_still(group, &lanes.inward, round, until_slow) {
                        core.lately = Lately::default();
                        core.set_still();
                    }
                    return Lines::Nothing;
                }
                Glance::Nothing | Glance::Other => break,
            };
            let look_up = |proto: &Link, view: &mut View<'_>, word| proto.incoming(view, word);
            let Some(length) = short.length().checked_sub(packet::MESSAGE) else { break };
            match posted::tell((&short, length), proto, &mut view, (group, *now), look_up, teller) {
                Taken::Told(channel) => (told, incoming) = (told + 1, Some(channel)),
                Taken::Kept => kept = true, // behind one whose end lies in its group come others
                Taken::Nothing => break,
            }
            lanes.inward.consume_short();
        }
        if told == 0 {
            return Lines::More;
        }
        *rounds = round;
        *silent = 0;
        if lanes.inward.take_wake() {
            lanes.ring();
        }
        let still = self.may_be_still(group, &lanes.inward, round, until_slow) && !kept;
        let quiet = joined.is_quiet();
        if desk.stirred {
            core.stir();
        }
        if !quiet {
            self.look_everywhere(core); // the peer may wait for what is owed, and nobody look here again for long
        } else if still {
            let told = incoming.map(|incoming| Told { group, link, incoming });
            core.lately = Lately::of(told);
            core.set_still();
        }
        Lines::Told(told)
    }
}
