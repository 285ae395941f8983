//! The settings of an engine, decided by the crate that links it.

use crate::driver::Driver;
use std::path::PathBuf;

/// What the leaf that links the engine decides.
#[derive(Clone)]
pub struct Options {
    /// Every driver there is.
    pub drivers: &'static [&'static dyn Driver],
    /// Names of drivers that may be used; empty: all.
    pub allowed: Vec<String>,
    /// Bytes of each ring.
    pub ring: usize,
    /// Bytes of each large ring, whose pages come into being for streams with bulk data; 0: none.
    pub bulk: usize,
    /// Records in the node file.
    pub streams: usize,
    /// Most bytes of memory that drivers may map for streams, large rings aside.
    pub memory: usize,
    /// Huge pages for the large rings, where the system has them.
    pub huge: bool,
    /// Longest spin before a sleep, ns.
    pub spin: u64,
    /// Waits that may spin rest so long behind open gates, ns, however busy the CPUs are: for tests. 0: they sleep as soon as that is better.
    pub patience: u64,
    /// Streams looked at in one wait.
    pub hot: usize,
    /// Smallest transfer that may go by single copy, bytes; `usize::MAX`: none.
    pub single_copy: usize,
    /// The same between CPUs that share no cache.
    pub single_copy_far: usize,
    /// Smallest of them that both sides make together, bytes.
    pub half_copy: usize,
    /// File for a line per event ([`crate::log`]); `%p` is the process id.
    pub log: Option<PathBuf>,
    /// The profile that sizes came from, for the log.
    pub profile: Option<PathBuf>,
}

impl Options {
    /// Whether gates stay open for a while.
    pub(crate) fn is_patient(&self) -> bool {
        self.patience > 0
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("ring", &self.ring).field("spin", &self.spin).finish_non_exhaustive()
    }
}
