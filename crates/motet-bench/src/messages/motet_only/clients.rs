//! One server of many clients: the cost of their number, and the share of each.

use super::{node, numbers, with_floors};
use crate::bench::{Bench, Measurement};
use crate::pair::{Process, Server, caller};
use crate::place::Placement::Two;
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::Result;
use std::cell::RefCell;

const MANY_CLIENTS: usize = 184;
const HALF_CLIENTS: usize = 92;
const SIZE: usize = 64 << 10;

pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    let uneven: [RefCell<Vec<f64>>; 2] = Default::default();
    let mut measurements: Vec<Measurement<'_>> = Vec::new();
    for (clients, uneven) in [MANY_CLIENTS, HALF_CLIENTS].into_iter().zip(&uneven) {
        measurements.push(Box::new(move |turn| {
            let [each, most_over_least] = one(bench, clients, turn)?;
            uneven.borrow_mut().push(most_over_least);
            Ok(each)
        }));
    }
    let series = bench.compare(bench.repetitions, false, &mut measurements)?;
    drop(measurements);
    let [many, half] = &series[..] else { unreachable!() };
    let rate = |values: &[f64]| values.iter().map(|ns| SIZE as f64 / ns).collect::<Vec<_>>();
    let mut lines = vec![
        Line::new("server", format!("64 KiB from {MANY_CLIENTS} clients, all together"))
            .figure(Quantity::of("bandwidth", &rate(&many.values), Unit::GBs))
            .floors(&many.floors)
            .against(Quantity::of(format!("{HALF_CLIENTS} clients"), &rate(&half.values), Unit::GBs), &half.over(many))
            .nearly(Bound::AtLeast(0.95))
            .note("clients on one CPU, the server on another"),
    ];
    for ((clients, series), uneven) in [MANY_CLIENTS, HALF_CLIENTS].into_iter().zip(&series).zip(uneven) {
        let uneven = with_floors(uneven.into_inner(), series);
        lines.push(
            Line::new("server", format!("messages of the client that got most over those of the least, of {clients}"))
                .floors(&uneven.floors)
                .against(None, &uneven.values)
                .bound(Bound::AtMost(2.0)),
        );
    }
    Ok(lines)
}

/// The time of a message, ns, and the messages of the client with most over those of the client with least.
fn one(bench: &Bench, clients: usize, turn: usize) -> Result<[f64; 2]> {
    let on = bench.cpus.of(Two, turn);
    let mut program = node(bench, "tagged-one", &["shares"]);
    let ms = if bench.quick { 300 } else { 1000 };
    program.serve_arguments = [clients, SIZE, ms].iter().map(ToString::to_string).collect();
    let mut server = Server::start(&program, &bench.cpus, on[0])?;
    let arguments = [SIZE.to_string(), ms.to_string()];
    let callers: Result<Vec<Process>> =
        (0..clients).map(|_| caller(&program, &server.port, &arguments, &bench.cpus, on[1])).collect();
    let callers = callers?;
    let [each, _, least, most] = numbers(&server.process.line()?)?;
    for mut caller in callers {
        caller.child.wait()?;
    }
    Ok([each, most / least])
}
