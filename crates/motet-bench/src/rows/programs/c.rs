//! A ping-pong in C: blocking calls, or epoll over sockets that never block.

use super::{Plan, Target};
use crate::Options;
use crate::bar::{Bar, ProgramKind};
use crate::bench::{Bench, Measurement};
use crate::format::bytes;
use crate::measure::{call, once};
use crate::place::Placement::{Free, One, Two};
use crate::report::{Line, Unit};
use anyhow::Result;

/// Row `ping-pong`.
pub fn ping_pong(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for kind in ["blocking", "epoll"] {
        let mut plain = bench.program("pingpong")?;
        if kind == "epoll" {
            plain.serve_arguments = vec![kind.into()];
        }
        let motet = plain.clone().with_env(&bench.sockets()?);
        for (size, bound) in [(64, 20.0), (1024, 20.0), (65536, 6.0)] {
            let mut arguments = call(bench, size, &[]);
            arguments.extend((kind == "epoll").then(|| kind.to_owned()));
            let mut measurements: Vec<Measurement<'_>> = vec![
                Box::new(|turn| once(bench, &motet, Two, turn, &arguments)),
                Box::new(|turn| once(bench, &plain, One, turn, &arguments)),
                Box::new(|turn| once(bench, &plain, Two, turn, &arguments)),
                Box::new(|turn| once(bench, &motet, One, turn, &arguments)),
                Box::new(|turn| once(bench, &motet, Free, turn, &arguments)),
                Box::new(|turn| once(bench, &plain, Free, turn, &arguments)),
            ];
            let series = bench.compare(bench.of_programs, true, &mut measurements)?;
            let what = format!("C ping-pong, {kind}, {} one way", bytes(size));
            let plan = Plan::new("ping-pong", what, Unit::Ns, Target::Times(bound));
            let mut measured = plan.lines(bench, &series);
            measured[0].bar = (kind == "blocking" && size == 64).then(|| Bar::one_way(ProgramKind::Sockets));
            lines.extend(measured);
        }
    }
    Ok(lines)
}
