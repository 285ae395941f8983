//! Channels that clients have opened: which are watched, and which are closed because their clients begin nothing on them.
//!
//! A client begins a session, or subscribes to notices, by the first request on a channel. That channel is watched from then on. All others hold nothing but
//! their place in the engine, which is bounded by the limits of the node, and that for some seconds.

use super::Shared;
use crate::protocol::{NEVER, SERVICE};
use motet::node::{Channel, CompletionOptions, OperationMemory, RecvFrom};
use std::time::Duration;

/// How often channels are looked at on which nothing has begun. One that was there at the look before is closed: a client waits for its session for 3 s.
const LOOK: Duration = Duration::from_secs(5);

impl Shared {
    /// Watches a channel for its loss. The first request of a client calls this. False: it is lost already.
    ///
    /// Only this channel is looked at, however many others clients have opened: the thread has the turn.
    pub(super) fn watch(&self, channel: Channel) -> bool {
        let Some(user_data) = self.sessions.watch(channel) else { return true };
        let options = CompletionOptions { cq: Some(self.cq), user_data, errors_only: false };
        let memory = OperationMemory::Owned(Vec::new());
        let watched = self.node.post(RecvFrom::Channel(channel), NEVER, 0, memory, options).is_ok();
        if !watched {
            self.lost(user_data);
        }
        watched
    }

    /// Accepts channels, and ends the links of those on which nothing begins. Returns when the server ends.
    ///
    /// It looks from time to time: a thread that waited for channels would run the node's progress in turns with the one that waits for requests, which costs two
    /// switches of threads for each request.
    pub(super) fn look_at_arrivals(&self) {
        let mut earlier = Vec::new();
        while self.sessions.pause(LOOK) {
            for channel in earlier.drain(..).filter(|channel| !self.sessions.uses(*channel)) {
                self.refuse(channel);
            }
            while let Ok(channel) = self.node.accept(SERVICE, Some(Duration::ZERO)) {
                earlier.push(channel);
            }
        }
    }
}
