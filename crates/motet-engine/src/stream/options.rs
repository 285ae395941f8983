//! The settings of an engine, chosen by the crate that links it.

use crate::driver::Driver;
use std::path::PathBuf;

/// The settings of an engine.
#[derive(Clone)]
pub struct Options {
    /// All drivers.
    pub drivers: &'static [&'static dyn Driver],
    /// Names of drivers that may be used; empty: all.
    pub allowed: Vec<String>,
    /// Bytes of each ring.
    pub ring: usize,
    /// Bytes of each large ring, whose pages are allocated for streams with bulk data; 0: none.
    pub bulk: usize,
    /// Records in the stats file.
    pub streams: usize,
    /// Most bytes of memory that drivers may map for streams, large rings aside.
    pub memory: usize,
    /// Huge pages for the large rings, where the system has them.
    pub huge: bool,
    /// Longest spin before a sleep, ns.
    pub spin: u64,
    /// For tests: waits that may spin rest so long (ns) behind open gates, however busy the CPUs are. 0: they sleep as soon as that is better.
    pub patience: u64,
    /// Most streams that one wait polls.
    pub hot: usize,
    /// Smallest transfer that may go by single copy, bytes; `usize::MAX`: none.
    pub single_copy: usize,
    /// Smallest transfer that may go by single copy between CPUs that share no cache, bytes.
    pub single_copy_far: usize,
    /// Smallest single copy that both sides make together (cooperative copy), bytes.
    pub half_copy: usize,
    /// File for a line per event ([`crate::log`]); `%p` is the process id.
    pub log: Option<PathBuf>,
    /// The profile that the sizes are from, for the log.
    pub profile: Option<PathBuf>,
}

impl Options {
    /// Whether waits rest behind open gates.
    pub(crate) fn is_patient(&self) -> bool {
        self.patience > 0
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("ring", &self.ring).field("spin", &self.spin).finish_non_exhaustive()
    }
}
