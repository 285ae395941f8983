//! The ends of many operations, for a program that posts receives and polls.
//!
//! One look takes the lock once and reports what has ended. A message for a posted receive takes the direct path (`posted`) from its link's
//! lane, and its end is reported in the same step. Any other packet is handled by a round of progress; its end is queued in the completion
//! group until a look reports it.

use super::error::Error;
use super::fast_receive::{self, Taken};
use super::link::LinkState;
use super::message_state::{LinkCallbacks, MessageState};
use super::node_state::{Core, Guard};
use super::operations::{Calls, Ended, GroupId, Teller};
use super::packets::RxPacket;
use super::progress::{SLOW, SWEEP};
use super::transport::Transport;
use super::{Bias, LinkId, Node};

/// Most messages taken in one look.
const TURN: usize = 32;

impl Node {
    /// Tells up to `most` of the next ends in a group, one after the other, where their records lie; where there is none, after one
    /// round of progress, unless another thread makes some. How many; and whether the next one has memory, or a message in place, that
    /// is the program's to keep: [`Node::test_group`] takes that. `tell` may not use the node.
    #[inline]
    pub fn take_ends(&self, group: GroupId, most: usize, tell: impl FnMut(&Ended<'_>)) -> Result<(usize, bool), Error> {
        self.take_ends_by(group, most, &mut Calls(tell), None)
    }

    /// Tells ends as [`Node::take_ends`] does, through a [`Teller`] that the compiler can inline. `bias` is the caller's, if it has one.
    #[inline(always)]
    pub fn take_ends_by(
        &self,
        group: GroupId,
        most: usize,
        teller: &mut impl Teller,
        bias: Option<&mut Bias>,
    ) -> Result<(usize, bool), Error> {
        let (mut core, quiet) = self.core_by(bias)?;
        let (told, more) = if is_of(quiet, group) {
            match core.next_busy() {
                Next::Nothing => (0, false),
                Next::Link(link) => take_from(&mut core, link, (group, most), teller),
                Next::Due => (0, true),
            }
        } else if core.progress.is_running() || !core.state.operations.nothing_has_ended(group)? {
            return core.state.operations.tell_ends(group, most, teller);
        } else {
            let looked = look_at_lanes(&mut core, (group, most), teller);
            if looked == (most.min(TURN), false) {
                core.release();
                return Ok((looked.0, false)); // not all links have been looked at
            }
            looked
        };
        if more {
            self.look_everywhere(&mut core);
            return if told > 0 { Ok((told, false)) } else { core.state.operations.tell_ends(group, most, teller) };
        }
        core.quiet = group;
        core.release();
        Ok((told, false))
    }

    /// Tells up to `most` ends of receives without a record ([`Node::post_bare`]) as their messages come, after one round of progress at most.
    /// Whether other ends lie in the group, or are not taken by `teller`: [`Node::take_ends_by`] tells them.
    #[inline(always)]
    pub fn take_bare_ends(
        &self,
        group: GroupId,
        most: usize,
        teller: &mut impl Teller,
        bias: Option<&mut Bias>,
    ) -> Result<bool, Error> {
        let (mut core, quiet) = self.core_by(bias)?;
        if !is_of(quiet, group) {
            return self.take_anyhow(core, (group, most), teller);
        }
        let (told, more) = match core.next_busy() {
            Next::Nothing => (0, false),
            Next::Link(link) => take_from(&mut core, link, (group, most), teller),
            Next::Due => (0, true),
        };
        if more {
            return self.look_for_others(core, told, (group, most), teller);
        }
        core.quiet = group;
        core.release();
        Ok(false)
    }

    /// [`Node::take_bare_ends`] of a node that is not [quiet](Core::quiet): all of its busy links are looked at.
    #[inline(never)]
    fn take_anyhow(
        &self,
        mut core: Guard<'_>,
        (group, most): (GroupId, usize),
        teller: &mut impl Teller,
    ) -> Result<bool, Error> {
        if !core.state.operations.nothing_has_ended(group)? {
            return core.state.operations.tell_ends(group, most, teller).map(|(_, others)| others);
        }
        if core.progress.is_running() {
            return Ok(false);
        }
        let (told, more) = look_at_lanes(&mut core, (group, most), teller);
        if more {
            return self.look_for_others(core, told, (group, most), teller);
        }
        if told < most.min(TURN) {
            core.quiet = group; // all links have been looked at
        }
        Ok(false)
    }

    /// Makes a round of progress, as other work is due, and tells what has ended in it unless something was told before. Whether there are other
    /// ends.
    #[inline(never)]
    fn look_for_others(
        &self,
        mut core: Guard<'_>,
        told: usize,
        (group, most): (GroupId, usize),
        teller: &mut impl Teller,
    ) -> Result<bool, Error> {
        self.look_everywhere(&mut core);
        if told > 0 {
            return Ok(false);
        }
        core.state.operations.tell_ends(group, most, teller).map(|(_, others)| others)
    }
}

/// Whether a node is quiet for this group.
#[inline(always)]
pub(super) fn is_of(quiet: GroupId, group: GroupId) -> bool {
    quiet.0 == group.0 && quiet.0 != GroupId::NONE.0
}

impl Core {
    /// Wakes the threads that wait, if all that has happened is that messages without a receive have come. Whether there was something else,
    /// for a [round](Node::round).
    #[inline(always)]
    fn must_stir(&mut self) -> bool {
        if self.state.queued && !self.state.stirred {
            self.stir();
        }
        self.state.queued = false;
        self.state.stirred
    }
}

/// What the next look is to do, of a node that is [quiet](Core::quiet).
pub(super) enum Next {
    /// No packet has begun on any busy link.
    Nothing,
    /// One has on this link.
    Link(LinkId),
    /// Something else is due, for a [round](Node::round) of progress.
    Due,
}

impl Core {
    #[inline(always)]
    pub(super) fn next_busy(&mut self) -> Next {
        let round = self.progress.rounds().wrapping_add(1);
        if round.is_multiple_of(SWEEP) && (round.is_multiple_of(SLOW) || self.links.has_inactive()) {
            return Next::Due;
        }
        self.progress.set_rounds(round);
        self.links.next_with_packet().map_or(Next::Nothing, Next::Link)
    }
}

/// Takes messages for posted receives from the lane of a link, of a node that is [quiet](Core::quiet), and tells their ends. How many; and
/// whether there is more to do than that.
#[inline(never)]
pub(super) fn take_from(
    core: &mut Core,
    link: LinkId,
    (group, most): (GroupId, usize),
    teller: &mut impl Teller,
) -> (usize, bool) {
    let now = core.progress.now();
    let Core { links, state, rx_packet, .. } = core;
    let (Some(link_state), Some(rx_packet)) = (links.get_mut(link), rx_packet) else { return (0, true) };
    let (told, more) = link_state.tell_messages(link, (state, rx_packet), (group, now), (most.min(TURN), true), teller);
    (told, more | core.must_stir())
}

/// Takes messages for posted receives from the lanes of all busy links, of a node that may not be [quiet](Core::quiet), and tells their ends.
/// How many; and whether there is more to do than that.
#[inline(never)]
pub(super) fn look_at_lanes(
    core: &mut Core,
    (group, most): (GroupId, usize),
    teller: &mut impl Teller,
) -> (usize, bool) {
    let Core { links, state, rx_packet, progress, .. } = core;
    let (round, now, most) = (progress.rounds().wrapping_add(1), progress.now(), most.min(TURN));
    let until = if links.has_inactive() { SWEEP } else { SLOW };
    let busy = progress.is_asleep() || state.is_left_something() || progress.has_tasks();
    let (Some(rx_packet), false) = (rx_packet, busy || round.is_multiple_of(until)) else { return (0, true) };
    progress.set_rounds(round);
    let (mut told, mut more) = (0, false);
    for _ in 0..links.active().len() {
        let Some(link) = links.whose_turn() else { break };
        links.pass_turn();
        let Some(link_state) = links.get_mut(link) else { return (told, true) };
        let looked = link_state.tell_messages(link, (state, rx_packet), (group, now), (most - told, false), teller);
        told += looked.0;
        more |= looked.1;
        if told >= most {
            break;
        }
    }
    (told, more | core.must_stir())
}

impl LinkState {
    /// Takes whole messages from the lane of this link, and tells the ends of their receives. How many; and whether there is more to do.
    #[inline(always)]
    fn tell_messages(
        &mut self,
        id: LinkId,
        (state, rx_packet): (&mut MessageState, &mut RxPacket),
        (group, now): (GroupId, u64),
        (most, quiet): (usize, bool),
        teller: &mut impl Teller,
    ) -> (usize, bool) {
        let Self { transport: Some(Transport::SharedMemory(shm)), proto, callback_state, silent, .. } = self else {
            return (0, true);
        };
        let mut callbacks = LinkCallbacks::of(state, callback_state, id);
        let (mut told, mut queued) = (0, 0);
        let more = loop {
            match fast_receive::tell(shm, proto, &mut callbacks, rx_packet, (group, now), teller) {
                Taken::Told => told += 1,
                Taken::Queued => queued += 1,
                Taken::Nothing => break false,
                Taken::Kept | Taken::Other => break true, // behind one whose end lies in its group come others
            }
            if told == most || queued == TURN || !shm.inward.has_next_packet() {
                break false;
            }
        };
        if told + queued > 0 {
            *silent = 0;
        }
        if shm.inward.take_wake() {
            shm.ring();
        }
        // Messages that were told have changed nothing but what the peer has to send.
        let quiet = if quiet && !more { !proto.owes_credit() } else { self.is_quiet() };
        (told, more || !quiet)
    }
}
