//! Peers that stay on TCP: one without Motet, one on another host. Motet must not cost anything there.

use crate::Options;
use crate::bench::Bench;
use crate::hosts::Hosts;
use crate::measure::{call, nearly_equal};
use crate::pair::Program;
use crate::place::Placement::Two;
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::Result;

/// Row `fallback`.
pub fn fallback(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let env = bench.sockets()?;
    let mut lines = Vec::new();
    let at_server = |p: &Program| Program { serve_env: env.clone(), ..p.clone() };
    let at_caller = |p: &Program| Program { call_env: env.clone(), ..p.clone() };
    let at_both = |p: &Program| p.clone().with_env(&env);
    let here = |p: Program| p;
    compare(bench, "caller without Motet", &here, &at_server, &mut lines)?;
    compare(bench, "server without Motet", &here, &at_caller, &mut lines)?;
    match Hosts::up() {
        Ok(hosts) => compare(bench, "peer on another host", &|p| hosts.spread(p), &at_both, &mut lines)?,
        Err(error) => lines.push(Line::not_measured("fallback", "peer on another host", format!("{error:#}"))),
    }
    Ok(lines)
}

/// Compares round trip and bandwidth without Motet and with it. `place` says where both ends run, `with_motet` which ends have Motet.
fn compare(
    bench: &Bench,
    what: &str,
    place: &dyn Fn(Program) -> Program,
    with_motet: &dyn Fn(&Program) -> Program,
    lines: &mut Vec<Line>,
) -> Result<()> {
    for (program, size, name) in [("pingpong", 64, "64 B round trips"), ("stream", 65536, "64 KiB writes")] {
        let plain = place(bench.program(program)?);
        let motet = with_motet(&plain);
        let arguments = call(bench, size, &[]);
        let [motet, plain] = nearly_equal(bench, (&motet, &plain), Two, &arguments)?;
        let operations = |ns: &f64| {
            if size == 64 { 0.5e9 / ns } else { size as f64 / ns }
        };
        let unit = if size == 64 { Unit::PerSecond } else { Unit::GBs };
        let [fast, slow] = [&motet, &plain].map(|s| s.values.iter().map(operations).collect::<Vec<f64>>());
        lines.push(
            Line::new("fallback", format!("{what}, {name}"))
                .figure(Quantity::of("under Motet", &fast, unit))
                .floors(&motet.floors)
                .against(Quantity::of("without Motet", &slow, unit), &plain.over(&motet))
                .nearly(Bound::AtLeast(0.98)),
        );
    }
    Ok(())
}
