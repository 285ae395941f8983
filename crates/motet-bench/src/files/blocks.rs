//! A file as a disk: by NBD, beside nbdkit; and as a block device of the host, beside a mounted file.

use super::fio::{self, Job};
use super::scene::{FILE, FILE_BYTES, LIMIT, Scene, Server, Way};
use crate::bench::{Bench, Measurement, Series};
use crate::cleanup;
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::{Context, Result, ensure};
use motet_programs::{find, free_port};
use std::cell::RefCell;
use std::ffi::OsString;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How many times as fast as nbdkit random reads are at least.
const LEAST_OVER_NBDKIT: f64 = 2.0;
/// How many times as fast as a mounted file a block device takes short writes at least.
const LEAST_OVER_FILE: f64 = 2.0;
/// The job on a block device and on a mounted file.
const SHORT_WRITES: &str = "4 KiB sequential write";

/// A disk to read: its URI, and whether fio runs under `motet run`.
struct Disk {
    what: &'static str,
    uri: String,
    under_motet: bool,
    /// CPU time of the client for each request, ns.
    cpu: RefCell<Vec<f64>>,
    _server: Server,
}

impl Disk {
    fn new(what: &'static str, (server, uri): (Server, String), under_motet: bool) -> Self {
        Self { what, uri, under_motet, cpu: RefCell::default(), _server: server }
    }
}

/// Part `blocks`. The processes run on any CPU.
pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    find("fio").context("SKIPPED: no fio (package fio)")?;
    let scene = Scene::new(bench)?;
    let mut lines = by_nbd(bench, &scene)
        .unwrap_or_else(|error| vec![Line::not_measured("blocks", "beside nbdkit", format!("{error:#}"))]);
    lines.push(
        device(bench, &scene)
            .unwrap_or_else(|error| Line::not_measured("blocks", "a block device", format!("{error:#}"))),
    );
    Ok(lines)
}

/// fio's engine for NBD, on disks of Motet and of nbdkit.
fn by_nbd(bench: &Bench, scene: &Scene) -> Result<Vec<Line>> {
    find("nbdkit").context("SKIPPED: no nbdkit (package nbdkit)")?;
    let file = scene.data().join(FILE);
    let run = [scene.motet().as_os_str().to_owned(), "run".into(), "--".into()];
    let socket = scene.path("disk.sock").display().to_string();
    let port = free_port()?;
    let disks = [
        Disk::new("motet, Unix socket", scene.block(bench, &[], &file, &["--socket", &socket])?, false),
        Disk::new("nbdkit, Unix socket", nbdkit(scene, &file, None)?, false),
        Disk::new(
            "motet, both ends under motet run",
            scene.block(bench, &run, &file, &["--listen", &format!("127.0.0.1:{port}")])?,
            true,
        ),
        Disk::new("nbdkit, TCP", nbdkit(scene, &file, Some(free_port()?))?, false),
    ];
    let seconds = if bench.quick { 1 } else { 4 };
    let mut lines = Vec::new();
    for job in &fio::OF_DISKS {
        disks.iter().for_each(|disk| disk.cpu.borrow_mut().clear());
        let mut measurements: Vec<Measurement<'_>> = disks
            .iter()
            .map(|disk| -> Measurement<'_> {
                let before = if disk.under_motet { &run[..] } else { &[] };
                Box::new(move |_| {
                    let (figure, cpu) = run_on(scene, job, disk, before, seconds)?;
                    disk.cpu.borrow_mut().push(cpu);
                    Ok(figure)
                })
            })
            .collect();
        let series = bench.compare(bench.of_programs, false, &mut measurements)?;
        drop(measurements);
        for [own, other] in [[0, 1], [2, 3]] {
            let quantity = |at: usize| Quantity::of(disks[at].what, &series[at].values, job.unit());
            let line = Line::new("blocks", format!("fio over NBD, {}", job.what))
                .figure(quantity(own))
                .floors(&series[own].floors)
                .against(quantity(other), &series[own].over(&series[other]));
            let has_target = job.counts && own == 0;
            lines.push(if has_target { line.bound(Bound::AtLeast(LEAST_OVER_NBDKIT)) } else { line });
            let cpu = |at: usize| Quantity::of(disks[at].what, &disks[at].cpu.borrow(), Unit::Ns);
            let ratios: Vec<f64> = disks[own]
                .cpu
                .borrow()
                .iter()
                .zip(&*disks[other].cpu.borrow())
                .map(|(own, other)| own / other)
                .collect();
            lines.push(
                Line::new("blocks", format!("fio over NBD, {}, the client's CPU time for each", job.what))
                    .figure(cpu(own))
                    .against(cpu(other), &ratios),
            );
        }
    }
    Ok(lines)
}

