//! Messages of a circuit that run code at their receiver, whole: the service, the channels to it, and the fetch of long bodies.
//!
//! What it is: what active messages and end points have in common. What it is not: it does not know what runs, which is a [`Target`].
//!
//! Each kind has a service and channels of its own beside those of the circuit's other messages, so that a receive of these costs nothing. A
//! member serves it once it has something that can run; one that sends to it earlier waits.

use crate::channels::Channels;
use crate::error::Error;
use motet::node::{
    Body, CompletionOptions, Message, Node, OperationMemory, Serve, Status, UnexpectedMessage, deadline_in,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The longest active message, bytes: the receiver allocates them.
pub const MAX_ACTIVE_BYTES: usize = 16 << 20;
/// Bits of a tag for the program's tag; the sender's rank is above them.
const TAG_BITS: u32 = 32;
/// The longest wait for the rest of a long message, ns. Its sender may have died.
const BODY_LIMIT_NS: u64 = 30_000_000_000;

/// What a message runs. Every argument is the word of a peer, except that the rank is one of the circuit's.
pub(crate) trait Target: Send + Sync {
    /// Whether a message with these headers can run now; one that cannot is not fetched.
    fn admits(&self, headers: &[u8]) -> bool;

    /// Runs for a message: the sender's rank, the tag, the headers, the bytes.
    fn run(&self, from: usize, tag: u32, headers: &[u8], bytes: &[u8]);
}

/// The messages of one circuit to one target.
pub(crate) struct Arrivals<T> {
    channels: Channels,
    size: usize,
    /// What they run.
    pub target: T,
    /// The node's number for the handler, once there is one.
    handler: Mutex<Option<Serve>>,
}

impl<T> std::fmt::Debug for Arrivals<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arrivals").field("channels", &self.channels).finish_non_exhaustive()
    }
}

impl<T: Target + 'static> Arrivals<T> {
    /// Not served yet.
    pub fn new(service: u64, size: usize, target: T) -> Self {
        Self { channels: Channels::new(service, size), size, target, handler: Mutex::new(None) }
    }

    fn handler(&self) -> MutexGuard<'_, Option<Serve>> {
        self.handler.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The channels to the other members.
    pub fn channels(&self) -> &Channels {
        &self.channels
    }

    /// Lets members send from now on. `prepare` runs before, unless the circuit has ended here.
    pub fn serve(self: &Arc<Self>, node: &Node, prepare: impl FnOnce(&T)) -> Result<(), Error> {
        let mut handler = self.handler();
        if self.channels.is_closed() {
            return Err(Error::MemberGone);
        }
        prepare(&self.target);
        if handler.is_some() {
            return Ok(());
        }
        let known: Weak<Self> = Arc::downgrade(self);
        let serve = node.handler(move |node: &Node, message: Message<'_>| {
            let Some(arrivals) = known.upgrade() else { return };
            match message.body {
                Body::Whole(bytes) => arrivals.run(message.tag, message.headers, bytes),
                Body::Long(body) => {
                    if let Some(held) = body.take() {
                        arrivals.fetch(node, message.tag, message.headers, held);
                    }
                }
            }
        })?;
        *handler = Some(serve);
        Ok(node.serve(self.channels.service(), serve)?)
    }

    /// Runs the target for a message.
    fn run(&self, tag: u64, headers: &[u8], bytes: &[u8]) {
        let from = (tag >> TAG_BITS) as usize;
        if from < self.size {
            self.target.run(from, tag as u32, headers, bytes);
        }
    }

    /// Receives a long message, then runs the target, in the thread that makes progress.
    fn fetch(self: &Arc<Self>, node: &Node, tag: u64, headers: &[u8], held: UnexpectedMessage) {
        let length = usize::try_from(held.length).unwrap_or(usize::MAX);
        if length > MAX_ACTIVE_BYTES {
            let _ = node.discard_body(held);
            return;
        }
        if !self.target.admits(headers) {
            // Received into no memory: its send succeeds, as that of a short one does. Discarded, it would fail.
            match node.accept_body(held, OperationMemory::Owned(Vec::new()), CompletionOptions::default()) {
                Ok(operation) => _ = node.detach(operation),
                Err((_, held)) => _ = node.discard_body(held),
            }
            return;
        }
        let memory = OperationMemory::Owned(vec![0; length]);
        let operation = match node.accept_body(held, memory, CompletionOptions::default()) {
            Ok(operation) => operation,
            Err((_, held)) => {
                let _ = node.discard_body(held);
                return;
            }
        };
        let (arrivals, headers) = (self.clone(), headers.to_vec());
        let _ = node.defer(move |node| match node.wait_for(operation, Some(deadline_in(BODY_LIMIT_NS))) {
            Ok(completion) if completion.status == Status::Done => {
                arrivals.run(tag, &headers, &completion.memory.unwrap_or_default());
            }
            Ok(_) => {} // the sender has died
            Err(_) => {
                let _ = node.detach(operation);
            }
        });
    }

    /// Ends all of it.
    pub fn close(&self, node: &Node) {
        let mut handler = self.handler();
        self.channels.close(node);
        if let Some(handler) = handler.take() {
            let _ = node.remove_handler(handler);
        }
    }
}

/// The tag on the wire: the program's, and the rank of the sender.
pub(crate) fn tag_of(from: usize, tag: u32) -> u64 {
    (from as u64) << TAG_BITS | u64::from(tag)
}
