//! The option of `motet up` that says whether containers share memory.

use clap::ValueEnum;
use motet_session::api::Containers;

/// The policy for containers of this host that see the session's folder, but have other network namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ContainersArgument {
    /// No container shares memory with another one, or with the host
    Off,
    /// Those of the session's user do
    SameUid,
}

impl ContainersArgument {
    /// The word of the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::SameUid => "same-uid",
        }
    }
}

impl From<ContainersArgument> for Containers {
    fn from(argument: ContainersArgument) -> Self {
        match argument {
            ContainersArgument::Off => Self::Off,
            ContainersArgument::SameUid => Self::SameUid,
        }
    }
}
