//! Where processes and threads run: on one CPU, on two, or wherever the scheduler puts them.

use anyhow::{Context, Result, bail};
use motet_sys::rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use std::fs;

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

    /// Moves all threads of a process and of its descendants to a CPU; `None`: to any one. Those that have ended, or belong to another user, stay.
    pub fn move_to(&self, process: u32, cpu: Option<usize>) {
        let set = cpu.map_or(self.all, only);
        let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return };
        let numbers = threads.flatten().filter_map(|thread| thread.file_name().to_str()?.parse::<u32>().ok());
        for thread in numbers {
            if let Some(thread) = i32::try_from(thread).ok().and_then(Pid::from_raw) {
                let _ = sched_setaffinity(Some(thread), &set);
            }
            let children = fs::read_to_string(format!("/proc/{process}/task/{thread}/children")).unwrap_or_default();
            children
                .split_whitespace()
                .filter_map(|child| child.parse().ok())
                .for_each(|child| self.move_to(child, cpu));
        }
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
    let _ = sched_setaffinity(None, &only(cpu)); // the set is a subset of the affinity
}

fn only(cpu: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(cpu);
    set
}
