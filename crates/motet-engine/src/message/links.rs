//! The links of a node: all of them by number, those that every round polls, and those that a sleep has parked.

use super::LinkId;
use super::link::{IDLE_POLLS, LinkState};
use super::transport::Transport;
use motet_proto::message::slab::{Slab, SlabId};

/// Most links that a sleep on the node's descriptor remembers as active.
const MAX_PARKED: usize = 32;
/// Messages of one link that a waiting thread takes in a row before the next link has its turn.
const MAX_MESSAGES_PER_TURN: u32 = 16;

/// All links of a node.
#[derive(Default)]
pub struct Links {
    slots: Slab<Box<LinkState>>,
    /// Polled in every round. The peers of all others ring the doorbell, and [`Links::next_inactive`] finds one of them now and then.
    active: Vec<LinkId>,
    /// Active until a sleep on the node's descriptor: active again when it ends.
    parked: Vec<LinkId>,
    /// Where the search for an inactive link goes on.
    scan_next: u32,
    /// The active link that is polled next, and the number of messages it has delivered in a row.
    turn: (usize, u32),
    /// Links that are gone and still hold messages that wait for a receive.
    lingering: Vec<LinkId>,
}

impl Links {
    /// A link.
    #[inline(always)]
    pub fn get(&self, link: LinkId) -> Option<&LinkState> {
        self.slots.known(SlabId(link.0)).map(|link| &**link)
    }

    /// A link, to be changed.
    #[inline(always)]
    pub fn get_mut(&mut self, link: LinkId) -> Option<&mut LinkState> {
        self.slots.get_by_id(SlabId(link.0)).map(|link| &mut **link)
    }

    /// The index of a link: its row in the stats page.
    pub fn index(&self, link: LinkId) -> Option<u32> {
        self.slots.find(SlabId(link.0))
    }

    /// Adds a link, which is not active yet. `None`: there are as many as can be.
    pub fn insert(&mut self, link_state: LinkState) -> Option<LinkId> {
        self.slots.insert(Box::new(link_state)).map(|number| LinkId(number.0))
    }

    /// Takes a link out.
    pub fn remove(&mut self, link: LinkId) -> Option<Box<LinkState>> {
        let index = self.index(link)?;
        self.active.retain(|known| *known != link);
        self.slots.remove(index)
    }

    /// All links, active or not. The list is a copy: links may go while it is walked.
    pub fn all(&self) -> Vec<LinkId> {
        self.slots.indices().map(|index| LinkId(self.slots.number(index).0)).collect()
    }

    /// The state of each link.
    pub fn states(&self) -> impl Iterator<Item = &LinkState> {
        self.slots.indices().filter_map(|index| self.slots.get(index).map(|link| &**link))
    }

    /// The active links.
    #[inline(always)]
    pub fn active(&self) -> &[LinkId] {
        &self.active
    }

    /// Whether some links are not active.
    #[inline(always)]
    pub fn has_inactive(&self) -> bool {
        self.slots.count() as usize > self.active.len()
    }

    // ---- turns -------------------------------------------------------------------------------------------------------

    /// The active link that is polled next.
    #[inline(always)]
    pub fn whose_turn(&mut self) -> Option<LinkId> {
        if self.turn.0 >= self.active.len() {
            self.turn.0 = 0;
        }
        self.active.get(self.turn.0).copied()
    }

    /// Gives the turn to the next active link.
    #[inline(always)]
    pub fn pass_turn(&mut self) {
        self.turn = (self.turn.0 + 1, 0);
    }

    /// Leaves the turn with the link that had the awaited message, as it may well have the next one, but only [`MAX_MESSAGES_PER_TURN`] times.
    #[inline(always)]
    pub fn keep_turn(&mut self) {
        self.turn.1 += 1;
        if self.turn.1 >= MAX_MESSAGES_PER_TURN {
            self.pass_turn();
        }
    }

    /// The next active link in turn that has a packet, or that can only be polled by a system call. It has its turn.
    #[inline(always)]
    pub fn next_with_packet(&mut self) -> Option<LinkId> {
        let Self { slots, active, turn, .. } = self;
        let has_packet = |link: &LinkId| {
            slots.known(SlabId(link.0)).is_none_or(|link_state| match &link_state.transport {
                Some(Transport::SharedMemory(shm)) => shm.fifo_rx.has_packet(),
                _ => true,
            })
        };
        // Round robin: the search begins behind the link that had a packet last.
        let (behind, first) = active.split_at(turn.0.min(active.len()));
        let found = first.iter().position(has_packet).map(|at| behind.len() + at);
        let at = found.or_else(|| behind.iter().position(has_packet))?;
        *turn = (at + 1, 0);
        active.get(at).copied()
    }

