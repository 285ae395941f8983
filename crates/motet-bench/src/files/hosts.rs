//! Remote files between two test hosts: a client and a mount, beside a TCP connection and sshfs between the same hosts.

use super::fio::{self, Job};
use super::scene::{FILE, FILE_BYTES, LIMIT, TMPFS, ask};
use super::sshfs::SshServer;
use crate::bench::{Bench, Measurement, Series};
use crate::cleanup;
use crate::hosts::Hosts;
use crate::measure::{call, once};
use crate::pair::Process;
use crate::place::Placement;
use crate::report::{Bound, Line, Quantity, Unit};
use crate::session::host_scene::HostScene;
use anyhow::{Context, Result, ensure};
use std::cell::RefCell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The least part of the rate of a TCP connection.
const LEAST_OF_TCP: f64 = 0.9;
/// The name of the export.
const EXPORT: &str = "results";
/// Bytes of a long read or write, and of a short one.
const LONG: usize = 1 << 20;
const SHORT: usize = 4 << 10;
/// How long a command may take.
const COMMAND_SECONDS: &str = "60";
/// How long a process may take to end after its file system is unmounted.
const END_LIMIT: Duration = Duration::from_secs(3);
/// Files of the repository that is cloned; each has 4 KiB.
const CLONED_FILES: usize = 300;

/// Two hosts: the server's and the client's.
struct Pair<'a> {
    bench: &'a Bench,
    scene: HostScene,
    /// The exported directory, on the server's host alone.
    data: PathBuf,
}

/// A folder that is mounted on the client's host by a process that stays. It is unmounted when this is dropped, and the process ends.
struct HostMount<'a> {
    pair: &'a Pair<'a>,
    folder: PathBuf,
    process: Process,
}

