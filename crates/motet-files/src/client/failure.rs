//! Why a request has failed.

use motet::node::Error;
use rustix::io::Errno;

/// Why an attempt to make a request has failed.
#[derive(Debug)]
pub enum Failure {
    /// The server's answer, or a request that cannot be sent: it is final.
    Final(std::io::Error),
    /// The channel is lost, and the request was not sent.
    NotSent,
    /// The channel is lost, and the request may have been executed.
    Lost,
    /// The server has answered what no server answers. The channel cannot be used any more.
    Broken,
}

impl Failure {
    /// The failure behind an error of the engine. An answer that does not come in time ends the connection, because it could come later.
    pub fn of(error: Error) -> Self {
        match error {
            Error::NoNode(_) => Self::Final(Errno::SHUTDOWN.into()),
            Error::Truncated => Self::Broken,
            Error::TooLong => Self::Final(Errno::TOOBIG.into()), // for the server, however often it is sent
            _ => Self::Lost,
        }
    }

    /// The failure behind an error of the engine, of a request that was not sent.
    pub fn unsent(error: Error) -> Self {
        match Self::of(error) {
            Self::Lost => Self::NotSent,
            failure => failure,
        }
    }

    /// The session in which the request may have been executed, if it was sent in this one.
    pub fn sent_in(&self, session: u64) -> Option<u64> {
        matches!(self, Self::Lost).then_some(session)
    }

    /// As an error of the system.
    pub fn into_error(self) -> std::io::Error {
        match self {
            Self::Final(error) => error,
            Self::NotSent | Self::Lost => Errno::CONNRESET.into(),
            Self::Broken => Errno::PROTO.into(),
        }
    }
}
