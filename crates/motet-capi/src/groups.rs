//! Sessions, groups and circuits: `motet_group.h` over the crate `motet-group`.
//!
//! What it is: translation. What it is not: it knows no rule of groups.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`handles`] | memberships, groups and circuits by handle, each with a pin of its node |
//! | [`membership`] | attach to a session; join, leave; views |
//! | [`circuits`] | open, send, receive, active messages |
//! | [`collectives`] | barrier, broadcast, gather, reduce |
//! | [`end_points`] | start points and end points |
//! | [`abi`] | the C structs |

mod abi;
mod circuits;
mod collectives;
mod end_points;
mod handles;
mod membership;

use crate::messages::{Deadline, EAGAIN, EINVAL, ETIMEDOUT, Errno};
use motet_group::Error;
use motet_session::client::ClientError;
use std::time::Duration;

const EACCES: Errno = 13;
const ECONNRESET: Errno = 104;
const EIO: Errno = 5;
const ENOTCONN: Errno = 107;
const EPROTO: Errno = 71;

/// The errno of an error of groups.
#[cold]
fn errno(error: Error) -> Errno {
    match error {
        Error::Session(ClientError::NotUp) => ENOTCONN,
        Error::Session(ClientError::Io(error)) => error.raw_os_error().unwrap_or(EIO),
        Error::Session(ClientError::Malformed(_)) => EPROTO,
        Error::Session(ClientError::Refused(..)) | Error::Refused(_) => EACCES,
        Error::Invalid(_) => EINVAL,
        Error::TimedOut => ETIMEDOUT,
        Error::MemberGone => ECONNRESET,
        Error::Node(error) => error.errno(),
    }
}

/// The errno of a wait that failed: EAGAIN instead of ETIMEDOUT with deadline 0.
fn errno_at(deadline: Deadline, error: Error) -> Errno {
    match error {
        Error::TimedOut if deadline.is_now() => EAGAIN,
        error => errno(error),
    }
}

/// The time that is left until a deadline.
fn limit(deadline: Deadline) -> Option<Duration> {
    let until = deadline.at()?;
    Some(Duration::from_nanos(until.saturating_sub(motet_engine::now())))
}
