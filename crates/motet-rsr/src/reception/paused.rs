//! Pauses: first packets while no receives are posted for them.
//!
//! A link that has as many requests in lines as it may gets no more of its first packets received. They are claimed and stay at the engine, which counts
//! them in the window of their link, so it is their sender that has to wait, and no other. First packets of other links are handled. The same way takes
//! first packets where a receive could not be posted because the node has no operations left, as a packet that is here needs none.

use super::{AHEAD, MEMORY_POLL_NS, Receiver, Source, lock};
use crate::counters::count;
use crate::error::Error;
use crate::lines::Lines;
use crate::memory::{first_buffer, give_back_first};
use crate::wire::ENDPOINT_BITS;
use motet::node::{
    Channel, CompletionOptions, Error as NodeError, LinkId, OperationId, OperationMemory, RecvFrom, UnexpectedMessage,
    deadline_in,
};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;

/// What a pause keeps.
#[derive(Default)]
pub struct Pause {
    /// Receives of first packets that are not posted, with their buffers.
    unposted: Vec<(u64, Vec<u8>)>,
    /// First packets that are claimed, in order. A channel is here as long as it has any.
    held: HashMap<Channel, VecDeque<UnexpectedMessage>>,
}

impl Pause {
    /// Whether first packets are claimed: none is earlier in a posted receive.
    fn claims(&self) -> bool {
        self.unposted.len() == AHEAD
    }
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
        let goes_on = lines.any_full() || !pause.held.is_empty();
        self.is_paused.store(goes_on, Ordering::Relaxed);
        if goes_on {
            return Ok(());
        }
        let unposted = std::mem::take(&mut pause.unposted);
        drop(pause);
        unposted.into_iter().try_for_each(|(at, memory)| self.post_first(at, memory))
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
            self.take(channel, packet);
            return Ok(true);
        }
        let from = RecvFrom::Any(context);
        let Some(packet) = self.shared.sender.node.claim(from, 0, ENDPOINT_BITS)? else { return Ok(false) };
        let channel = Channel { link: LinkId(packet.source), id: packet.channel };
        let lines = self.lines();
        let mut pause = lock(&self.pause);
        if lines.is_full(channel.link) || pause.held.contains_key(&channel) {
            pause.held.entry(channel).or_default().push_back(packet);
            return Ok(true);
        }
        drop((lines, pause));
        self.take(channel, packet);
        Ok(true)
    }

    /// The next packet that is held, and whose link is not full any more.
    fn next_held(&self) -> Option<(Channel, UnexpectedMessage)> {
        let lines = self.lines();
        let held = &mut lock(&self.pause).held;
        let (channel, of_channel) = held.iter_mut().find(|(channel, _)| !lines.is_full(channel.link))?;
        let (channel, packet) = (*channel, of_channel.pop_front());
        if of_channel.is_empty() {
            held.remove(&channel);
        }
        Some((channel, packet?))
    }

    /// Handles a packet that was claimed. Its bytes are here, as the context takes whole messages only.
    fn take(&self, channel: Channel, packet: UnexpectedMessage) {
        let body = packet.body().unwrap_or_default();
        let (tag, length) = (packet.tag, body.len());
        let mut memory = first_buffer();
        let fits = memory.get_mut(..length).map(|memory| memory.copy_from_slice(body));
        let _ = self.shared.sender.node.discard_body(packet); // its bytes are here
        match fits {
            Some(()) => self.arrived(&mut memory, length, tag, channel),
            None => count(&self.shared.sender.counters.malformed),
        }
        give_back_first(memory);
    }

    /// Drops what is held, so that its window is free again.
    pub(super) fn drop_held(&self) {
        let held = std::mem::take(&mut lock(&self.pause).held);
        for packet in held.into_values().flatten() {
            let _ = self.shared.sender.node.discard_body(packet);
        }
    }
}