    /// The next inactive link that has a transport.
    pub fn next_inactive(&mut self) -> Option<LinkId> {
        let index_bound = self.slots.index_bound();
        for _ in 0..index_bound {
            self.scan_next = if self.scan_next + 1 >= index_bound { 0 } else { self.scan_next + 1 };
            let link_state = self.slots.get(self.scan_next);
            if link_state.is_some_and(|link_state| !link_state.is_active && link_state.transport.is_some()) {
                return Some(LinkId(self.slots.number(self.scan_next).0));
            }
        }
        None
    }

    // ---- active and parked -------------------------------------------------------------------------------------------

    /// Has every round poll a link from now on: its peer need not ring.
    pub fn activate(&mut self, link: LinkId) {
        let Some(link_state) = self.slots.get_by_id(SlabId(link.0)).filter(|link_state| !link_state.is_active) else {
            return;
        };
        link_state.is_active = true;
        link_state.empty_polls = 0;
        if let Some(shm) = link_state.shm() {
            shm.fifo_rx.end_sleep();
        }
        self.active.push(link);
    }

    /// Makes inactive, for a moment, the active links that `which` picks; what stays is active.
    pub fn deactivate(&mut self, mut which: impl FnMut(&mut LinkState) -> bool) -> Vec<LinkId> {
        let Self { slots, active, .. } = self;
        let mut chosen = Vec::with_capacity(active.len());
        active.retain(|&link| {
            let Some(link_state) = slots.get_by_id(SlabId(link.0)) else { return false };
            if !which(link_state) {
                return true;
            }
            chosen.push(link);
            false
        });
        chosen
    }

    /// Makes a link active again that [`Links::deactivate`] has picked. How long it has been idle stays.
    pub fn reactivate(&mut self, link: LinkId) {
        let Some(link_state) = self.slots.get_by_id(SlabId(link.0)) else { return };
        if let Some(shm) = link_state.shm() {
            shm.fifo_rx.end_sleep();
        }
        link_state.is_active = true;
        self.active.push(link);
    }

    /// Remembers the active links before a sleep on the node's descriptor. Links whose polls cost a system call are left out, and all beyond
    /// [`MAX_PARKED`]. `anew`: forgets those of an earlier sleep, which a wait has ended.
    pub fn note_parked(&mut self, anew: bool) {
        let Self { slots, active, parked, .. } = self;
        if anew {
            parked.clear();
        }
        for link in active {
            let polled_in_memory =
                slots.get_by_id(SlabId(link.0)).is_some_and(|link_state| link_state.is_polled_in_memory());
            if parked.len() < MAX_PARKED && polled_in_memory && !parked.contains(link) {
                parked.push(*link);
            }
        }
    }

    /// Makes the parked links active again: the next round finds what has arrived on any of them, and their peers need not ring.
    pub fn resume_parked(&mut self) {
        for link in std::mem::take(&mut self.parked) {
            if self.get(link).is_some_and(|link_state| !link_state.is_active && link_state.is_shm()) {
                self.reactivate(link);
            }
        }
    }

    /// Counts `rounds` more empty polls of each active link. Whether more than half of them have been idle for long.
    pub fn count_empty_polls(&mut self, rounds: u32) -> bool {
        let Self { slots, active, .. } = self;
        let mut empty_polls = 0;
        for link in active.iter() {
            let Some(link_state) = slots.get_by_id(SlabId(link.0)) else {
                empty_polls += 1;
                continue;
            };
            link_state.count_empty_polls(rounds);
            empty_polls += usize::from(link_state.empty_polls > IDLE_POLLS);
        }
        empty_polls > active.len() / 2
    }

    // ---- lingering ---------------------------------------------------------------------------------------------------

    /// Keeps a link that is gone, for the messages that it still holds.
    pub fn linger(&mut self, link: LinkId) {
        if !self.lingering.contains(&link) {
            self.lingering.push(link);
        }
    }

    /// The links that were kept so.
    pub fn take_lingering(&mut self) -> Vec<LinkId> {
        std::mem::take(&mut self.lingering)
    }
}
