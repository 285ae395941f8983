//! Pauses: first packets while no receives are posted for them.
//!
//! A link that has as many requests in lines as it may gets no more of its first packets received. They are claimed and stay at the engine, which counts
//! them in the window of their link, so it is their sender that has to wait, and no other. First packets of other links are handled. The same way takes
//! first packets where a receive could not be posted because the node has no operations left, as a packet that is here needs none; and where all receives
//! have got packets whose senders have stopped within them.

use super::{AHEAD, HELD, MEMORY_POLL_NS, Receiver, Source, lock};
use crate::counters::count;
use crate::error::Error;
use crate::lines::Lines;
use crate::memory::{FIRST, first_buffer, give_back_first};
use crate::wire::ENDPOINT_BITS;
use motet::node::{
    Channel, Completion, CompletionOptions, Error as NodeError, LinkId, OperationId, OperationMemory, RecvFrom, Status,
    UnexpectedMessage, deadline_in,
};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;

/// What a pause keeps.
#[derive(Default)]
pub struct Pause {
    /// Receives of first packets that are not posted, with their buffers.
    unposted: Vec<(u64, Vec<u8>)>,
    /// First packets that are claimed. A channel is here as long as it has any.
    held: HashMap<Channel, Held>,
    /// All receives that were posted had packets that did not arrive whole. It lasts until all of them have ended: their senders could do so again.
    is_starved: bool,
}

impl Pause {
    /// Whether first packets are claimed: none is earlier in a posted receive, unless its sender has stopped within it.
    fn claims(&self) -> bool {
        self.is_starved || self.unposted.len() == AHEAD
    }
}

/// First packets of a channel, in order.
#[derive(Default)]
struct Held {
    packets: VecDeque<UnexpectedMessage>,
    /// The receive of the one before these, whose bytes come later.
    arriving: Option<OperationId>,
}

