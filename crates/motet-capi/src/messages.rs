//! Nodes, links, channels and messages: the header's section "messages" over `motet::node`.
//!
//! What it is: translation. Handles become the engine's numbers, C structs its arguments, its errors negative errnos. What it is not: it knows
//! no rule of messages. The engine checks the numbers, except for nodes, claimed messages and memory that the program holds, whose tables
//! are here ([`node_handles`], [`memory_handles`]).
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`node_handles`] | nodes by handle: a thread enters and leaves one; closing waits for threads inside |
//! | [`node_entry`] | a node and what the program holds of it: messages, memory, handlers |
//! | [`nodes`], [`links`] | open, progress, sleep; links, services, channels, contexts |
//! | [`send`], [`receive`] | messages on channels |
//! | [`regions`], [`rma`] | memory that peers access by key; operations on theirs |
//! | [`loans`], [`memory_handles`] | messages without copies; memory that the program holds by handle |
//! | [`completions`] | completions of one operation, of any, of a queue |
//! | [`port`] | the calls that a communication library makes for every message |
//! | [`handlers`] | message handlers and deferred work |
//! | [`abi`] | the C structs |

pub(crate) mod abi;
mod completions;
mod handlers;
mod links;
mod loans;
mod memory_handles;
pub(crate) mod node_entry;
pub(crate) mod node_handles;
pub(crate) mod nodes;
mod port;
mod receive;
mod regions;
mod rma;
mod send;

use crate::{EPROTO, guard};
use motet_api::node::{Channel, Error, LinkId};
use motet_proto::message::ChannelId;

pub(crate) const EAGAIN: i32 = 11;
pub(crate) const EBADF: i32 = 9;
const EBUSY: i32 = 16;
pub(crate) const ECHILD: i32 = 10;
pub(crate) const EDEADLK: i32 = 35;
pub(crate) const EINVAL: i32 = 22;
const EMFILE: i32 = 24;
const ENOBUFS: i32 = 105;
const EOPNOTSUPP: i32 = 95;
const EPERM: i32 = 1;
pub(crate) const ETIMEDOUT: i32 = 110;

/// A positive errno.
pub(crate) type Errno = i32;

/// Runs a call and turns its error into a negative errno.
#[inline(always)]
pub(crate) fn call(f: impl FnOnce() -> Result<i32, Errno>) -> i32 {
    guard(EPROTO as i32, || f().unwrap_or_else(|errno| -errno))
}

/// The errno of an engine's error.
#[cold]
#[inline(never)]
fn errno(error: Error) -> Errno {
    error.errno()
}

/// The deadline of a call, as C passes it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deadline(pub i64);

impl Deadline {
    /// Whether the call must not wait (deadline 0).
    #[inline(always)]
    pub fn is_now(self) -> bool {
        self.0 <= 0
    }

    #[inline(always)]
    pub fn at(self) -> Option<u64> {
        (self.0 != i64::MAX).then_some(self.0.max(0) as u64)
    }

    /// The errno of a wait that failed: EAGAIN instead of ETIMEDOUT with deadline 0.
    #[inline(always)]
    fn errno(self, error: Error) -> Errno {
        match error.errno() {
            ETIMEDOUT if self.is_now() => EAGAIN,
            errno => errno,
        }
    }
}

/// The engine's number behind a handle.
#[inline(always)]
fn number(handle: u64) -> Result<u32, Errno> {
    match u32::try_from(handle) {
        Ok(0) | Err(_) => Err(EBADF),
        Ok(number) => Ok(number),
    }
}

#[inline(always)]
fn channel(handle: u64) -> Channel {
    Channel { link: LinkId((handle >> 32) as u32), id: ChannelId::from_number(handle as u32) }
}

#[inline(always)]
fn channel_handle(channel: Channel) -> u64 {
    u64::from(channel.link.0) << 32 | u64::from(channel.id.number())
}
