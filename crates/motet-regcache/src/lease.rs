//! A registration in use.

use super::{Range, Register, Shared};
use std::sync::Arc;

/// A registration, until this is dropped: the driver does not deregister it before, whatever happens to the memory.
#[derive(Debug)]
pub struct Lease<R: Register> {
    shared: Arc<Shared<R>>,
    range: Range,
    token: R::Token,
    /// Where it is kept; otherwise it ends with this.
    at: Option<u32>,
}

impl<R: Register> Lease<R> {
    pub(super) fn new(shared: Arc<Shared<R>>, range: Range, token: R::Token, at: Option<u32>) -> Self {
        Self { shared, range, token, at }
    }

    /// What the driver said of it.
    pub fn token(&self) -> R::Token {
        self.token
    }

    /// What is registered: the range that was asked for and maybe more around it.
    pub fn range(&self) -> Range {
        self.range
    }

    /// Whether it is kept for others when this is dropped.
    pub fn is_kept(&self) -> bool {
        self.at.is_some()
    }
}

impl<R: Register> Drop for Lease<R> {
    fn drop(&mut self) {
        self.shared.leave(self.range, self.token, self.at);
    }
}
