//! The receive pool: the cost of page faults on first touch while receiving, and what pre-faulted memory saves.

use crate::Options;
use crate::bench::{Bench, Measurement};
use crate::measure::{call, once, rates};
use crate::pair::Program;
use crate::place::Placement::Two;
use crate::report::{Line, Quantity, Unit};
use anyhow::Result;

/// Row `receive-pool`.
pub fn pool(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let program = bench.program("pool")?.with_env(&[("MOTET_LIBRARY".into(), bench.library()?.into())]);
    let has_pool = program.command(0, "has-pool").status()?.success();
    let (kind, name) = if has_pool { ("pool", "from the pool") } else { ("warm", "one warm buffer") };
    let receiving = |kind: &str| Program { serve_arguments: vec![kind.into()], ..program.clone() };
    let (pooled, fresh) = (receiving(kind), receiving("fresh"));
    let mut lines = Vec::new();
    let step = if bench.quick { 5 } else { 2 };
    for size in (16..=26).step_by(step).map(|bits| 1 << bits) {
        let arguments = call(bench, size, &[]);
        let mut measurements: Vec<Measurement<'_>> = vec![
            Box::new(|turn| once(bench, &pooled, Two, turn, &arguments)),
            Box::new(|turn| once(bench, &fresh, Two, turn, &arguments)),
        ];
        let series = bench.compare(bench.repetitions, false, &mut measurements)?;
        let [pooled, fresh] = &series[..] else { unreachable!() };
        let (pooled, fresh) = (rates(pooled, size), rates(fresh, size));
        let line = Line::new("receive-pool", format!("receiving messages of {}", crate::format::bytes(size)))
            .figure(Quantity::of(name, &pooled.values, Unit::GBs))
            .floors(&pooled.floors)
            .against(Quantity::of("into fresh memory", &fresh.values, Unit::GBs), &pooled.over(&fresh));
        lines.push(if has_pool {
            line
        } else {
            line.note("this libmotet has no motet_buffer_alloc: a warm reused buffer replaces the pool")
        });
    }
    Ok(lines)
}
