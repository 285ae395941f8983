//! A client and a disk between two test hosts, over a link of one rate, beside a TCP connection over the same link: how much of the link long reads use.

use super::fio;
use super::scene::{TMPFS, ask};
use super::stripes::{LINK_RATE, serve, shape, start};
use crate::bench::{Bench, Measurement};
use crate::cleanup;
use crate::hosts::Hosts;
use crate::measure::once;
use crate::place::Placement;
use crate::report::{Bound, Line, Quantity, Unit};
use crate::session::host_scene::HostScene;
use anyhow::{Context, Result};
use std::cell::RefCell;
use std::ffi::OsString;

/// The least part of the rate of a TCP connection.
const LEAST: f64 = 0.95;
/// Bytes of a read.
const SIZE: usize = 1 << 20;
/// Bytes of the file and of the disk.
const FILE_BYTES: usize = 64 << 20;
/// How many times as long as others these measurements are.
const TIMES: usize = 20;
/// The name of the export.
const EXPORT: &str = "results";

/// Part `link`.
pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    let scene = HostScene::of(bench, &Hosts::NAMES)?;
    let [near, far] = Hosts::NAMES;
    shape(&scene, near, far)?;
    shape(&scene, far, near)?;
    scene.begin()?;
    let _files = serve(bench, &scene, near, EXPORT, &[])?;
    let words = bench.worker(&["files", "client", "new", EXPORT, &FILE_BYTES.to_string()]).words;
    let worker = RefCell::new(start(bench, &scene, far, words)?);
    // Random bytes: a hole would not be sent.
    let make = format!(
        "head -c {FILE_BYTES} /dev/urandom > {TMPFS}/disk && exec \"$0\" export --block {TMPFS}/disk --listen {}:0",
        scene.hosts().address()
    );
    let words = ["bash".into(), "-c".into(), OsString::from(make), scene.motet().as_os_str().to_owned()];
    let mut disk = start(bench, &scene, near, words.to_vec())?;
    let uri = disk.line()?;
    let job = fio::OF_DISKS.iter().find(|job| !job.counts).context("the job")?;
    let seconds = if bench.quick { 1 } else { 4 };
    let read = job.words_on_disk(&uri, FILE_BYTES, seconds);
    let ms = TIMES * bench.ms;
    let stream = scene.hosts().spread(bench.worker(&["stream", "tcp"]));
    let mut measurements: Vec<Measurement<'_>> = vec![
        Box::new(|_| Ok(SIZE as f64 / ask(&mut worker.borrow_mut(), &format!("read {SIZE} {ms}"))?[1])),
        Box::new(|_| Ok(SIZE as f64 / ask(&mut worker.borrow_mut(), &format!("write {SIZE} {ms}"))?[1])),
        Box::new(|_| {
            let mut command = scene.on(far);
            job.run(command.args(["timeout", "-k", "5", "60"]).args(&read))
        }),
        Box::new(|_| {
            let arguments = [SIZE.to_string(), ms.to_string()];
            Ok(SIZE as f64 / once(bench, &stream, Placement::Two, 0, &arguments)?)
        }),
    ];
    let series = bench.compare(bench.of_programs, false, &mut measurements)?;
    drop(measurements);
    cleanup::block_while_ending();
    let quantity = |name: &str, at: usize| Quantity::of(name, &series[at].values, Unit::GBs);
    let line = |what: &str, name: &str, at: usize| {
        Line::new("link", format!("{what}, link of {LINK_RATE}"))
            .figure(quantity(name, at))
            .floors(&series[at].floors)
            .against(quantity("TCP connection", 3), &series[at].over(&series[3]))
    };
    Ok(vec![
        line("1 MiB sequential read, one thread", "client over TCP", 0),
        line("1 MiB sequential write, one thread", "client over TCP", 1),
        line("fio over NBD, 1 MiB sequential read, 4 outstanding", "motet", 2).bound(Bound::AtLeast(LEAST)),
    ])
}
