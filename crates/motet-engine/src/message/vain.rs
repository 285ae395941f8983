//! Looks in vain: a program that polls finds out that nothing has come without taking the node's lock.
//!
//! What it is: whoever has looked in vain, with the lock, writes down which lines the next packets will be in, and says that the node is
//! *still* ([`motet_sys::lock::Lock::is_still`]). Until anybody takes the lock again, whatever for, nothing of the node can change but those
//! lines, so a look at them is all that a look is. What it is not: it takes nothing and decides nothing. As soon as a packet begins, or one
//! of the other looks is due (at the clock, at the kernel, at links that are not busy), the look goes the usual way.

use super::Node;
use super::core::{Core, Guard};
use super::lately::Lately;
use super::operations::GroupId;
use super::progress::{SLOW, SWEEP};
use motet_proto::message::pool::Number;
use motet_wire::lane::{Consumer, Watch};
use std::sync::atomic::{AtomicU32, Ordering};

/// Most busy links of a node that is said to be still.
const MOST: usize = 8;
/// What was written down before the node was said to be still; nothing of it counts when it is not.
#[derive(Debug, Default)]
pub struct Vain {
    /// The group of which nothing has ended.
    group: AtomicU32,
    /// Looks left before another kind is due, and how many there were.
    left: AtomicU32,
    given: AtomicU32,
    /// The busy links, and where what comes next will be.
    links: AtomicU32,
    lines: [Watch; MOST],
}

impl Node {
    /// Whether it is plain, without the lock, that a look for ends of this group would be in vain. If so it counts as one.
    #[inline(always)]
    pub fn is_vain(&self, group: GroupId) -> bool {
        let Vain { group: known, left, links, lines, .. } = &self.vain;
        if !self.core.is_still() || self.is_inherited() || known.load(Ordering::Relaxed) != group.0 {
            return false;
        }
        let (looks, links) = (left.load(Ordering::Relaxed), links.load(Ordering::Relaxed) as usize);
        let others = || links > 1 && lines.iter().take(links).skip(1).any(Watch::is_there);
        if looks == 0 || lines[0].is_there() || others() {
            return false;
        }
        left.store(looks - 1, Ordering::Relaxed); // of several threads that look at a time one may not be counted
        true
    }

    /// Nothing of this group waits to be told, and nothing else can come to the node than packets of this link, the only busy one: as
    /// [`Node::be_still`], where that has been seen already. [`Guard::set_still`] is to follow if there are looks left until more is due.
    #[inline(always)]
    pub(super) fn may_be_still(&self, group: GroupId, lane: &Consumer, round: u32, until: u32) -> bool {
        let Vain { group: known, left, given, links, lines } = &self.vain;
        let looks = until - 1 - round % until;
        lines[0].follow(lane);
        for (place, value) in [(known, group.0), (left, looks), (given, looks), (links, 1)] {
            place.store(value, Ordering::Relaxed);
        }
        looks != 0
    }

    /// Looks left until another kind is due, of a node that was still.
    #[inline(always)]
    pub(super) fn looks_left(&self) -> u32 {
        self.vain.left.load(Ordering::Relaxed)
    }

    /// So many are left now, of a node with one busy link, on which messages were told: what comes next will be in another line.
    #[inline(always)]
    pub(super) fn look_on(&self, lane: &Consumer, looks: u32) {
        self.vain.lines[0].follow(lane);
        self.vain.left.store(looks, Ordering::Relaxed);
    }

    /// A look for ends of this group was in vain: the next ones need no lock, if nothing else can come than packets of the busy links.
    #[inline(never)]
    pub(super) fn be_still(&self, core: &mut Guard<'_>, group: GroupId) {
        let Core { hot, links, desk, waiters, tasks, .. } = &mut **core;
        let idle = desk.offers.is_empty() && desk.spent.is_empty() && desk.delivery.is_none() && !desk.stirred;
        if !idle || !waiters.is_empty() || !tasks.is_empty() || hot.is_empty() || hot.len() > MOST {
            return;
        }
        for (link, line) in hot.iter().zip(&self.vain.lines) {
            let Some(joined) = links.named(Number(link.0)).filter(|joined| joined.is_quiet()) else { return };
            let Some(lanes) = joined.lanes() else { return };
            line.follow(&lanes.inward);
        }
        let (busy, all) = (hot.len() as u32, links.count());
        let until = if all > busy { SWEEP } else { SLOW };
        let looks = until - 1 - core.rounds % until;
        if looks == 0 || core.driving || core.shut || core.asleep {
            return;
        }
        let Vain { group: known, left, given, links, .. } = &self.vain;
        for (place, value) in [(known, group.0), (left, looks), (given, looks), (links, busy)] {
            place.store(value, Ordering::Relaxed);
        }
        core.lately = Lately::default();
        core.set_still();
    }

    /// Counts the looks that nobody has taken the lock for. Not past a round in which more is due: others may have made rounds meanwhile.
    #[inline(always)]
    pub(super) fn count_vain(&self, core: &mut Core) {
        let Vain { left, given, .. } = &self.vain;
        let looks = given.load(Ordering::Relaxed);
        if looks != 0 {
            let looks = looks.saturating_sub(left.load(Ordering::Relaxed));
            given.store(0, Ordering::Relaxed);
            let until = if core.links.count() as usize > core.hot.len() { SWEEP } else { SLOW };
            core.rounds = core.rounds.wrapping_add(looks.min(until - 1 - core.rounds % until));
        }
    }
}
