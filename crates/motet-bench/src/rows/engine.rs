//! The engine's own streams between two processes, against the floor, one core's copy, and the kernel's single copy.

use crate::Options;
use crate::bench::{Bench, Measurement};
use crate::floor;
use crate::measure::{better, call, engine_once, once, rate, rates, shared_memory_remark};
use crate::pair::Process;
use crate::place::Placement::{One, Two};
use crate::report::{Bound, Line, Quantity, Unit, WithMotet};
use anyhow::{Context, Result};
use std::time::Duration;

/// Row `engine-latency`.
pub fn latency(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let (engine, plain) = (bench.worker(&["ping", "engine"]), bench.worker(&["ping", "tcp"]));
    let arguments = call(bench, 8, &[]);
    let mut shared = Vec::new();
    let mut measurements: Vec<Measurement<'_>> = vec![
        Box::new(|turn| engine_once(bench, &engine, turn, &arguments, &mut shared)),
        Box::new(|turn| once(bench, &plain, One, turn, &arguments)),
        Box::new(|turn| once(bench, &plain, Two, turn, &arguments)),
    ];
    let series = bench.compare(bench.repetitions, true, &mut measurements)?;
    drop(measurements);
    let [engine, one, two] = &series[..] else { unreachable!() };
    let (tcp, place) = better(one, two);
    let (one_mode, remark) = engine.one_mode();
    Ok(vec![
        Line::new("engine-latency", "engine stream, 8 B one way, own CPUs")
            .figure(Quantity::of("one way", &one_mode.values, Unit::Ns))
            .floors(&one_mode.floors)
            .against(Quantity::of("floor", &one_mode.steady_floors(), Unit::Ns), &one_mode.over_floor())
            .bound(Bound::AtMost(2.0))
            .note(remark)
            .note(shared_memory_remark(&shared)),
        Line::new("engine-latency", "8 B one way over kernel TCP")
            .figure(Quantity::of(format!("one way, {place}"), &tcp.values, Unit::Ns))
            .floors(&tcp.floors)
            .against(Quantity::of("under Motet", &engine.values, Unit::Ns), &tcp.over(engine))
            .with_motet(WithMotet::Reference),
    ])
}

/// Row `engine-bandwidth`.
pub fn bandwidth(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let (engine, plain) = (bench.worker(&["stream", "engine"]), bench.worker(&["stream", "tcp"]));
    let mut lines = Vec::new();
    for (size, name) in [(65536, "64 KiB"), (1 << 20, "1 MiB")] {
        let arguments = call(bench, size, &[]);
        let time = Duration::from_millis(bench.ms as u64);
        let copy = |size: usize| move |turn: usize| Ok(floor::copy(bench.cpus.pair[turn % 2], size, 1, time) * 1e9);
        let mut shared = Vec::new();
        let mut measurements: Vec<Measurement<'_>> = vec![
            Box::new(|turn| engine_once(bench, &engine, turn, &arguments, &mut shared)),
            // 64 KiB and its copy fit in the cache of the core; that is the bound for both sizes.
            Box::new(copy(65536)),
            Box::new(copy(size)),
            Box::new(|turn| single_copy(bench, turn, false, size, 1, time)),
            Box::new(|turn| once(bench, &plain, One, turn, &arguments)),
            Box::new(|turn| once(bench, &plain, Two, turn, &arguments)),
        ];
        let series = bench.compare(bench.repetitions, false, &mut measurements)?;
        drop(measurements);
        let (tcp, place) = better(&series[4], &series[5]);
        let [engine, in_cache, same, single] =
            [rates(&series[0], size), rates(&series[1], 65536), rates(&series[2], size), rates(&series[3], size)];
        let tcp = rates(tcp, size);
        let figure = || Quantity::of("bandwidth", &engine.values, Unit::GBs);
        lines.push(
            Line::new("engine-bandwidth", format!("engine stream, {name} messages, buffers reused"))
                .figure(figure())
                .floors(&engine.floors)
                .against(Quantity::of("in-cache copy, one core", &in_cache.values, Unit::GBs), &engine.over(&in_cache))
                .bound(Bound::AtLeast(0.7))
                .note(shared_memory_remark(&shared)),
        );
        lines.push(
            Line::new("engine-bandwidth", format!("engine stream, {name} messages, against a copy of {name}"))
                .figure(figure())
                .floors(&engine.floors)
                .against(
                    Quantity::of(format!("copy of {name}, one core"), &same.values, Unit::GBs),
                    &engine.over(&same),
                ),
        );
        let single_copy = Quantity::of("process_vm_readv alone", &single.values, Unit::GBs);
        lines.push(
            Line::new("engine-bandwidth", format!("engine stream, {name} messages, against the kernel's single copy"))
                .figure(figure())
                .floors(&engine.floors)
                .against(single_copy, &engine.over(&single)),
        );
        lines.push(
            Line::new("engine-bandwidth", format!("engine stream, {name} messages, against kernel TCP"))
                .figure(figure())
                .floors(&engine.floors)
                .against(Quantity::of(format!("kernel TCP, {place}"), &tcp.values, Unit::GBs), &engine.over(&tcp)),
        );
    }
    Ok(lines)
}

