//! Why `motet run` has not configured the MPI libraries of a process, as its environment says.

use crate::procfs;

/// The variable that holds the word of a [`SkipReason`].
pub const MPI_LEFT: &str = "MOTET_MPI_LEFT";

/// Why `motet run` does not configure MPI libraries, which then use their own transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkipReason {
    /// The setting `mpi` is off.
    Off,
    /// All ranks will be on one host, where no library is proven as fast over Motet in every shape of job.
    OneHost,
    /// Open MPI, or possibly Open MPI: its libfabric component loses data, hangs and crashes in calls where its own transports do not.
    OpenMpi,
    /// The user's FI_PROVIDER excludes Motet's provider.
    Choice,
}

impl SkipReason {
    /// All reasons.
    const ALL: [Self; 4] = [Self::Off, Self::OneHost, Self::OpenMpi, Self::Choice];

    /// The word that [`MPI_LEFT`] holds.
    pub fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::OneHost => "one-host",
            Self::OpenMpi => "open-mpi",
            Self::Choice => "FI_PROVIDER",
        }
    }

    /// The reason for a process, from its environment.
    pub fn of(pid: u32) -> Option<Self> {
        let word = procfs::variable(pid, MPI_LEFT)?;
        Self::ALL.into_iter().find(|reason| reason.word() == word)
    }

    /// The text for users.
    pub fn why(self) -> &'static str {
        match self {
            Self::Off => "the setting mpi is off",
            Self::OneHost => {
                "the job is not known to use several hosts, and on one host MPI keeps its own transport (`--set mpi=on` takes Motet's)"
            }
            Self::OpenMpi => {
                "Open MPI has faults over libfabric that its own transports do not have (`--set mpi=on` takes Motet's)"
            }
            Self::Choice => "FI_PROVIDER excludes Motet's provider",
        }
    }
}
