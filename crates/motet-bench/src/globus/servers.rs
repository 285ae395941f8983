//! One host: server to server, and a client's download.

use super::site::{Programs, Way};
use crate::bench::{Bench, Measurement, Series};
use crate::cleanup;
use crate::files::scene::{Server, TMPFS};
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// The least rate of the driver over TCP's, server to server.
const LEAST_OF_SERVERS: f64 = 3.0;
/// The least rate of a client's download under `motet run` over TCP's.
const LEAST_OF_CLIENT: f64 = 1.5;

/// A folder on the tmpfs with a file, and its size.
struct Files {
    folder: TempDir,
    bytes: u64,
}

impl Files {
    fn new(bench: &Bench) -> Result<Self> {
        let folder = cleanup::folder_in(Path::new(TMPFS)).context("SKIPPED: no tmpfs at /dev/shm")?;
        let files = Self { folder, bytes: if bench.quick { 256 << 20 } else { 1 << 30 } };
        let make = format!("head -c {} /dev/urandom > {}", files.bytes, files.path("source"));
        let made = cleanup::output(Command::new("sh").args(["-c", &make]))?;
        ensure!(made.status.success(), "no room for {} at {TMPFS}", files.size());
        Ok(files)
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn size(&self) -> String {
        format!("{} MiB", self.bytes >> 20)
    }

    /// A copy by cp: what reading and writing the files takes without any transfer.
    fn copied_by_cp(&self) -> Result<f64> {
        let target = self.path("copy");
        let began = std::time::Instant::now();
        let done = cleanup::output(Command::new("cp").args([&self.path("source"), &target]))?;
        let seconds = began.elapsed().as_secs_f64();
        ensure!(done.status.success(), "cp has failed");
        fs::remove_file(target)?;
        Ok(self.bytes as f64 / seconds / 1e9)
    }
}

fn line(row: &str, what: String, series: &Series, name: &str, over: &Series, reference: &str) -> Line {
    let quantity = |name: &str, series: &Series| Quantity::of(name, &series.values, Unit::GBs);
    Line::new(row, what)
        .figure(quantity(name, series))
        .floors(&series.floors)
        .against(quantity(reference, over), &series.over(over))
}

/// Part `servers`.
pub fn third_party(bench: &Bench) -> Result<Vec<Line>> {
    let (programs, files) = (Programs::find(bench)?, Files::new(bench)?);
    let ways = [Way::Driver, Way::Run, Way::Tcp];
    let mut servers: Vec<[(Server, u16); 2]> = Vec::new();
    for way in ways {
        servers.push([programs.serve(way, &[], true)?, programs.serve(way, &[], true)?]);
    }
    let url = |way: usize, end: usize, path: &str| format!("ftp://127.0.0.1:{}{path}", servers[way][end].1);
    let on_files = |way: usize| {
        let target = files.path("target");
        let urls = [url(way, 0, &files.path("source")), url(way, 1, &target)];
        let rate = programs.copy(Way::Tcp, &[], &[&urls[0], &urls[1]], files.bytes)?;
        let copied = fs::metadata(&target)?.len();
        fs::remove_file(target)?;
        ensure!(copied == files.bytes, "the copy has {copied} bytes");
        Ok(rate)
    };
    // Without files a transfer is short beside the start of its processes.
    let bytes = 4 * files.bytes;
    let without_files = |way: usize| {
        let (length, urls) = (bytes.to_string(), [url(way, 0, "/dev/zero"), url(way, 1, "/dev/null")]);
        programs.copy(Way::Tcp, &[], &["-len", &length, &urls[0], &urls[1]], bytes)
    };
    let mut measurements: Vec<Measurement<'_>> = Vec::new();
    for way in 0..ways.len() {
        measurements.push(Box::new(move |_| on_files(way)));
    }
    for way in 0..ways.len() {
        measurements.push(Box::new(move |_| without_files(way)));
    }
    measurements.push(Box::new(|_| files.copied_by_cp()));
    let series = bench.compare(bench.of_programs, false, &mut measurements)?;
    let size = files.size();
    let (tmpfs, memory) = (
        format!("{size} from server to server, tmpfs"),
        format!("{} MiB from server to server, /dev/zero to /dev/null", bytes >> 20),
    );
    Ok(vec![
        line("servers", tmpfs.clone(), &series[0], "driver", &series[2], "TCP").bound(Bound::AtLeast(LEAST_OF_SERVERS)),
        line("servers", tmpfs.clone(), &series[1], "motet run", &series[2], "TCP"),
        line("servers", tmpfs, &series[0], "driver", &series[6], "cp of the file, no transfer"),
        line("servers", memory.clone(), &series[3], "driver", &series[5], "TCP")
            .bound(Bound::AtLeast(LEAST_OF_SERVERS)),
        line("servers", memory, &series[4], "motet run", &series[5], "TCP"),
    ])
}

/// Part `client`.
pub fn download(bench: &Bench) -> Result<Vec<Line>> {
    let (programs, files) = (Programs::find(bench)?, Files::new(bench)?);
    let ways = [Way::Run, Way::Tcp];
    let servers = [programs.serve(Way::Run, &[], true)?, programs.serve(Way::Tcp, &[], true)?];
    let targets = [files.path("target"), "/dev/null".to_owned()];
    let download = |way: usize, target: &str| {
        let url = format!("ftp://127.0.0.1:{}{}", servers[way].1, files.path("source"));
        let rate = programs.copy(ways[way], &[], &[&url, &format!("file://{target}")], files.bytes)?;
        if target.starts_with(TMPFS) {
            fs::remove_file(target)?;
        }
        Ok(rate)
    };
    let mut measurements: Vec<Measurement<'_>> = Vec::new();
    for target in &targets {
        for way in 0..ways.len() {
            measurements.push(Box::new(move |_| download(way, target)));
        }
    }
    let series = bench.compare(bench.of_programs, false, &mut measurements)?;
    let what = |to: &str| format!("{} from server to client, tmpfs to {to}", files.size());
    let bound = Bound::AtLeast(LEAST_OF_CLIENT);
    Ok(vec![
        line("client", what("tmpfs"), &series[0], "motet run", &series[1], "TCP").bound(bound),
        line("client", what("/dev/null"), &series[2], "motet run", &series[3], "TCP").bound(bound),
    ])
}