/// Row `engine-cold`.
pub fn cold(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    const SIZE: usize = 64 << 20;
    const BUFFERS: usize = 4;
    let ms = bench.ms.max(100);
    let (engine, plain) = (bench.worker(&["stream", "engine"]), bench.worker(&["stream", "tcp"]));
    let arguments: Vec<String> = [SIZE, ms, BUFFERS].iter().map(ToString::to_string).collect();
    let time = Duration::from_millis(ms as u64);
    let mut shared = Vec::new();
    let mut measurements: Vec<Measurement<'_>> = vec![
        Box::new(|turn| engine_once(bench, &engine, turn, &arguments, &mut shared)),
        Box::new(|turn| single_copy(bench, turn, false, SIZE, BUFFERS, time)),
        Box::new(|turn| single_copy(bench, turn, true, SIZE, BUFFERS, time)),
        Box::new(|turn| once(bench, &plain, One, turn, &arguments)),
        Box::new(|turn| once(bench, &plain, Two, turn, &arguments)),
    ];
    let series = bench.compare(bench.repetitions, false, &mut measurements)?;
    drop(measurements);
    let [engine, read, write, one, two] = &series[..] else { unreachable!() };
    let best: Vec<f64> = read.values.iter().zip(&write.values).map(|(r, w)| rate(SIZE)(&r.min(*w))).collect();
    let (tcp, place) = better(one, two);
    let (engine, tcp) = (rates(engine, SIZE), rates(tcp, SIZE));
    let ratios: Vec<f64> = engine.values.iter().zip(&best).map(|(e, b)| e / b).collect();
    let figure = || Quantity::of("bandwidth", &engine.values, Unit::GBs);
    Ok(vec![
        Line::new("engine-cold", "engine stream, 64 MiB messages, distinct cold buffers")
            .figure(figure())
            .floors(&engine.floors)
            .against(Quantity::of("process_vm_readv or writev, the better", &best, Unit::GBs), &ratios)
            .bound(Bound::AtLeast(1.0))
            .note(shared_memory_remark(&shared)),
        Line::new("engine-cold", "engine stream, 64 MiB messages, against kernel TCP")
            .figure(figure())
            .floors(&engine.floors)
            .against(Quantity::of(format!("kernel TCP, {place}"), &tcp.values, Unit::GBs), &engine.over(&tcp)),
    ])
}

/// The time of one copy between this process and one that only holds memory, ns.
fn single_copy(bench: &Bench, turn: usize, write: bool, size: usize, buffers: usize, time: Duration) -> Result<f64> {
    let mut command = bench.worker(&["hold"]).command(0, "serve");
    command.args([size.to_string(), buffers.to_string()]);
    let mut holder = Process::start(command, &bench.cpus, Some(bench.cpus.pair[1 - turn % 2]))?;
    let line = holder.line()?;
    let addresses: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let pid = holder.child.id();
    let mut own = vec![vec![1u8; size]; buffers];
    let mut failed = None;
    let copy = |i: usize| {
        let (own, there) = (&mut own[i % buffers], addresses[i % buffers]);
        let copied = if write {
            motet_sys::process_vm::write_to(pid, there, own)
        } else {
            motet_sys::process_vm::read_from(pid, there, own)
        };
        match copied {
            Ok(n) if n == size => {}
            Ok(_) => failed = Some(std::io::ErrorKind::UnexpectedEof.into()),
            Err(errno) => failed = Some(std::io::Error::from_raw_os_error(errno)),
        }
    };
    let seconds = bench.cpus.on(Some(bench.cpus.pair[turn % 2]), || floor::in_blocks(size, time, copy));
    match failed {
        Some(error) => Err::<f64, std::io::Error>(error).context("single copy"),
        None => Ok(seconds * 1e9),
    }
}
