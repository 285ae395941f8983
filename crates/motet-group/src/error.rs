//! Why a call of this crate fails.

use motet_session::client::ClientError;
use std::fmt;

/// Why a call fails.
#[derive(Debug)]
pub enum Error {
    /// The session: there is none, or its gatekeeper does not answer.
    Session(ClientError),
    /// The group, circuit or rank: what is wrong.
    Invalid(String),
    /// The time limit has passed.
    TimedOut,
    /// A member that the call needs has left the group: open a circuit in the new view to go on without it. Or the link to it was lost, and with it
    /// perhaps messages, although the member is there: open a circuit of another name to go on with it.
    MemberGone,
    /// The gatekeeper refused: why.
    Refused(String),
    /// The node: a call on it failed.
    Node(motet::node::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session(error) => error.fmt(f),
            Self::Invalid(why) | Self::Refused(why) => f.write_str(why),
            Self::TimedOut => f.write_str("the time limit has passed"),
            Self::MemberGone => {
                f.write_str("a member of the circuit has left the group, or its link is lost: open another circuit")
            }
            Self::Node(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<ClientError> for Error {
    fn from(error: ClientError) -> Self {
        Self::Session(error)
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::Session(error.into())
    }
}

impl From<motet::node::Error> for Error {
    fn from(error: motet::node::Error) -> Self {
        match error {
            motet::node::Error::TimedOut => Self::TimedOut,
            error => Self::Node(error),
        }
    }
}
