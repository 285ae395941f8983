//! The engine: one per process, under every voice.
//!
//! A map for readers, in the order of a byte's journey:
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`stream`] | upgrade, send, receive, close: what adapters call |
//! | [`wait`], [`set`] | waiting on several streams at once (poll, epoll) |
//! | [`engine`] | the process's one engine: streams by handle, the node file |
//! | [`family`] | forked relatives: who of them has a stream |
//! | [`driver`], [`route`] | the trait below which transports live, and the choice among them |
//! | [`base`] | the kernel's TCP under a stream |
//! | [`peer`] | the process at the other end, for single copy |
//! | [`message`] | messages: nodes, links and channels over any medium |
//! | [`log`] | a line for each slow event, in a file that the user names |
//! | [`reason`] | why a stream is where it is, as numbers and as English |
//!
//! It knows no driver and no adapter by name: the leaf that links it hands in the driver table.
#![forbid(unsafe_code)]

pub mod base;
pub mod blocking;
pub mod driver;
pub mod engine;
pub mod family;
pub mod log;
pub mod message;
mod pace;
pub mod peer;
pub mod reason;
pub mod route;
pub mod set;
pub mod stream;
pub mod wait;

pub use engine::{Engine, Handle, Options};

/// CLOCK_MONOTONIC in nanoseconds: the clock of deadlines.
pub fn now() -> u64 {
    motet_sys::clock::nanoseconds()
}
