//! What other programs use of the machine while something is measured.

use std::time::Instant;

/// The CPU time of the whole machine, from a moment on.
pub struct MachineLoad {
    began: Instant,
    busy: f64,
}

impl MachineLoad {
    /// Begins to measure.
    pub fn begin() -> Self {
        Self { began: Instant::now(), busy: busy_seconds() }
    }

    /// CPUs that others than the measured programs have used on average since. `own`: the CPU time of the measured programs, seconds.
    pub fn used_by_others(&self, own: f64) -> f64 {
        let elapsed = self.began.elapsed().as_secs_f64().max(f64::MIN_POSITIVE);
        ((busy_seconds() - self.busy - own) / elapsed).max(0.0)
    }
}

/// Seconds that all CPUs together have worked, or could not because the host of a virtual machine took them. 0 if the kernel does not say.
fn busy_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    busy_ticks(&stat) as f64 / rustix::param::clock_ticks_per_second() as f64
}

fn busy_ticks(stat: &str) -> u64 {
    let ticks = |line: &str| -> Vec<u64> { line.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect() };
    let all = stat.lines().find(|line| line.starts_with("cpu ")).map(ticks).unwrap_or_default();
    // user, nice, system, (idle, iowait), irq, softirq, steal; the rest is in user and nice.
    all.iter().enumerate().filter(|(at, _)| [0, 1, 2, 5, 6, 7].contains(at)).map(|(_, n)| n).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_not_busy() {
        assert_eq!(busy_ticks("cpu  1 2 4 8 16 32 64 128 256 512\ncpu0 9 9 9 9\n"), 1 + 2 + 4 + 32 + 64 + 128);
        assert_eq!(busy_ticks(""), 0);
    }
}
