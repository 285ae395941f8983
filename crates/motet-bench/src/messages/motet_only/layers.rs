//! Headers of five layers: on the message, within its body, in a message of their own.

use super::{node, printed_numbers, with_floors};
use crate::bench::{Bench, Measurement};
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::Result;
use std::cell::RefCell;

/// Bytes of each header.
const SIZES: [usize; 2] = [4, 16];

pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    let program = node(bench, "queue-one", &["layers"]);
    let others: [RefCell<[Vec<f64>; 2]>; 2] = Default::default();
    let mut measurements: Vec<Measurement<'_>> = Vec::new();
    for (size, others) in SIZES.into_iter().zip(&others) {
        let program = &program;
        measurements.push(Box::new(move |turn| {
            let [pushed, raw, apart] = printed_numbers(bench, program, turn, &[size, bench.ms])?;
            let mut others = others.borrow_mut();
            others[0].push(raw);
            others[1].push(apart);
            Ok(pushed)
        }));
    }
    let series = bench.compare(bench.repetitions, true, &mut measurements)?;
    drop(measurements);
    let mut lines = Vec::new();
    for ((size, pushed), others) in SIZES.into_iter().zip(&series).zip(others) {
        let [raw, apart] = others.into_inner().map(|values| with_floors(values, pushed));
        let as_body = || Quantity::of("as bytes of the body", &raw.values, Unit::Ns);
        let what = format!("five headers of {size} B and a body of 8 B, half a round trip");
        lines.push(
            Line::new("layers", format!("{what}: headers of the message"))
                .figure(Quantity::of("one way", &pushed.values, Unit::Ns))
                .floors(&pushed.floors)
                .against(as_body(), &pushed.over(&raw))
                .nearly(Bound::AtMost(1.02)),
        );
        lines.push(
            Line::new("layers", format!("{what}: headers in a message of their own"))
                .figure(Quantity::of("one way", &apart.values, Unit::Ns))
                .floors(&apart.floors)
                .against(as_body(), &apart.over(&raw)),
        );
    }
    Ok(lines)
}