/// Runs fio on a disk.
fn run_on(scene: &Scene, job: &Job, disk: &Disk, before: &[OsString], seconds: usize) -> Result<(f64, f64)> {
    let words = job.words_on_disk(&disk.uri, FILE_BYTES, seconds);
    let all: Vec<OsString> = before.iter().cloned().chain(words.iter().map(OsString::from)).collect();
    let mut command = Command::new(&all[0]);
    command.args(&all[1..]).env_remove("LD_PRELOAD").current_dir(scene.path(""));
    job.run_with_cpu(&mut command)
}

/// nbdkit with a file, at a Unix socket or a port. Returns the URI of its disk, too.
fn nbdkit(scene: &Scene, file: &Path, port: Option<u16>) -> Result<(Server, String)> {
    let socket = scene.path("nbdkit.sock");
    let mut command = Command::new("nbdkit");
    command.arg("--foreground");
    let uri = match port {
        Some(port) => {
            command.args(["--ipaddr", "127.0.0.1", "--port", &port.to_string()]);
            format!("nbd://127.0.0.1:{port}/")
        }
        None => {
            command.arg("--unix").arg(&socket);
            format!("nbd+unix:///?socket={}", socket.display())
        }
    };
    command.arg("file").arg(file).env_remove("LD_PRELOAD");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Server::of(cleanup::start(&mut command)?);
    let began = Instant::now();
    let is_ready = || match port {
        Some(port) => TcpStream::connect(("127.0.0.1", port)).is_ok(),
        None => UnixStream::connect(&socket).is_ok(),
    };
    while !is_ready() {
        ensure!(!server.ended() && began.elapsed() < LIMIT, "nbdkit does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok((server, uri))
}

/// Short writes to a block device, beside those to a mounted file. The kernel caches both; the time includes the synchronisation at the end.
fn device(bench: &Bench, scene: &Scene) -> Result<Line> {
    let job = fio::JOBS.iter().find(|job| job.what == SHORT_WRITES).context("the job")?;
    let disk = scene.path("disk");
    std::fs::copy(scene.data().join(FILE), &disk)?;
    let (_server, device) = scene.block(bench, &[], &disk, &["--connect"]).context("SKIPPED: no block device here")?;
    let _files = scene.serve(bench, Way::Messages, None)?;
    let mount = scene.mount(bench, Way::Messages)?;
    let seconds = if bench.quick { 1 } else { 4 };
    let mut measurements: Vec<Measurement<'_>> = vec![
        Box::new(|_| fio::run(job, Path::new(&device), FILE_BYTES, seconds)),
        Box::new(|_| fio::run(job, &mount.folder.join(FILE), FILE_BYTES, seconds)),
    ];
    let series: Vec<Series> = bench.compare(bench.of_programs, false, &mut measurements)?;
    let quantity = |name: &str, at: usize| Quantity::of(name, &series[at].values, job.unit());
    Ok(Line::new("blocks", format!("fio, {SHORT_WRITES}, cached by the kernel"))
        .figure(quantity("block device", 0))
        .floors(&series[0].floors)
        .against(quantity("mounted, by messages", 1), &series[0].over(&series[1]))
        .bound(Bound::AtLeast(LEAST_OVER_FILE)))
}
