//! Remote service requests: `motet_rsr.h` over the crate `motet-rsr`.
//!
//! What it is: translation. What it is not: it knows no rule of requests.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`handles`] | attachments, endpoints, startpoints and buffers by handle |
//! | [`nodes`] | attach, poll, endpoints |
//! | [`startpoints`] | startpoints |
//! | [`data`] | buffers and readers |
//! | [`requests`] | requests, calls, replies |

mod data;
mod handles;
mod nodes;
mod requests;
mod startpoints;

use crate::messages::node_handles::in_handler;
use crate::messages::{Deadline, EAGAIN, EDEADLK, ETIMEDOUT, Errno};
use motet_rsr::Error;
use std::time::Duration;

const EBADMSG: Errno = 74;
const EBUSY: Errno = 16;

/// The errno of a wait that failed: EAGAIN instead of ETIMEDOUT with deadline 0.
#[cold]
fn errno_at(deadline: Deadline, error: Error) -> Errno {
    match error.errno() {
        ETIMEDOUT if deadline.is_now() => EAGAIN,
        errno => errno,
    }
}

/// The errno of an error.
#[cold]
fn errno(error: Error) -> Errno {
    error.errno()
}

/// The time that is left until a deadline.
fn limit(deadline: Deadline) -> Option<Duration> {
    let until = deadline.at()?;
    Some(Duration::from_nanos(until.saturating_sub(motet_engine::now())))
}

/// Refuses calls that wait from within a message handler.
fn may_wait() -> Result<(), Errno> {
    if in_handler() { Err(EDEADLK) } else { Ok(()) }
}
