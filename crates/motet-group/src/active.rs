//! Active messages on a circuit: each runs the member's one function for them.

use crate::arrivals::{Arrivals, Target};
use crate::error::Error;
use motet::node::Node;
use std::sync::{Arc, PoisonError, RwLock};

/// What runs for each message: the sender's rank, the tag, the bytes.
pub(crate) type Function = dyn Fn(usize, u32, &[u8]) + Send + Sync;

/// The function, if there is one. Read-locked while it runs.
#[derive(Default)]
pub(crate) struct FunctionCell(RwLock<Option<Box<Function>>>);

/// The active messages of one circuit.
pub(crate) type Active = Arrivals<FunctionCell>;

impl FunctionCell {
    /// Sets the function, or ends that it runs; waits until the former one does not run any more.
    pub fn set(&self, function: Option<Box<Function>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = function;
    }

    /// Runs the function. Whether there is one.
    pub fn call(&self, from: usize, tag: u32, bytes: &[u8]) -> bool {
        let function = self.0.read().unwrap_or_else(PoisonError::into_inner);
        function.as_deref().map(|function| function(from, tag, bytes)).is_some()
    }
}

impl Target for FunctionCell {
    /// Also without a function: a message that is being sent when the function ends is taken, as a short one is.
    fn admits(&self, _headers: &[u8]) -> bool {
        true
    }

    fn run(&self, from: usize, tag: u32, _headers: &[u8], bytes: &[u8]) {
        self.call(from, tag, bytes);
    }
}

impl Active {
    /// Runs `function` for each message from now on.
    pub fn handle(self: &Arc<Self>, node: &Node, function: Box<Function>) -> Result<(), Error> {
        self.serve(node, |target| target.set(Some(function)))
    }

    /// Ends that; waits until the function does not run any more.
    pub fn unhandle(&self) {
        self.target.set(None);
    }
}