impl Drop for HostMount<'_> {
    fn drop(&mut self) {
        let _ = self.pair.run(Hosts::NAMES[1], &["umount", "-l", &self.folder.to_string_lossy()]);
        let began = Instant::now();
        while matches!(self.process.child.try_wait(), Ok(None)) && began.elapsed() < END_LIMIT {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Part `hosts`.
pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    let scene = HostScene::of(bench, &Hosts::NAMES)?;
    scene.begin()?;
    let pair = Pair { bench, scene, data: Path::new(TMPFS).join("data") };
    let _server = pair.serve()?;
    let mut lines = pair.client()?;
    lines.extend(pair.mounted()?);
    Ok(lines)
}

impl Pair<'_> {
    /// Makes the file, and starts the server.
    fn serve(&self) -> Result<Process> {
        let make = format!("mkdir {0} && head -c {FILE_BYTES} /dev/urandom > {0}/{FILE}", self.data.display());
        self.run(Hosts::NAMES[0], &["sh", "-c", &make])?;
        let more = ["export".into(), self.data.clone().into(), "--as".into(), EXPORT.into()];
        let mut server = self.start(0, [&[self.scene.motet().as_os_str().to_owned()], &more[..]].concat())?;
        let line = server.line_within(LIMIT)?;
        ensure!(line.contains("is exported as"), "motet export: {line}");
        Ok(server)
    }

    /// Starts a process of the server's (0) or the client's end (1), on its CPU.
    fn start(&self, end: usize, words: Vec<OsString>) -> Result<Process> {
        let all = [self.scene.words(Hosts::NAMES[end]), words].concat();
        let mut command = Command::new(&all[0]);
        command.args(&all[1..]).env_remove("LD_PRELOAD");
        Process::start(command, &self.bench.cpus, self.bench.cpus.of(Placement::Two, 0)[end])
    }

    /// A command in the namespace in which a host's mounts are. It ends after [`COMMAND_SECONDS`].
    fn on(&self, host: &str) -> Command {
        let mut command = self.scene.on(host);
        command.args(["timeout", "-k", "5", COMMAND_SECONDS]);
        command
    }

    /// Runs a command as [`Pair::on`] does; it must succeed.
    fn run(&self, host: &str, words: &[&str]) -> Result<()> {
        let output = cleanup::output(self.on(host).args(words))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}", words[0], said.lines().last().unwrap_or_default());
        Ok(())
    }

    /// The client in one thread.
    fn client(&self) -> Result<Vec<Line>> {
        let bench = self.bench;
        let words = bench.worker(&["files", "client", "messages", EXPORT, &FILE_BYTES.to_string()]).words;
        let worker = RefCell::new(self.start(1, words)?);
        let asked = |operation: &str, size: usize| {
            Ok(ask(&mut worker.borrow_mut(), &format!("{operation} {size} {}", bench.ms))?[0])
        };
        let [stream, ping] = ["stream", "ping"].map(|kind| self.scene.hosts().spread(bench.worker(&[kind, "tcp"])));
        let series = bench.compare(
            bench.repetitions,
            false,
            &mut [
                Box::new(|_| asked("read", LONG)),
                Box::new(|_| asked("write", LONG)),
                Box::new(|_| once(bench, &stream, Placement::Two, 0, &call(bench, LONG, &[]))),
                Box::new(|_| asked("random-read", SHORT)),
                Box::new(|_| Ok(2.0 * once(bench, &ping, Placement::Two, 0, &call(bench, 64, &[]))?)),
            ],
        )?;
        let rates = |at: usize| rates(&series[at], LONG);
        let counts = |at: usize| series[at].values.iter().map(|ns| 1e9 / ns).collect::<Vec<f64>>();
        let long = |what: &str, at: usize| {
            Line::new("hosts", format!("1 MiB {what}, one thread, between test hosts"))
                .figure(Quantity::of("client over TCP", &rates(at), Unit::GBs))
                .floors(&series[at].floors)
                .against(Quantity::of("TCP connection", &rates(2), Unit::GBs), &series[2].over(&series[at]))
        };
        Ok(vec![
            long("sequential read", 0).bound(Bound::AtLeast(LEAST_OF_TCP)),
            long("sequential write", 1),
            Line::new("hosts", "4 KiB random read, one thread, between test hosts")
                .figure(Quantity::of("client over TCP", &counts(3), Unit::PerSecond))
                .floors(&series[3].floors)
                .against(
                    Quantity::of("TCP round trips of 64 B", &counts(4), Unit::PerSecond),
                    &series[4].over(&series[3]),
                ),
        ])
    }

    /// fio and git on the mounted export, beside sshfs and TCP.
    fn mounted(&self) -> Result<Vec<Line>> {
        ensure!(Path::new("/dev/fuse").exists(), "SKIPPED: no /dev/fuse");
        let at = self.scene.folder().join("mount");
        let motet = self.scene.motet().as_os_str().to_owned();
        let words = [motet, "mount".into(), "--foreground".into(), EXPORT.into(), at.clone().into()];
        let _mount = self.mount(&at, &words)?;
        let mut folders = vec![at];
        let at = self.scene.folder().join("sshfs");
        let sshfs = SshServer::start(&self.scene.words(Hosts::NAMES[0])).and_then(|server| {
            let mounted = self.mount(&at, &server.mount_words(self.scene.hosts().address(), &self.data, &at))?;
            Ok((mounted, server))
        });
        folders.extend(sshfs.iter().map(|_| at.clone()));
        let mut lines = Vec::new();
        for job in fio::JOBS.iter().filter(|job| !job.arguments.contains(&"--direct=1")) {
            lines.extend(self.fio(job, &folders)?);
        }
        lines.push(self.git(&folders)?);
        if let Err(error) = sshfs {
            lines.push(Line::not_measured("hosts", "beside sshfs", format!("{error:#}")));
        }
        Ok(lines)
    }

    /// Mounts on the client's host by a command that stays.
    fn mount(&self, at: &Path, words: &[OsString]) -> Result<HostMount<'_>> {
        std::fs::create_dir(at)?;
        let mut command = self.scene.on(Hosts::NAMES[1]);
        command.args(words);
        let mut process = Process::start(command, &self.bench.cpus, None)?;
        let began = Instant::now();
        let is_mounted = || {
            let words = ["grep", "-q", &format!(" {} fuse", at.display()), "/proc/self/mounts"];
            self.run(Hosts::NAMES[1], &words).is_ok()
        };
        while !is_mounted() {
            if process.child.try_wait()?.is_some() {
                process.line()?; // the error is what it has said
                anyhow::bail!("{} ends before it is mounted", at.display());
            }
            ensure!(began.elapsed() < LIMIT, "{} does not get mounted", at.display());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(HostMount { pair: self, folder: at.to_owned(), process })
    }

    fn fio(&self, job: &Job, folders: &[PathBuf]) -> Result<Vec<Line>> {
        let bench = self.bench;
        let stream = self.scene.hosts().spread(bench.worker(&["stream", "tcp"]));
        let seconds = if bench.quick { 1 } else { 4 };
        let mut measurements: Vec<Measurement<'_>> = folders
            .iter()
            .map(|folder| -> Measurement<'_> {
                let words = job.words(&folder.join(FILE), FILE_BYTES, seconds);
                Box::new(move |_| job.run(self.on(Hosts::NAMES[1]).args(&words)))
            })
            .collect();
        if job.is_long() {
            measurements.push(Box::new(|_| {
                let ns = once(bench, &stream, Placement::Two, 0, &call(bench, LONG, &[]))?;
                Ok(LONG as f64 / ns)
            }));
        }
        let series = bench.compare(bench.of_programs, false, &mut measurements)?;
        let quantity = |name: &str, at: usize| Quantity::of(name, &series[at].values, job.unit());
        let line = |beside: &str, at: usize| {
            Line::new("hosts", format!("fio, {}, between test hosts", job.what))
                .figure(quantity("mounted over TCP", 0))
                .floors(&series[0].floors)
                .against(quantity(beside, at), &series[0].over(&series[at]))
        };
        let mut lines = Vec::new();
        if folders.len() > 1 {
            lines.push(line("sshfs", 1));
        }
        if job.is_long() {
            let line = line("TCP connection", folders.len());
            lines.push(if job.reads { line.bound(Bound::AtLeast(LEAST_OF_TCP)) } else { line });
        } else if folders.len() == 1 {
            lines.push(Line::new("hosts", format!("fio, {}", job.what)).figure(quantity("mounted over TCP", 0)));
        }
        Ok(lines)
    }

    /// `git clone` from a folder of the client's host into the mounted folder.
    fn git(&self, folders: &[PathBuf]) -> Result<Line> {
        let repository = self.scene.folder().join("repository");
        let make = format!(
            "set -e; export HOME={0}; git init -q {0}/repository; cd {0}/repository; \
             for at in $(seq {CLONED_FILES}); do mkdir -p folder-$((at % 20)); head -c 3072 /dev/urandom | base64 > folder-$((at % 20))/file-$at; done; \
             git add .; git -c user.email=bench@localhost -c user.name=bench commit -qm first",
            self.scene.folder().display()
        );
        self.run(Hosts::NAMES[1], &["sh", "-c", &make]).context("a repository of git")?;
        let mut measurements: Vec<Measurement<'_>> = folders
            .iter()
            .map(|folder| -> Measurement<'_> {
                let (from, to) =
                    (format!("file://{}", repository.display()), folder.join("clone").display().to_string());
                Box::new(move |_| {
                    let began = Instant::now();
                    self.run(Hosts::NAMES[1], &["git", "clone", "-q", &from, &to])?;
                    let taken = began.elapsed().as_secs_f64();
                    self.run(Hosts::NAMES[1], &["rm", "-rf", &to])?;
                    Ok(taken)
                })
            })
            .collect();
        let series = self.bench.compare(self.bench.of_programs, false, &mut measurements)?;
        let line = Line::new("hosts", format!("git clone of {CLONED_FILES} files, time, between test hosts"))
            .figure(Quantity::of("mounted over TCP", &series[0].values, Unit::Seconds));
        Ok(match series.get(1) {
            Some(sshfs) => line.against(Quantity::of("sshfs", &sshfs.values, Unit::Seconds), &series[0].over(sshfs)),
            None => line,
        })
    }
}

/// Rates in GB/s, from times of one operation in ns.
fn rates(series: &Series, size: usize) -> Vec<f64> {
    series.values.iter().map(crate::measure::rate(size)).collect()
}
