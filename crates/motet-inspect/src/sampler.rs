//! Scan after scan of all processes: each one sets the rates and the paths of recent bytes since the one before it.

use std::thread;
use std::time::{Duration, Instant};

use crate::process_scan::{self, Process};
use crate::rates::{self, Totals};
use crate::recent::{self, SAMPLE_INTERVAL};

/// The last scan.
#[derive(Debug)]
struct Sample {
    processes: Vec<Process>,
    totals: Totals,
    at: Instant,
}

/// Scans, and remembers the last scan.
#[derive(Debug, Default)]
pub struct Sampler {
    last: Option<Sample>,
}

impl Sampler {
    /// All processes as they are now. Without an earlier scan there are no rates.
    pub fn sample(&mut self) -> Vec<Process> {
        let mut processes = process_scan::scan();
        let at = Instant::now();
        let totals = match &self.last {
            Some(last) => {
                recent::set_recent_paths(&mut processes, &last.processes);
                rates::set(&mut processes, &last.totals, at - last.at)
            }
            None => Totals::of(&processes),
        };
        self.last = Some(Sample { processes: processes.clone(), totals, at });
        processes
    }

    /// All processes with rates. A scan that is older than `max_age` says nothing of the present: two scans are made then, a moment apart.
    pub fn sample_with_rates(&mut self, max_age: Duration) -> Vec<Process> {
        if self.last.as_ref().is_none_or(|last| last.at.elapsed() > max_age) {
            self.last = None;
            self.sample();
            thread::sleep(SAMPLE_INTERVAL);
        }
        self.sample()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_need_two_scans() {
        let mut sampler = Sampler::default();
        assert!(sampler.sample().iter().all(|process| process.rate.is_none()));
        // A process that starts meanwhile is in the second one only, and has the rate 0.
        assert!(sampler.sample().iter().all(|process| process.rate.is_some()));
        assert!(Sampler::default().sample_with_rates(Duration::ZERO).iter().all(|process| process.rate.is_some()));
    }
}
