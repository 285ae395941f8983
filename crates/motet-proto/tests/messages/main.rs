//! The message protocol: two links, a simulated transport between them, a virtual clock, random schedules.
//!
//! A failure prints its seed; `MOTET_SEED=n` runs that seed alone.

#[path = "../support/prng.rs"]
mod prng;

mod checking_owner;
mod fast_path;
mod hostile;
mod lost_memory;
mod over_session;
mod rma;
mod rma_model;
mod scale;
mod schedule;
mod sequences;
mod session_network;
mod side_memory;
mod simulation;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `body` for every seed, or for that of `MOTET_SEED`.
fn seeds(count: u64, body: impl Fn(u64)) {
    let one = std::env::var("MOTET_SEED").ok().and_then(|seed| seed.parse().ok());
    let range = one.map_or(0..count, |seed| seed..seed + 1);
    for seed in range {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(seed))) {
            eprintln!("MOTET_SEED={seed} fails");
            std::panic::resume_unwind(panic);
        }
    }
}
