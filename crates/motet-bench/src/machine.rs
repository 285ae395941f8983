//! What a run was measured on: processor, kernel, floors and the copy of one core.

use crate::bench::Bench;
use crate::floor;
use crate::report::Machine;
use crate::stats::Spread;
use std::time::Duration;

/// Samples of the copy of 64 KiB by one core within its cache, GB/s.
pub fn copies(bench: &Bench) -> Vec<f64> {
    (0..5).map(|_| 65536e-9 / floor::copy(bench.cpus.pair[0], 65536, 1, Duration::from_millis(20))).collect()
}

/// The machine of a run that has ended, with all samples of the floor.
pub fn describe(bench: &Bench, copies: &[f64]) -> Machine {
    let [floors, exchanges] = bench.floors();
    let fast = floors.iter().filter(|&&f| f <= floor::FAST_MAX_NS).count();
    let (near, far): (Vec<f64>, Vec<f64>) = floors.iter().partition(|&&f| f <= floor::NEAR_MAX_NS);
    let here = motet_config::profile::Machine::here();
    Machine {
        processor: if here.processor.is_empty() { "unknown processor".into() } else { here.processor },
        kernel: here.kernel,
        cpus: bench.cpus.count(),
        floor: Spread::of(&floors),
        floor_by_distance: [Spread::of(&near), Spread::of(&far)],
        exchange: Spread::of(&exchanges),
        floor_fast: fast as f64 / floors.len().max(1) as f64,
        copy: Spread::of(copies),
        repetitions: (bench.repetitions, bench.ms),
    }
}
