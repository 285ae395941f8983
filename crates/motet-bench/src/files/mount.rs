//! fio on mounted exports, beside the exported directory, sshfs and libfuse's passthrough example.

use super::fio::{self, Job};
use super::passthrough::Passthrough;
use super::scene::{FILE, FILE_BYTES, Mounted, Scene, Way};
use super::sshfs::SshServer;
use crate::bench::{Bench, Measurement, Series};
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::{Result, ensure};
use std::path::{Path, PathBuf};

/// The least rate of bytes of a job of 1 MiB, GB/s.
const LEAST_RATE: f64 = 2.0;
/// The least rate of random reads of 4 KiB, 1/s.
const LEAST_READS: f64 = 80e3;
/// The peer with a target.
const SSHFS: &str = "sshfs";
/// How many times as fast as sshfs random reads are at least.
const LEAST_OVER_SSHFS: f64 = 10.0;

/// Part `mount`. The processes run on any CPU: a mounted file system has three of them.
pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    ensure!(Path::new("/dev/fuse").exists(), "SKIPPED: no /dev/fuse");
    let scene = Scene::new(bench)?;
    let _servers = [scene.serve(bench, Way::Messages, None)?, scene.serve(bench, Way::Direct, None)?];
    let mounts = [scene.mount(bench, Way::Messages)?, scene.mount(bench, Way::Direct)?];
    let sshfs =
        SshServer::start(&[]).and_then(|server| Ok((server.mount(&scene.data(), scene.path("sshfs"))?, server)));
    let mut folders: Vec<PathBuf> = mounts.iter().map(|mount: &Mounted| mount.folder.clone()).collect();
    folders.push(scene.data());
    folders.extend(sshfs.iter().map(|(mount, _)| mount.folder.clone()));
    let passthrough = Passthrough::mount(&scene.data(), scene.path("passthrough"));
    folders.extend(passthrough.iter().map(|other| other.mounted.folder.clone()));
    let peers: Vec<&str> = [(SSHFS, sshfs.is_ok()), ("libfuse passthrough", passthrough.is_ok())]
        .into_iter()
        .filter_map(|(name, is_there)| is_there.then_some(name))
        .collect();
    let seconds = if bench.quick { 1 } else { 4 };
    let mut lines = Vec::new();
    for job in &fio::JOBS {
        let mut measurements: Vec<Measurement<'_>> = folders
            .iter()
            .map(|folder| -> Measurement<'_> {
                Box::new(move |_| fio::run(job, &folder.join(FILE), FILE_BYTES, seconds))
            })
            .collect();
        let series = bench.compare(bench.of_programs, false, &mut measurements)?;
        drop(measurements);
        lines.extend(of_job(job, &series, &peers));
    }
    let errors = [("beside sshfs", sshfs.err()), ("beside libfuse passthrough", passthrough.err())];
    for (what, error) in errors.into_iter().filter_map(|(what, error)| Some((what, error?))) {
        lines.push(Line::not_measured("mount", what, format!("{error:#}")));
    }
    Ok(lines)
}

/// The lines of a job: by messages, direct, in the folder, by the peers that are there.
fn of_job(job: &Job, series: &[Series], peers: &[&str]) -> Vec<Line> {
    let quantity = |name: &str, series: &Series| Quantity::of(name, &series.values, job.unit());
    let line = |what: String, way: &str, series: &Series| {
        Line::new("mount", what).figure(quantity(way, series)).floors(&series.floors)
    };
    let mut lines = Vec::new();
    for (way, mounted) in [("by messages", &series[0]), ("the directory itself", &series[1])] {
        lines.push(
            line(format!("fio, {}", job.what), way, mounted)
                .against(quantity("local tmpfs", &series[2]), &mounted.over(&series[2])),
        );
        // A line has one bound: that of the rate has no reference.
        let least = match (job.unit(), job.is_long()) {
            (Unit::PerSecond, _) => Some((LEAST_READS, "rate")),
            (_, true) => Some((LEAST_RATE, "rate")),
            _ => None,
        };
        lines.extend(least.map(|(least, name)| {
            line(format!("fio, {}, {name}", job.what), way, mounted).bound(Bound::AtLeast(least))
        }));
        for (&peer, other) in peers.iter().zip(&series[3..]) {
            let line =
                line(format!("fio, {}", job.what), way, mounted).against(quantity(peer, other), &mounted.over(other));
            let has_target = job.counts && peer == SSHFS;
            lines.push(if has_target { line.bound(Bound::AtLeast(LEAST_OVER_SSHFS)) } else { line });
        }
    }
    lines
}
