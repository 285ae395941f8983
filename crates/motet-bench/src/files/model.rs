//! The cost model of Goglin, Gluck and Vicat-Blanc Primet (2008): the time of a read is T = client + network + server + disk, and each of these is storage
//! (the file interface), data (what grows with the size), and control (what a request costs whatever its size).
//!
//! Each cell is measured by itself in each repetition, or is the difference of totals of the same repetition; together they are exactly the time of a read of a
//! mounted file with `O_DIRECT`. Reads are at random places, one at a time. A cell below zero says that parts overlap.

use super::curves;
use super::scene::{FILE_BYTES, LIMIT, Scene, Way, ask};
use crate::bench::{Bench, Measurement, Series};
use crate::format::bytes;
use crate::pair::Process;
use crate::place::Placement;
use crate::report::{Curve, Line, Quantity, Unit};
use anyhow::{Context, Result};
use std::cell::RefCell;

const SIZES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
/// Bytes of a read whose data cost nothing.
const SMALL: usize = 8;

/// What is measured at each size: by system calls on the directory, by the server's code in this process, by an exchange of the engine, by messages, mounted.
const WAYS: usize = 5;
const LOCAL: usize = 0;
const DIRECT: usize = 1;
const EXCHANGE: usize = 2;
const MESSAGES: usize = 3;
const MOUNTED: usize = 4;

/// A cell of the table: where, which kind, what it is, and its terms: sign, way, and whether at the small size.
type Cell = (&'static str, &'static str, &'static str, &'static [(f64, usize, bool)]);

const CELLS: [Cell; 9] = [
    ("client", "storage", "the kernel's passage: VFS and FUSE", &[(1.0, MOUNTED, false), (-1.0, MESSAGES, false)]),
    (
        "client",
        "data",
        "the rest that grows with the size",
        &[
            (1.0, MESSAGES, false),
            (-1.0, MESSAGES, true),
            (-1.0, EXCHANGE, false),
            (1.0, EXCHANGE, true),
            (-1.0, DIRECT, false),
            (1.0, DIRECT, true),
        ],
    ),
    (
        "client",
        "control",
        "requests and answers at both ends",
        &[(1.0, MESSAGES, true), (-1.0, EXCHANGE, true), (-1.0, DIRECT, true)],
    ),
    ("network", "data", "the engine, for the bytes", &[(1.0, EXCHANGE, false), (-1.0, EXCHANGE, true)]),
    ("network", "control", "the engine, there and back", &[(1.0, EXCHANGE, true)]),
    (
        "server",
        "data",
        "its code, for the bytes",
        &[(1.0, DIRECT, false), (-1.0, DIRECT, true), (-1.0, LOCAL, false), (1.0, LOCAL, true)],
    ),
    ("server", "control", "its code, for a request", &[(1.0, DIRECT, true), (-1.0, LOCAL, true)]),
    ("disk", "storage", "pread of the exported file", &[(1.0, LOCAL, true)]),
    ("disk", "data", "copy out of the page cache", &[(1.0, LOCAL, false), (-1.0, LOCAL, true)]),
];

/// Part `model`.
pub fn measure(bench: &Bench, found: &mut Vec<Curve>) -> Result<Vec<Line>> {
    let scene = Scene::new(bench)?;
    let mut lines = table(bench, &scene)?;
    match curves::measure(bench, &scene) {
        Ok(curves) => found.extend(curves),
        Err(error) => lines.push(Line::not_measured("model", "plots", format!("{error:#}"))),
    }
    Ok(lines)
}

/// The table, a line for each of its cells and sizes.
fn table(bench: &Bench, scene: &Scene) -> Result<Vec<Line>> {
    let [server, caller] = bench.cpus.of(Placement::Two, 0);
    let _servers = [scene.serve(bench, Way::Messages, server)?, scene.serve(bench, Way::Direct, server)?];
    let mut echo = scene.worker(bench, &["echo"], server)?;
    let address =
        echo.line_within(LIMIT)?.strip_prefix("address ").context("a worker did not print its address")?.to_owned();
    let (data, file_bytes) = (scene.data().display().to_string(), FILE_BYTES.to_string());
    let start = |words: &[&str]| Ok::<_, anyhow::Error>(RefCell::new(scene.worker(bench, words, caller)?));
    let mount = scene.mount(bench, Way::Messages);
    let mut workers = vec![
        start(&["client", "local", &data, &file_bytes])?,
        start(&["client", "direct", Way::Direct.export(), &file_bytes])?,
        start(&["exchange", &address])?,
        start(&["client", "messages", Way::Messages.export(), &file_bytes])?,
    ];
    if let Ok(mount) = &mount {
        workers.push(start(&["client", "uncached", &mount.folder.display().to_string(), &file_bytes])?);
    }
    let ask_all = |sizes: &[usize]| -> Result<Vec<Series>> {
        let questions: Vec<String> = sizes.iter().map(|size| format!("random-read {size} {}", bench.ms)).collect();
        let timed = |worker: &RefCell<Process>, question: &str| Ok(ask(&mut worker.borrow_mut(), question)?[0]);
        let timed = &timed;
        let mut measurements: Vec<Measurement<'_>> = questions
            .iter()
            .flat_map(|question| {
                workers.iter().map(move |worker| -> Measurement<'_> { Box::new(move |_| timed(worker, question)) })
            })
            .collect();
        bench.compare(bench.repetitions, false, &mut measurements)
    };
    let mut lines = Vec::new();
    for size in SIZES {
        let series = ask_all(&[size, SMALL])?;
        let (at_size, at_small) = series.split_at(workers.len());
        let of = |way: usize, small: bool| &(if small { at_small } else { at_size })[way].values[..];
        let (name, total) = if workers.len() == WAYS {
            ("mounted, O_DIRECT", of(MOUNTED, false))
        } else {
            ("by messages", of(MESSAGES, false))
        };
        for (place, kind, what, terms) in CELLS {
            if terms.iter().any(|&(_, way, _)| way >= workers.len()) {
                continue;
            }
            let value = |at: usize| terms.iter().map(|&(sign, way, small)| sign * of(way, small)[at]).sum::<f64>();
            let values: Vec<f64> = (0..total.len()).map(value).collect();
            let shares: Vec<f64> = values.iter().zip(total).map(|(part, total)| part / total).collect();
            lines.push(
                Line::new("model", format!("read of {}: {place}, {kind}", bytes(size)))
                    .figure(Quantity::of(what, &values, Unit::Ns))
                    .against(Quantity::of(format!("total, {name}"), total, Unit::Ns), &shares)
                    .floors(&at_size[MESSAGES].floors),
            );
        }
    }
    if let Err(error) = mount {
        lines.push(Line::not_measured("model", "client, storage", format!("{error:#}")));
    }
    Ok(lines)
}
