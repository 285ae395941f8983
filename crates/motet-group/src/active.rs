//! Active messages on a circuit: each runs a function at its receiver.
//!
//! They have a service and channels of their own beside those of the circuit's other messages, so that a receive of these costs nothing. A member
//! serves them once it has a function for them; one that sends to it earlier waits.

use crate::channels::Channels;
use crate::error::Error;
use motet::node::{
    Body, CompletionOptions, Message, Node, OperationMemory, Serve, Status, UnexpectedMessage, deadline_in,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

/// The longest active message, bytes: the receiver allocates them.
pub const MAX_ACTIVE_BYTES: usize = 16 << 20;
/// Bits of a tag for the program's tag; the sender's rank is above them.
const TAG_BITS: u32 = 32;
/// The longest wait for the rest of a long message, ns. Its sender may have died.
const BODY_LIMIT_NS: u64 = 30_000_000_000;

/// What runs for each message: the sender's rank, the tag, the bytes.
pub(crate) type Function = dyn Fn(usize, u32, &[u8]) + Send + Sync;

/// The active messages of one circuit.
pub(crate) struct Active {
    channels: Channels,
    size: usize,
    /// Read-locked while it runs.
    function: RwLock<Option<Box<Function>>>,
    /// The node's number for the handler, once there is one.
    handler: Mutex<Option<Serve>>,
}

impl std::fmt::Debug for Active {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Active").field("channels", &self.channels).finish_non_exhaustive()
    }
}

impl Active {
    /// No handler yet.
    pub fn new(service: u64, size: usize) -> Self {
        Self { channels: Channels::new(service, size), size, function: RwLock::new(None), handler: Mutex::new(None) }
    }

    fn handler(&self) -> MutexGuard<'_, Option<Serve>> {
        self.handler.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The channels to the other members.
    pub fn channels(&self) -> &Channels {
        &self.channels
    }

    /// Runs `function` for each message from now on.
    pub fn handle(self: &Arc<Self>, node: &Node, function: Box<Function>) -> Result<(), Error> {
        let mut handler = self.handler();
        if self.channels.is_closed() {
            return Err(Error::MemberGone);
        }
        *self.function.write().unwrap_or_else(PoisonError::into_inner) = Some(function);
        if handler.is_some() {
            return Ok(());
        }
        let known: Weak<Self> = Arc::downgrade(self);
        let serve = node.handler(move |node: &Node, message: Message<'_>| {
            let Some(active) = known.upgrade() else { return };
            match message.body {
                Body::Whole(bytes) => active.run(message.tag, bytes),
                Body::Long(body) => {
                    if let Some(held) = body.take() {
                        active.receive(node, message.tag, held);
                    }
                }
            }
        })?;
        *handler = Some(serve);
        Ok(node.serve(self.channels.service(), serve)?)
    }

    /// Ends that; waits until the function does not run any more.
    pub fn unhandle(&self) {
        *self.function.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Runs the function for a message.
    fn run(&self, tag: u64, bytes: &[u8]) {
        let from = (tag >> TAG_BITS) as usize;
        let function = self.function.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = function.as_deref().filter(|_| from < self.size) {
            function(from, tag as u32, bytes);
        }
    }

    /// Receives a long message, then runs the function, in the thread that makes progress.
    fn receive(self: &Arc<Self>, node: &Node, tag: u64, held: UnexpectedMessage) {
        let length = usize::try_from(held.length).unwrap_or(usize::MAX);
        if length > MAX_ACTIVE_BYTES {
            let _ = node.discard_body(held);
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
        let active = self.clone();
        let _ = node.defer(move |node| match node.wait_for(operation, Some(deadline_in(BODY_LIMIT_NS))) {
            Ok(completion) if completion.status == Status::Done => {
                active.run(tag, &completion.memory.unwrap_or_default());
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
