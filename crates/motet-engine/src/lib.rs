//! The engine: one per process, under every adapter.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`stream`] | streams: upgrade, send, receive, close, waits, epoll sets, fork; what the sockets and omniORB adapters call |
//! | [`message`] | nodes, links, channels, messages and remote memory; what the libfabric provider and `motet.h` call |
//! | [`driver`], [`route`] | the traits that a transport implements, and the choice among drivers |
//! | [`reason`] | why a stream or a link is where it is, as numbers and as English |
//! | [`log`] | a line for each slow event, in a file that the user names |
//!
//! The engine knows no driver and no adapter by name: the crate that links it hands in the driver table.

#![forbid(unsafe_code)]

pub mod driver;
pub mod log;
pub mod message;
pub mod reason;
pub mod route;
pub mod stream;

pub use stream::engine::{Engine, Handle, Options};

/// CLOCK_MONOTONIC in nanoseconds: the clock of deadlines.
pub fn now() -> u64 {
    motet_sys::clock::nanoseconds()
}
