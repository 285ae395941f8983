//! The cost model of Goglin, Gluck and Vicat-Blanc Primet (2008): the time of a read as a sum of storage, network, and the rest of client and server; and the
//! kernel's passage, by which a mounted file system exceeds a client in the program.
//!
//! Each term is measured by itself in each repetition, or is the difference of two totals of the same repetition. Reads are at random places, one at a time.

use super::scene::{FILE_BYTES, LIMIT, Scene, Way, ask};
use crate::bench::{Bench, Measurement};
use crate::format::bytes;
use crate::pair::Process;
use crate::place::Placement;
use crate::report::{Line, Quantity, Unit};
use anyhow::{Context, Result};
use std::cell::RefCell;

const SIZES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];

/// Part `model`.
pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    let scene = Scene::new(bench)?;
    let [server, caller] = bench.cpus.of(Placement::Two, 0);
    let _server = scene.serve(bench, Way::Messages, server)?;
    let mut echo = scene.worker(bench, &["echo"], server)?;
    let address =
        echo.line_within(LIMIT)?.strip_prefix("address ").context("a worker did not print its address")?.to_owned();
    let (data, file_bytes) = (scene.data().display().to_string(), FILE_BYTES.to_string());
    let start = |words: &[&str]| Ok::<_, anyhow::Error>(RefCell::new(scene.worker(bench, words, caller)?));
    let mount = scene.mount(bench, Way::Messages);
    let mut workers = vec![
        start(&["client", "local", &data, &file_bytes])?,
        start(&["exchange", &address])?,
        start(&["client", "messages", Way::Messages.export(), &file_bytes])?,
    ];
    if let Ok(mount) = &mount {
        workers.push(start(&["client", "uncached", &mount.folder.display().to_string(), &file_bytes])?);
    }
    let mut lines = Vec::new();
    for size in SIZES {
        let question = format!("random-read {size} {}", bench.ms);
        let timed = |worker: &RefCell<Process>| Ok(ask(&mut worker.borrow_mut(), &question)?[0]);
        let mut measurements: Vec<Measurement<'_>> =
            workers.iter().map(|worker| -> Measurement<'_> { Box::new(move |_| timed(worker)) }).collect();
        let series = bench.compare(bench.repetitions, false, &mut measurements)?;
        drop(measurements);
        let of = |at: usize| &series[at].values[..];
        let less = |from: &[f64], parts: &[&[f64]]| -> Vec<f64> {
            (0..from.len()).map(|i| from[i] - parts.iter().map(|part| part[i]).sum::<f64>()).collect()
        };
        let control = less(of(2), &[of(0), of(1)]);
        let mut terms = vec![
            ("storage", "pread of the folder", of(0).to_vec()),
            ("network", "request and answer of the engine", of(1).to_vec()),
            ("client and server", "the rest of a read by messages", control),
        ];
        if series.len() > 3 {
            terms.push(("kernel's passage", "mounted with O_DIRECT, less by messages", less(of(3), &[of(2)])));
        }
        let (name, total) = if series.len() > 3 { ("mounted", of(3)) } else { ("by messages", of(2)) };
        for (term, how, values) in &terms {
            let shares: Vec<f64> = values.iter().zip(total).map(|(part, total)| part / total).collect();
            lines.push(
                Line::new("model", format!("read of {}: {term}", bytes(size)))
                    .figure(Quantity::of(*how, values, Unit::Ns))
                    .against(Quantity::of(format!("total, {name}"), total, Unit::Ns), &shares)
                    .floors(&series[2].floors),
            );
        }
    }
    if let Err(error) = mount {
        lines.push(Line::not_measured("model", "kernel's passage", format!("{error:#}")));
    }
    Ok(lines)
}
