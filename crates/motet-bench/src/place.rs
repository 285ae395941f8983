//! Where processes and threads run: on one CPU, on two, or wherever the scheduler puts them.

use anyhow::{Context, Result, bail};
use motet_sys::rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where the two ends of a connection run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Both on one CPU.
    One,
    /// Each on a CPU of its own.
    Two,
    /// On any CPU, as the scheduler decides.
    Free,
}

/// The CPUs that measurements use: two of those that this process may run on.
#[derive(Debug, Clone, Copy)]
pub struct Cpus {
    /// First and second.
    pub pair: [usize; 2],
    all: CpuSet,
}

impl Cpus {
    /// The first two CPUs of this process.
    pub fn find() -> Result<Self> {
        let all = sched_getaffinity(None).context("cannot read the CPU affinity")?;
        let mut known = (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu));
        match (known.next(), known.next()) {
            (Some(a), Some(b)) => Ok(Self { pair: [a, b], all }),
            _ => bail!("the measurements need two CPUs, and this process may use only one"),
        }
    }

    /// How many CPUs this process may use.
    pub fn count(&self) -> usize {
        self.all.count() as usize
    }

    /// The CPUs of server and caller. `turn` swaps them, or picks the CPU that both use.
    pub fn of(&self, placement: Placement, turn: usize) -> [Option<usize>; 2] {
        let [a, b] = if turn & 1 == 0 { self.pair } else { [self.pair[1], self.pair[0]] };
        match placement {
            Placement::One => [Some(a); 2],
            Placement::Two => [Some(b), Some(a)],
            Placement::Free => [None; 2],
        }
    }

    /// Runs `body` with this thread on one CPU (`None`: on all). Processes that `body` starts inherit that.
    pub fn on<T>(&self, cpu: Option<usize>, body: impl FnOnce() -> T) -> T {
        let Some(cpu) = cpu else { return body() };
        pin(cpu);
        let result = body();
        let _ = sched_setaffinity(None, &self.all);
        result
    }

    /// Runs `body` with this thread on the two CPUs only. Processes that `body` starts inherit that.
    pub fn on_pair<T>(&self, body: impl FnOnce() -> T) -> T {
        let mut pair = CpuSet::new();
        self.pair.iter().for_each(|&cpu| pair.set(cpu));
        let _ = sched_setaffinity(None, &pair);
        let result = body();
        let _ = sched_setaffinity(None, &self.all);
        result
    }
}

/// Keeps this thread on one CPU.
pub fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    let _ = sched_setaffinity(None, &set); // the set is a subset of the affinity
}
