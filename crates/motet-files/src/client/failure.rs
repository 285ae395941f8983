//! Why a request has failed.

use motet::node::Error;
use rustix::io::Errno;

/// Why an attempt to make a request has failed.
#[derive(Debug)]
pub enum Failure {
    /// The server's answer, or a request that cannot be sent: it is final.
    Final(std::io::Error),
    /// The channel is lost.
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
            _ => Self::Lost,
        }
    }

    /// As an error of the system.
    pub fn into_error(self) -> std::io::Error {
        match self {
            Self::Final(error) => error,
            Self::Lost => Errno::CONNRESET.into(),
            Self::Broken => Errno::PROTO.into(),
        }
    }
}
