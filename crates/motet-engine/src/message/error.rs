//! What a call on a node may fail with.

use crate::reason::Reason;
use motet_proto::message::{Rejected, Status};

/// Why a call did nothing, or an operation did not end as asked. Grouped by what is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// Not now: no room, no credit, nothing there. Try again after progress.
    WouldBlock,
    /// The deadline has passed.
    TimedOut,
    /// The operation: it was cancelled.
    Cancelled,
    /// The operation: the buffer was too short and is full; the rest of the message is gone.
    Truncated,
    /// The operation: headers are too long, or a message cannot go in this mode at all.
    TooLong,
    /// The operation: no such region, or it does not allow this.
    AccessDenied,
    /// The operation: bytes that do not lie inside the region.
    OutOfBounds,
    /// The operation: an atomic that makes no sense, memory that is not where it can be done, or a region that is no file's.
    InvalidAtomic,
    /// The file: it cannot be a region, or cannot be brought to its disk; and why.
    File(i32),
    /// The wait was interrupted ([`super::Node::signal_cq`]).
    Interrupted,
    /// The channel: the other side takes or sends no more on it, or its messages go elsewhere (to a handler).
    Closed,
    /// No such link, channel, context, completion queue, handler or operation: never, or not any more.
    Unknown,
    /// The channel: the peer serves no such service.
    Refused,
    /// The link: it is gone, and why.
    Lost(Reason),
    /// The node: no path to a peer, or a name or address that cannot be had; and why.
    Unreachable(Reason),
    /// The node: too many operations, channels or groups, or its pool is used up.
    Full,
    /// The node: it was made by the process that this one was forked from, or the system refuses what it needs.
    NoNode(i32),
}

impl Error {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::WouldBlock | Self::TimedOut | Self::Full)
    }

    /// As a system error number, positive.
    pub fn errno(&self) -> i32 {
        match self {
            Self::WouldBlock => 11,                                        // EAGAIN
            Self::TimedOut => 110,                                         // ETIMEDOUT
            Self::Cancelled => 125,                                        // ECANCELED
            Self::Truncated => 90,                                         // EMSGSIZE
            Self::TooLong => 7,                                            // E2BIG
            Self::AccessDenied => 13,                                      // EACCES
            Self::OutOfBounds => 34,                                       // ERANGE
            Self::InvalidAtomic => 22,                                     // EINVAL
            Self::Interrupted => 4,                                        // EINTR
            Self::Unknown => 9,                                            // EBADF
            Self::Closed => 32,                                            // EPIPE
            Self::Refused => 111,                                          // ECONNREFUSED
            Self::Lost(Reason::BROKEN | Reason::UNKNOWN_REGION_KEY) => 71, // EPROTO
            Self::Lost(_) => 104,                                          // ECONNRESET
            Self::Unreachable(Reason::NAME_TAKEN) => 98,                   // EADDRINUSE
            Self::Unreachable(Reason::BAD_NAME) => 22,                     // EINVAL
            Self::Unreachable(Reason::NO_SUCH_NODE) => 111,                // ECONNREFUSED
            Self::Unreachable(Reason::OTHER_USER | Reason::NOBODY | Reason::NOT_PERMITTED | Reason::BAD_SECRET) => 13, // EACCES
            Self::Unreachable(_) => 113, // EHOSTUNREACH
            Self::Full => 105,           // ENOBUFS
            Self::NoNode(errno) | Self::File(errno) => *errno,
        }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match self {
            Self::WouldBlock => "not now",
            Self::TimedOut => "the deadline has passed",
            Self::Cancelled => "cancelled",
            Self::Truncated => "the message is longer than the buffer",
            Self::TooLong => "the message or its headers are too long",
            Self::AccessDenied => "no such region, or it does not allow this",
            Self::OutOfBounds => "not inside the region",
            Self::InvalidAtomic => "it makes no sense there",
            Self::File(errno) => return write!(f, "the file: {}", std::io::Error::from_raw_os_error(*errno)),
            Self::Interrupted => "interrupted",
            Self::Closed => "the channel is closed",
            Self::Unknown => "no such link, channel, context, cq, handler or operation",
            Self::Refused => "the peer serves no such service",
            Self::Lost(reason) => return write!(f, "the link is gone: {}", crate::reason::text(reason.0)),
            Self::Unreachable(reason) => return f.write_str(crate::reason::text(reason.0)),
            Self::Full => "too many operations, channels or groups, or the pool is used up",
            Self::NoNode(errno) => return write!(f, "no node: {}", std::io::Error::from_raw_os_error(*errno)),
        };
        f.write_str(text)
    }
}

impl std::error::Error for Error {}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        Self::from_raw_os_error(error.errno())
    }
}

impl Error {
    /// Of a call on a link that is gone for `gone`, if it is.
    pub(super) fn of(refusal: Rejected, gone: Option<Reason>) -> Self {
        match refusal {
            Rejected::WouldBlock => Self::WouldBlock,
            Rejected::Closed => Self::Closed,
            Rejected::TooLong => Self::TooLong,
            Rejected::InvalidAtomic => Self::InvalidAtomic,
            Rejected::LinkDown => Self::Lost(gone.unwrap_or(Reason::PEER_GONE)),
        }
    }

    /// Of an operation that has ended so; `None`: as asked.
    pub fn of_status(status: Status, gone: Option<Reason>) -> Option<Self> {
        match status {
            Status::Done => None,
            Status::Truncated => Some(Self::Truncated),
            Status::Cancelled => Some(Self::Cancelled),
            Status::Closed => Some(Self::Closed),
            Status::Exhausted => Some(Self::Full),
            Status::AccessDenied => Some(Self::AccessDenied),
            Status::OutOfBounds => Some(Self::OutOfBounds),
            Status::InvalidAtomic => Some(Self::InvalidAtomic),
            Status::LinkDown => Some(Self::Lost(gone.unwrap_or(Reason::PEER_GONE))),
        }
    }
}
