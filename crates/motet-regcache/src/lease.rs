//! Leases: the use of a registration.

use super::{Range, Register, Shared};
use std::sync::Arc;

/// The use of a registration: the driver does not deregister it before this is dropped, whatever happens to the memory.
#[derive(Debug)]
pub struct Lease<R: Register> {
    shared: Arc<Shared<R>>,
    range: Range,
    token: R::Token,
    /// The entry of the cache; `None`: the registration is deregistered with this lease.
    at: Option<u32>,
}

impl<R: Register> Lease<R> {
    pub(super) fn new(shared: Arc<Shared<R>>, range: Range, token: R::Token, at: Option<u32>) -> Self {
        Self { shared, range, token, at }
    }

    /// The driver's handle of the registration.
    pub fn token(&self) -> R::Token {
        self.token
    }

    /// The registered range: the requested one, and perhaps more around it.
    pub fn range(&self) -> Range {
        self.range
    }

    /// Whether the cache keeps the registration when this lease is dropped.
    pub fn is_kept(&self) -> bool {
        self.at.is_some()
    }
}

impl<R: Register> Drop for Lease<R> {
    fn drop(&mut self) {
        self.shared.end_lease(self.range, self.token, self.at);
    }
}
