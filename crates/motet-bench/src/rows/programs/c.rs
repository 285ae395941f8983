//! A ping-pong in C: blocking calls, or epoll over sockets that never block.

use super::{Plan, Target};
use crate::Options;
use crate::bar::{Bar, ProgramKind};
use crate::bench::{Bench, Measurement};
use crate::format::bytes;
use crate::measure::{call, once};
use crate::place::Placement::{One, Two};
use crate::report::{Bound, Line, Quantity, Unit, WithMotet};
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
            ];
            let series = bench.compare(bench.of_programs, true, &mut measurements)?;
            let [two, plain_one, plain_two, one] = &series[..] else { unreachable!() };
            let what = format!("C ping-pong, {kind}, {} one way", bytes(size));
            let plan = Plan::new("ping-pong", what, Unit::Ns, Target::Times(bound));
            let line = plan.line(bench, two, plain_one, plain_two);
            let is_in_overview = kind == "blocking" && size == 64;
            lines.push(if is_in_overview { line.bar(Bar::one_way(ProgramKind::Sockets)) } else { line });
            lines.push(
                Line::new("ping-pong", format!("C ping-pong, {kind}, {} one way, both ends on one CPU", bytes(size)))
                    .figure(Quantity::of("without Motet", &plain_one.values, Unit::Ns))
                    .floors(&one.floors)
                    .against(Quantity::of("under Motet", &one.values, Unit::Ns), &plain_one.over(one))
                    .with_motet(WithMotet::Reference)
                    .nearly(Bound::AtLeast(1.0)),
            );
        }
    }
    Ok(lines)
}
