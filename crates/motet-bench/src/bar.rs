//! The place of a measured line in the overview picture: a kind of programs, and a panel.
//!
//! This is data only. A line of the report carries it; [`crate::overview`] draws the picture.

/// A kind of programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramKind {
    /// Blocking sockets in C.
    Sockets,
    /// Java, NIO channels.
    Java,
    /// Redis, one client.
    Redis,
    /// CORBA calls of omniORB.
    OmniOrb,
    /// Open MPI beside its own transport.
    OpenMpi,
}

impl ProgramKind {
    /// All kinds, from top to bottom of the picture.
    pub const ALL: [ProgramKind; 5] =
        [ProgramKind::Sockets, ProgramKind::Java, ProgramKind::Redis, ProgramKind::OmniOrb, ProgramKind::OpenMpi];

    /// Its name, and what is measured: the round trip, then the bandwidth.
    pub fn words(self) -> [&'static str; 2] {
        match self {
            ProgramKind::Sockets => ["C sockets", "64 B; 64 KiB writes"],
            ProgramKind::Java => ["Java NIO", "64 B; 64 KiB writes"],
            ProgramKind::Redis => ["Redis", "GET; of 64 KiB"],
            ProgramKind::OmniOrb => ["omniORB", "64 B; 64 KiB both ways"],
            ProgramKind::OpenMpi => ["Open MPI", "8 B; 64 KiB"],
        }
    }
}

/// What a pair of bars shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Panel {
    /// Round trips.
    RoundTrip,
    /// Bandwidths.
    Bandwidth,
}

impl Panel {
    /// Both, from left to right.
    pub const ALL: [Panel; 2] = [Panel::RoundTrip, Panel::Bandwidth];

    /// What is written above it.
    pub fn words(self) -> &'static str {
        match self {
            Panel::RoundTrip => "Round trip, µs (log scale)",
            Panel::Bandwidth => "Bandwidth, GB/s",
        }
    }
}

/// The place of a line in the picture.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bar {
    /// The group of bars.
    pub program: ProgramKind,
    /// The half of the picture.
    pub panel: Panel,
    /// How many of the measured times make a round trip.
    pub times: f64,
}

impl Bar {
    /// The bars of a line that has the time of one way, half a round trip.
    pub fn one_way(program: ProgramKind) -> Self {
        Self { program, panel: Panel::RoundTrip, times: 2.0 }
    }

    /// The bars of a line that has the time of a round trip, or round trips a second.
    pub fn round_trip(program: ProgramKind) -> Self {
        Self { program, panel: Panel::RoundTrip, times: 1.0 }
    }

    /// The bars of a line that has a bandwidth.
    pub fn bandwidth(program: ProgramKind) -> Self {
        Self { program, panel: Panel::Bandwidth, times: 1.0 }
    }
}
