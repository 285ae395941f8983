//! Why a call of this crate fails.

use crate::format::Malformed;
use crate::wire::ReplyStatus;
use motet::node;
use std::fmt;

/// Why a call fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// An argument: what is wrong with it.
    Invalid(&'static str),
    /// Bytes of a peer, or of a startpoint: what is wrong with them.
    Malformed(Malformed),
    /// The deadline has passed. A request that was sent may still be handled.
    TimedOut,
    /// The peer of a call is gone, or its link. The call may have been handled.
    PeerGone,
    /// The peer has refused a call, or its handler has not answered.
    NotDone(ReplyStatus),
    /// No driver of the endpoint works for this pair: each with its reason.
    NoRoute(Vec<(String, node::Error)>),
    /// A request to several endpoints has reached only some: how many, and the first error.
    Partly(usize, Box<Error>),
    /// The node: a call on it failed.
    Node(node::Error),
}

impl Error {
    /// The system's error number for it, positive.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Invalid(_) => 22,                                                       // EINVAL
            Self::Malformed(_) => 74,                                                     // EBADMSG
            Self::TimedOut => 110,                                                        // ETIMEDOUT
            Self::PeerGone => 104,                                                        // ECONNRESET
            Self::NotDone(ReplyStatus::NoEndpoint) => 2,                                  // ENOENT
            Self::NotDone(ReplyStatus::NoHandler) => 38,                                  // ENOSYS
            Self::NotDone(ReplyStatus::TooLong) => 7,                                     // E2BIG
            Self::NotDone(_) => 5,                                                        // EIO
            Self::NoRoute(tried) => tried.last().map_or(113, |(_, error)| error.errno()), // EHOSTUNREACH
            Self::Partly(_, first) => first.errno(),
            Self::Node(error) => error.errno(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(why) => f.write_str(why),
            Self::Malformed(what) => what.fmt(f),
            Self::TimedOut => f.write_str("the deadline has passed"),
            Self::PeerGone => f.write_str("the peer is gone"),
            Self::NotDone(ReplyStatus::NoEndpoint) => f.write_str("there is no such endpoint"),
            Self::NotDone(ReplyStatus::NoHandler) => f.write_str("the endpoint has no such handler"),
            Self::NotDone(ReplyStatus::TooLong) => f.write_str("the request is longer than its receiver takes"),
            Self::NotDone(_) => f.write_str("the handler has not answered"),
            Self::NoRoute(tried) => {
                f.write_str("no driver works:")?;
                tried.iter().try_for_each(|(driver, error)| write!(f, " {driver} ({error})"))
            }
            Self::Partly(reached, first) => write!(f, "only {reached} endpoints have got the request: {first}"),
            Self::Node(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<Malformed> for Error {
    fn from(what: Malformed) -> Self {
        Self::Malformed(what)
    }
}

impl From<node::Error> for Error {
    fn from(error: node::Error) -> Self {
        match error {
            node::Error::TimedOut => Self::TimedOut,
            error => Self::Node(error),
        }
    }
}