impl Receiver {
    /// Posts a receive of a first packet, now or when the node has room for it.
    #[inline]
    pub(super) fn post_first(&self, at: u64, memory: Vec<u8>) -> Result<(), Error> {
        let Source::Posted(from) = self.source else { return Ok(()) };
        if self.is_paused.load(Ordering::Relaxed) {
            self.keep_unposted(at, memory);
            return Ok(());
        }
        let options = CompletionOptions { cq: Some(self.cq), user_data: at, errors_only: false };
        let node = &self.shared.sender.node;
        match node.post(from, 0, ENDPOINT_BITS, OperationMemory::Owned(memory), options) {
            Ok(OperationId(posted)) => self.posted[at as usize].store(posted, Ordering::Relaxed),
            Err(NodeError::Full) => self.keep_unposted(at, first_buffer()),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Keeps a receive of first packets that is not posted now.
    fn keep_unposted(&self, at: u64, memory: Vec<u8>) {
        lock(&self.pause).unposted.push((at, memory));
        self.is_paused.store(true, Ordering::Relaxed);
    }

    /// Ends the pause, if there is no reason for it.
    pub(super) fn resume(&self, lines: &Lines) -> Result<(), Error> {
        let mut pause = lock(&self.pause);
        pause.is_starved &= pause.unposted.len() < AHEAD;
        let goes_on = pause.is_starved || lines.any_full() || !pause.held.is_empty();
        self.is_paused.store(goes_on, Ordering::Relaxed);
        if goes_on {
            return Ok(());
        }
        let unposted = std::mem::take(&mut pause.unposted);
        drop(pause);
        unposted.into_iter().try_for_each(|(at, memory)| self.post_first(at, memory))
    }

    /// Notes when no receive of first packets is left for a packet that is here: peers have begun packets, and have stopped within them.
    pub(super) fn look_at_receives(&self) -> Result<(), Error> {
        let Source::Posted(RecvFrom::Any(context)) = self.source else { return Ok(()) };
        if self.shared.sender.node.peek(RecvFrom::Any(context), 0, ENDPOINT_BITS)?.is_some() {
            let mut pause = lock(&self.pause);
            if !pause.claims() {
                pause.is_starved = true;
                self.is_paused.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// A packet was longer than any may be. Its sender is disconnected if that is how it keeps others from being received.
    pub(super) fn too_long(&self, channel: Option<Channel>) {
        count(&self.shared.sender.counters.malformed);
        let is_starved = lock(&self.pause).is_starved;
        if let Some(channel) = channel.filter(|_| is_starved) {
            self.disconnect(&mut self.lines(), channel.link);
        }
    }

    /// Takes a completion or a first packet, or waits a moment for a completion. The wait notices no first packet, so it is short.
    pub(super) fn step_in_pause(&self, deadline: Option<u64>) -> Result<bool, Error> {
        if self.complete_other()? || self.take_first()? {
            return Ok(true);
        }
        let soon = deadline_in(MEMORY_POLL_NS);
        match self.shared.sender.node.wait_cq(self.cq, Some(deadline.map_or(soon, |deadline| deadline.min(soon)))) {
            Ok(completion) => self.completed(completion).map(|()| true),
            Err(NodeError::TimedOut | NodeError::Interrupted) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes a first packet: handles it, or holds it if its link is full. False: there is none.
    #[cold]
    pub(super) fn take_first(&self) -> Result<bool, Error> {
        let context = match self.source {
            Source::Blocking(context) => context,
            Source::Posted(RecvFrom::Any(context)) if lock(&self.pause).claims() => context,
            _ => return Ok(false),
        };
        if let Some((channel, packet)) = self.next_held() {
            return Ok(self.take(channel, packet));
        }
        let from = RecvFrom::Any(context);
        let Some(packet) = self.shared.sender.node.claim(from, 0, ENDPOINT_BITS)? else { return Ok(false) };
        let channel = Channel { link: LinkId(packet.source), id: packet.channel };
        let lines = self.lines();
        let mut pause = lock(&self.pause);
        if lines.is_full(channel.link) || pause.held.contains_key(&channel) {
            pause.held.entry(channel).or_default().packets.push_back(packet);
            return Ok(true);
        }
        drop((lines, pause));
        Ok(self.take(channel, packet))
    }

    /// The next packet that is held, and whose link is not full any more.
    fn next_held(&self) -> Option<(Channel, UnexpectedMessage)> {
        let lines = self.lines();
        let held = &mut lock(&self.pause).held;
        let ready = |(channel, held): &(&Channel, &mut Held)| held.arriving.is_none() && !lines.is_full(channel.link);
        let (channel, of_channel) = held.iter_mut().find(ready)?;
        let (channel, packet) = (*channel, of_channel.packets.pop_front());
        if of_channel.packets.is_empty() {
            held.remove(&channel);
        }
        Some((channel, packet?))
    }

    /// Handles a packet that was claimed. One whose bytes are not here yet is received; the others of its channel wait for it. False: not now.
    fn take(&self, channel: Channel, packet: UnexpectedMessage) -> bool {
        let Some(body) = packet.body() else { return self.receive_held(channel, packet) };
        let (tag, length) = (packet.tag, body.len());
        let mut memory = first_buffer();
        let fits = memory.get_mut(..length).map(|memory| memory.copy_from_slice(body));
        let _ = self.shared.sender.node.discard_body(packet); // its bytes are here
        match fits {
            Some(()) => self.arrived(&mut memory, length, tag, channel),
            None => count(&self.shared.sender.counters.malformed),
        }
        give_back_first(memory);
        true
    }

    fn receive_held(&self, channel: Channel, packet: UnexpectedMessage) -> bool {
        let node = &self.shared.sender.node;
        if packet.length > FIRST as u64 {
            let _ = node.discard_body(packet);
            self.disconnect(&mut self.lines(), channel.link);
            return true;
        }
        let options = CompletionOptions { cq: Some(self.cq), user_data: HELD, errors_only: false };
        let mut pause = lock(&self.pause);
        match node.accept_body(packet, OperationMemory::Owned(first_buffer()), options) {
            Ok(operation) => {
                self.others.fetch_add(1, Ordering::Relaxed);
                pause.held.entry(channel).or_default().arriving = Some(operation);
                true
            }
            Err((NodeError::Full, packet)) => {
                pause.held.entry(channel).or_default().packets.push_front(packet);
                false
            }
            Err((_, packet)) => {
                let _ = node.discard_body(packet); // the node ends
                false
            }
        }
    }

    /// The bytes of a packet that was held are here, or will not come.
    pub(super) fn held_arrived(&self, completion: Completion) {
        let Completion { operation, status, length, tag, channel, memory, .. } = completion;
        let mut pause = lock(&self.pause);
        pause.held.values_mut().filter(|held| held.arriving == Some(operation)).for_each(|held| held.arriving = None);
        pause.held.retain(|_, held| held.arriving.is_some() || !held.packets.is_empty());
        drop(pause);
        let mut memory = memory.unwrap_or_default();
        if let (Status::Done, Some(channel)) = (status, channel) {
            self.arrived(&mut memory, length as usize, tag, channel);
        }
        give_back_first(memory);
    }

    /// Drops what is held, so that its window is free again.
    pub(super) fn drop_held(&self) {
        let held = std::mem::take(&mut lock(&self.pause).held);
        for packet in held.into_values().flat_map(|held| held.packets) {
            let _ = self.shared.sender.node.discard_body(packet);
        }
    }
}
