//! The sockets of an unmodified C program, without Motet and with the sockets adapter.

use crate::Options;
use crate::bar::{Bar, ProgramKind};
use crate::bench::{Bench, Measurement, Series};
use crate::measure::{better, call, counted, once, rates};
use crate::place::Placement::{One, Two};
use crate::report::{Bound, Line, Quantity, Unit, WithMotet};
use anyhow::Result;

/// Measures the program with Motet on two CPUs, without Motet on one CPU, and without Motet on two.
fn three(bench: &Bench, program: &str, size: usize) -> Result<Vec<Series>> {
    let plain = bench.program(program)?;
    let motet = plain.clone().with_env(&bench.sockets()?);
    let arguments = call(bench, size, &[]);
    let mut measurements: Vec<Measurement<'_>> = vec![
        Box::new(|turn| once(bench, &motet, Two, turn, &arguments)),
        Box::new(|turn| once(bench, &plain, One, turn, &arguments)),
        Box::new(|turn| once(bench, &plain, Two, turn, &arguments)),
    ];
    bench.compare(bench.repetitions, true, &mut measurements)
}

/// Row `sockets-latency`.
pub fn latency(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let series = three(bench, "pingpong", 64)?;
    let motet = &series[0];
    let (one_mode, remark) = motet.one_mode();
    let (tcp, place) = better(&series[1], &series[2]);
    let (fast, tcp, enough) = counted(bench.repetitions, motet, tcp);
    Ok(vec![
        Line::new("sockets-latency", "C sockets ping-pong, 64 B one way, own CPUs")
            .figure(Quantity::of("one way", &one_mode.values, Unit::Ns))
            .floors(&one_mode.floors)
            .against(Quantity::of("floor", &one_mode.steady_floors(), Unit::Ns), &one_mode.over_floor())
            .bound(Bound::AtMost(5.5))
            .note(remark),
        Line::new("sockets-latency", "C sockets ping-pong, 64 B one way, over the same without Motet")
            .figure(Quantity::of(format!("one way, {place}"), &tcp.values, Unit::Ns))
            .floors(&fast.floors)
            .against(Quantity::of("under Motet", &fast.values, Unit::Ns), &tcp.over(&fast))
            .with_motet(WithMotet::Reference)
            .bound(Bound::AtLeast(30.0))
            .slow_floor(enough),
    ])
}

/// Row `sockets-bandwidth`.
pub fn bandwidth(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    const SIZE: usize = 65536;
    let series = three(bench, "stream", SIZE)?;
    let (tcp, place) = better(&series[1], &series[2]);
    let (motet, tcp, enough) = counted(bench.repetitions, &series[0], tcp);
    let (motet, tcp) = (rates(&motet, SIZE), rates(&tcp, SIZE));
    Ok(vec![
        Line::new("sockets-bandwidth", "C sockets stream, 64 KiB writes")
            .figure(Quantity::of("bandwidth", &motet.values, Unit::GBs))
            .floors(&motet.floors)
            .against(Quantity::of(format!("without Motet, {place}"), &tcp.values, Unit::GBs), &motet.over(&tcp))
            .bar(Bar::bandwidth(ProgramKind::Sockets))
            .bound(Bound::AtLeast(8.0))
            .slow_floor(enough),
    ])
}
