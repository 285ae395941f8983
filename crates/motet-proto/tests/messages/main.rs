//! The message protocol: two links, a simulated medium between them, a virtual clock, random schedules.
//!
//! A failure names its seed; `MOTET_SEED=n` runs that one alone.

#[path = "../support/prng.rs"]
mod prng;

mod carried;
mod hostile;
mod lost;
mod memory;
mod network;
mod owned;
mod posted;
mod remote;
mod scale;
mod schedule;
mod sequences;
mod wary;
mod world;

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
