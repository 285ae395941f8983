//! Turns on the CPUs: decides which runs of a test process may overlap.

use crate::Mode;
use std::sync::{PoisonError, RwLock};

/// The runs of a case that have the CPUs to themselves. Other runs may overlap with runs of other tests. With more programs than CPUs readers sleep and
/// the fast path stays unused, so a run that must use the fast path is exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exclusive {
    /// The run under Motet is exclusive.
    WithMotet,
    /// Both runs are exclusive: the output depends on how soon something happens.
    Both,
    /// No run is exclusive: the case does not check the fast path, and mostly waits.
    Neither,
}

impl Exclusive {
    /// Runs `run` when it may: exclusive runs one at a time, and no other run at the same time.
    pub(crate) fn run_in_turn<R>(self, mode: Mode, run: impl FnOnce() -> R) -> R {
        static CPUS: RwLock<()> = RwLock::new(());
        let shared = self == Self::Neither || (self == Self::WithMotet && mode == Mode::WithoutMotet);
        let _shared = shared.then(|| CPUS.read().unwrap_or_else(PoisonError::into_inner));
        let _exclusive = (!shared).then(|| CPUS.write().unwrap_or_else(PoisonError::into_inner));
        run()
    }
}
