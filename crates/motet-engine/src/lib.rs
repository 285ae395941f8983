//! The engine: one per process, under every adapter.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`stream`] | streams: upgrade, send, receive, close, waits, epoll sets, fork; what the sockets and omniORB adapters call |
//! | [`message`] | nodes, links, channels, messages and remote memory; what the libfabric provider and `motet.h` call |
//! | [`driver`], [`route`] | the traits that a transport implements, and the choice among drivers |
//! | [`reason`] | why a stream or a link is where it is, as numbers and as English |
//! | [`log`] | a line for each rare event of a stream, in a file that the user names |
//!
//! The engine knows no driver and no adapter by name: the crate that links it passes the driver table.

#![forbid(unsafe_code)]

pub mod driver;
pub mod log;
pub mod message;
pub mod reason;
pub mod route;
pub mod stream;

use std::sync::{Mutex, MutexGuard, PoisonError};
pub use stream::engine::Engine;
pub use stream::options::Options;

/// The handle of a stream: `(index + 1) << 32 | generation`; 0 is none.
pub type Handle = u64;

/// CLOCK_MONOTONIC in nanoseconds: the clock of deadlines.
pub fn now() -> u64 {
    motet_sys::clock::nanoseconds()
}

/// Locks a mutex. Ignores that another thread has panicked with it, which must not make the engine unusable.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
