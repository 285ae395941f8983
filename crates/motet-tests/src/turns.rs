//! Whose turn it is: which runs of the scenes of one test process have the CPUs for themselves.

use crate::Mode;
use std::sync::{PoisonError, RwLock};

/// Which runs of a scene have the CPUs for themselves; the others go beside their like from other tests. With more programs than CPUs
/// everybody is right to sleep, and nothing shows what the fast path does: so a run under Motet is alone where it is asked for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alone {
    /// The run under Motet.
    WithMotet,
    /// Both: what is told is also a matter of how soon something happens.
    Both,
    /// None: nothing is asked of the fast path, and most of the scene is waiting.
    Neither,
}

impl Alone {
    /// A run in its turn: of those that are alone one at a time, and none of the others meanwhile.
    pub(crate) fn turn<R>(self, mode: Mode, run: impl FnOnce() -> R) -> R {
        static TURNS: RwLock<()> = RwLock::new(());
        let beside = self == Self::Neither || (self == Self::WithMotet && mode == Mode::WithoutMotet);
        let _beside = beside.then(|| TURNS.read().unwrap_or_else(PoisonError::into_inner));
        let _alone = (!beside).then(|| TURNS.write().unwrap_or_else(PoisonError::into_inner));
        run()
    }
}
