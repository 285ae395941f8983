//! A node with what the C program holds of it: claimed messages, memory and handlers.
//!
//! What it is: the tables, each with its lock. What it is not: handles of nodes are in [`super::node_handles`], handles of memory in
//! [`super::memory_handles`].

use motet_api::node::{Loan, LoanedMessage, Mapped};
use motet_engine::message::{Handler, Node};
use motet_proto::message::UnexpectedMessage;
use motet_proto::message::slab::Slab;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Memory that the program holds by a handle.
pub enum MemoryHandle {
    /// A block of the pool that has not been sent.
    Loan(Loan),
    /// A message in its sender's memory.
    LoanedMessage(LoanedMessage),
    /// A message that was received in place as a copy.
    Copy(Vec<u8>),
    /// A region of a peer's, mapped.
    Mapping(Mapped),
}

/// A node and the objects that the C program holds of it.
pub struct NodeEntry {
    /// The node, which memberships share.
    pub node: Arc<Node>,
    /// The only thread that may use it; 0: any.
    pub owner: u64,
    messages: Mutex<Slab<Option<UnexpectedMessage>>>,
    memory_handles: Mutex<Slab<Option<MemoryHandle>>>,
    handlers: Mutex<HashMap<u32, Weak<dyn Handler>>>,
}

impl NodeEntry {
    /// A node of which the program holds nothing yet.
    pub fn new(node: Node, owner: u64) -> Self {
        let (messages, memory_handles, handlers) = Default::default();
        Self { node: Arc::new(node), owner, messages, memory_handles, handlers }
    }

    /// Messages that were claimed or kept by a handler; `None`: the message is being accepted.
    pub fn messages(&self) -> MutexGuard<'_, Slab<Option<UnexpectedMessage>>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory that the program holds; `None`: the loan is being sent.
    pub fn memory_handles(&self) -> MutexGuard<'_, Slab<Option<MemoryHandle>>> {
        self.memory_handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handlers by number.
    pub fn handlers(&self) -> MutexGuard<'_, HashMap<u32, Weak<dyn Handler>>> {
        self.handlers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
