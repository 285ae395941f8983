//! Variants of a pattern of messages: windows, any-source receives, idle ranks.

use super::Part;
use std::fmt;

/// A variant of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// No variant: two ranks, receives that name their source, the usual windows.
    Plain,
    /// Windows of so many messages.
    Windows(usize),
    /// Receives that name no source.
    AnySource,
    /// Two of so many ranks talk, the others sleep. All poll, as they do where each has a CPU.
    Polling(usize),
    /// Two of so many ranks talk, the others sleep. Ranks yield where there are more of them than CPUs, as the library chooses.
    Yielding(usize),
}

/// What makes ranks poll even where there are more of them than CPUs: Open MPI's own variable, and that of Motet's provider.
const POLL: [(&str, &str); 2] = [("OMPI_MCA_mpi_yield_when_idle", "0"), ("FI_MOTET_WAIT", "poll")];

impl Shape {
    /// How many ranks there are.
    pub fn ranks(self) -> usize {
        match self {
            Shape::Polling(ranks) | Shape::Yielding(ranks) => ranks,
            _ => 2,
        }
    }

    /// What the measuring program calls the pattern.
    pub fn word(self, part: Part) -> &'static str {
        if self == Shape::AnySource { "any" } else { part.word() }
    }

    /// Messages of a window, where they are not the usual ones.
    pub fn window(self) -> Option<usize> {
        match self {
            Shape::Windows(messages) => Some(messages),
            _ => None,
        }
    }

    /// Further variables.
    pub fn environment(self) -> &'static [(&'static str, &'static str)] {
        if matches!(self, Shape::Polling(_)) { &POLL } else { &[] }
    }
}

/// What comes after a contender's name.
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
    fn a_shape_says_what_the_program_is_asked() {
        assert_eq!((Shape::AnySource.word(Part::Latency), Shape::Plain.word(Part::Latency)), ("any", "latency"));
        assert_eq!((Shape::Windows(65).window(), Shape::Plain.window()), (Some(65), None));
        assert_eq!([Shape::Plain, Shape::Polling(3), Shape::Yielding(8)].map(Shape::ranks), [2, 3, 8]);
        assert!(!Shape::Polling(3).environment().is_empty() && Shape::Yielding(3).environment().is_empty());
    }
}
