//! The errors of calls on a node and of its operations.

use crate::reason::Reason;
use motet_proto::message::{Rejected, Status};

/// Why a call did nothing, or why an operation did not complete as requested. Most texts begin with the object that is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// The call would have to wait: for room, for credit, or for something to arrive. Try again after progress.
    WouldBlock,
    /// The deadline has passed.
    TimedOut,
    /// The operation: it was cancelled.
    Cancelled,
    /// The operation: the message was longer than the buffer, which is full; the rest of the message is discarded.
    Truncated,
    /// The operation: the headers are too long, or the message, atomic or loan is longer than this way of sending or the pool allows.
    TooLong,
    /// The operation: there is no such region, or its rights do not allow the access.
    AccessDenied,
    /// The operation: some of the bytes are outside of the region.
    OutOfBounds,
    /// The operation: an invalid atomic, memory on which it cannot be done, or a call for file regions on another region.
    InvalidAtomic,
    /// The file: it cannot be a region, or cannot be written to its disk. The value is the system's error number.
    File(i32),
    /// The wait was interrupted ([`super::Node::signal_cq`]).
    Interrupted,
    /// The channel: it is closed in this direction, or its messages are received by a handler.
    Closed,
    /// There is no such link, channel, context, completion queue, handler or operation; it may have existed.
    Unknown,
    /// The channel: the peer does not serve this service.
    Refused,
    /// The link: it is gone, for this reason.
    Lost(Reason),
    /// The node: it cannot connect to a peer, or cannot have the requested name or address, for this reason.
    Unreachable(Reason),
    /// The node: there are too many operations, channels, completion queues or other objects, or its pool is used up.
    Full,
    /// The node: it belongs to the process that this one was forked from, it is shutting down, or the system refuses what it needs. The value is the
    /// system's error number.
    NoNode(i32),
}

impl Error {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::WouldBlock | Self::TimedOut | Self::Full)
    }

    /// The system's error number for this error, positive.
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
            Self::WouldBlock => "the call would block",
            Self::TimedOut => "the deadline has passed",
            Self::Cancelled => "cancelled",
            Self::Truncated => "the message is longer than the buffer",
            Self::TooLong => "the message or its headers are too long",
            Self::AccessDenied => "no such region, or its rights do not allow this",
            Self::OutOfBounds => "outside of the region",
            Self::InvalidAtomic => "invalid atomic, or one that this region does not allow",
            Self::File(errno) => return write!(f, "region over a file: {}", std::io::Error::from_raw_os_error(*errno)),
            Self::Interrupted => "interrupted",
            Self::Closed => "the channel is closed",
            Self::Unknown => "no such link, channel, context, completion queue, handler or operation",
            Self::Refused => "the peer does not serve this service",
            Self::Lost(reason) => return write!(f, "the link is gone: {}", crate::reason::text(reason.0)),
            Self::Unreachable(reason) => return f.write_str(crate::reason::text(reason.0)),
            Self::Full => "too many operations, channels or completion queues, or the pool is used up",
            Self::NoNode(errno) => {
                return write!(f, "the node cannot be used: {}", std::io::Error::from_raw_os_error(*errno));
            }
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
    /// The error for a call that the protocol has rejected on a link that is gone for the reason `gone`, or is up.
    pub(super) fn of(rejection: Rejected, gone: Option<Reason>) -> Self {
        match rejection {
            Rejected::WouldBlock => Self::WouldBlock,
            Rejected::Closed => Self::Closed,
            Rejected::TooLong => Self::TooLong,
            Rejected::InvalidAtomic => Self::InvalidAtomic,
            Rejected::LinkDown => Self::Lost(gone.unwrap_or(Reason::PEER_GONE)),
        }
    }

    /// The error for the status of a completed operation; `None` if it has succeeded. `gone`: why the operation's link is gone.
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
