//! Nodes, links, channels and messages: the header's section "messages" over `motet::node`.
//!
//! What it is: translation. Handles become the engine's numbers, C structs its arguments, its errors negative errnos. What it is not:
//! it knows no rule of messages; whether a number means something is the engine's to say, but for nodes, claimed messages and memory in
//! the program's hands, whose tables are here ([`node_handles`], [`memory_handles`]).
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`node_handles`] | nodes by handle: entering one, and leaving it before it may be closed |
//! | [`nodes`], [`links`] | joining, progress, sleep; meeting others, services, contexts |
//! | [`send`], [`receive`] | channels and what goes over them |
//! | [`regions`], [`rma`] | memory that others reach by key; operations on theirs |
//! | [`loans`], [`memory_handles`] | messages that are read in place; memory that the program holds by handle |
//! | [`completions`] | ends: one, any, groups |
//! | [`port`] | the calls of every message of a library that posts receives and polls |
//! | [`handlers`] | functions that get messages, and work put off |
//! | [`abi`] | the structs |

mod abi;
mod completions;
mod handlers;
mod links;
mod loans;
mod memory_handles;
mod node_handles;
mod nodes;
mod port;
mod receive;
mod regions;
mod rma;
mod send;

use crate::{EPROTO, guard};
use motet_api::node::{Channel, Error, LinkId};
use motet_proto::message::ChannelId;

const EAGAIN: i32 = 11;
const EBADF: i32 = 9;
const EBUSY: i32 = 16;
const ECHILD: i32 = 10;
const EDEADLK: i32 = 35;
const EINVAL: i32 = 22;
const EMFILE: i32 = 24;
const ENOBUFS: i32 = 105;
const EOPNOTSUPP: i32 = 95;
const EPERM: i32 = 1;
const ETIMEDOUT: i32 = 110;

/// What a call fails with: an errno.
type Errno = i32;

/// A call: what it returns, or a negative errno.
#[inline(always)]
fn call(f: impl FnOnce() -> Result<i32, Errno>) -> i32 {
    guard(EPROTO as i32, || f().unwrap_or_else(|errno| -errno))
}

/// An error of the engine's.
#[cold]
#[inline(never)]
fn errno(error: Error) -> Errno {
    error.errno()
}

/// When a wait ends, for the engine.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Deadline(i64);

impl Deadline {
    /// Whether the caller would rather fail than wait.
    #[inline(always)]
    fn is_now(self) -> bool {
        self.0 <= 0
    }

    #[inline(always)]
    fn at(self) -> Option<u64> {
        (self.0 != i64::MAX).then_some(self.0.max(0) as u64)
    }

    /// What a wait has failed with.
    #[inline(always)]
    fn errno(self, error: Error) -> Errno {
        match error.errno() {
            ETIMEDOUT if self.is_now() => EAGAIN,
            errno => errno,
        }
    }
}

/// A number of the engine's.
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
