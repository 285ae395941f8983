//! Variants of a pattern of messages: windows, any-source receives, idle ranks.

use super::Part;
use std::fmt;

/// A variant of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// No variant: two ranks, receives that name their source, the usual windows.
    Plain,
    /// Windows of this many messages.
    Windows(usize),
    /// Receives that name no source.
    AnySource,
    /// Two of this many ranks talk, the others sleep. All poll, as where each has a CPU.
    Polling(usize),
    /// Two of this many ranks talk, the others sleep. Waits are as the library chooses, which yields with more ranks than CPUs.
    Yielding(usize),
}

/// Variables that make ranks poll even with more ranks than CPUs: that of Open MPI, and that of the libfabric provider.
const POLL: [(&str, &str); 2] = [("OMPI_MCA_mpi_yield_when_idle", "0"), ("FI_MOTET_WAIT", "poll")];

impl Shape {
    /// How many ranks there are.
    pub fn ranks(self) -> usize {
        match self {
            Shape::Polling(ranks) | Shape::Yielding(ranks) => ranks,
            _ => 2,
        }
    }

    /// The word of the measuring program for the pattern.
    pub fn word(self, part: Part) -> &'static str {
        if self == Shape::AnySource { "any" } else { part.word() }
    }

    /// Messages of a window, if that is not the usual number.
    pub fn window(self) -> Option<usize> {
        match self {
            Shape::Windows(messages) => Some(messages),
            _ => None,
        }
    }

    /// Further environment variables.
    pub fn environment(self) -> &'static [(&'static str, &'static str)] {
        if matches!(self, Shape::Polling(_)) { &POLL } else { &[] }
    }
}

/// The text after the name of a peer.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Plain => Ok(()),
            Shape::Windows(messages) => write!(f, ", windows of {messages}"),
            Shape::AnySource => write!(f, ", any source"),
            Shape::Polling(ranks) => write!(f, ", 2 of {ranks} ranks"),
            Shape::Yielding(ranks) => write!(f, ", 2 of {ranks} ranks that yield"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shape_gives_the_arguments_of_the_program() {
        assert_eq!((Shape::AnySource.word(Part::Latency), Shape::Plain.word(Part::Latency)), ("any", "latency"));
        assert_eq!((Shape::Windows(65).window(), Shape::Plain.window()), (Some(65), None));
        assert_eq!([Shape::Plain, Shape::Polling(3), Shape::Yielding(8)].map(Shape::ranks), [2, 3, 8]);
        assert!(!Shape::Polling(3).environment().is_empty() && Shape::Yielding(3).environment().is_empty());
    }
}
