//! File servers of other projects with and without `motet run`: NFS-Ganesha, Samba, gluster. Client and server are unmodified, of this host, and speak over TCP.

use super::fio::{self, Job};
use super::scene::{FILE, FILE_BYTES, LIMIT, Mounted, Scene, Server, Way};
use crate::bench::{Bench, Measurement, Series};
use crate::cleanup;
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::{Context, Result, ensure};
use motet_programs::{find, free_port, is_root, shares};
use std::ffi::OsString;
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How many times as fast as gluster random reads by the preload object are at least.
const LEAST_OVER_GLUSTER: f64 = 5.0;
/// The jobs of fio on a mounted volume.
const JOBS: [&str; 3] = ["1 MiB sequential read", "1 MiB sequential write", "4 KiB random read"];
/// The job of [`LEAST_OVER_GLUSTER`].
const RANDOM_READ: &str = JOBS[2];

/// A way to start programs: by `motet run`, or as they are.
struct Starter<'a> {
    scene: &'a Scene,
    before: Vec<OsString>,
    /// A folder for the files of its programs.
    folder: PathBuf,
}

impl<'a> Starter<'a> {
    /// With Motet, and without.
    fn both(scene: &'a Scene) -> Result<[Self; 2]> {
        let run = vec![scene.motet().as_os_str().to_owned(), "run".into(), "--".into()];
        let made = |name: &str, before: Vec<OsString>| -> Result<Self> {
            let folder = scene.path(name);
            std::fs::create_dir(&folder)?;
            Ok(Self { scene, before, folder })
        };
        Ok([made("with", run)?, made("without", Vec::new())?])
    }

    /// A path of its own.
    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Makes a file.
    fn file(&self, name: &str, text: String) -> Result<String> {
        let path = self.path(name);
        std::fs::write(&path, text)?;
        Ok(path)
    }

    /// Makes a folder.
    fn folder(&self, name: &str) -> Result<String> {
        let path = self.path(name);
        std::fs::create_dir(&path)?;
        Ok(path)
    }

    fn command(&self, words: &[String]) -> Command {
        let all: Vec<OsString> = self.before.iter().cloned().chain(words.iter().map(OsString::from)).collect();
        let mut command = Command::new(&all[0]);
        command.args(&all[1..]).env_remove("LD_PRELOAD").current_dir(&self.folder);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Starts a server, and waits until it listens.
    fn serve(&self, words: &[String], port: u16) -> Result<Server> {
        // Some end their process group with themselves.
        let mut server = Server::of(cleanup::start(self.command(words).process_group(0))?);
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(!server.ended() && began.elapsed() < LIMIT, "{} does not start", words[0]);
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Runs a client. Returns the rate of the bytes of [`FILE`], GB/s.
    fn rate(&self, words: &[String]) -> Result<f64> {
        let began = Instant::now();
        let output = cleanup::start(self.command(words).stderr(Stdio::piped()))?.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}", words[0], said.lines().last().unwrap_or_default());
        Ok(FILE_BYTES as f64 / began.elapsed().as_nanos() as f64)
    }
}

/// Why the servers cannot be measured here, if so.
fn check(programs: &[&str]) -> Result<()> {
    ensure!(is_root(), "SKIPPED: the servers need root");
    for program in programs {
        find(program).with_context(|| format!("SKIPPED: no {program} (tests/programs/packages.txt)"))?;
    }
    Ok(())
}

/// A line of rates with and without Motet.
fn line(row: &str, what: &str, series: [&Series; 2], unit: Unit) -> Line {
    let quantity = |name: &str, series: &Series| Quantity::of(name, &series.values, unit);
    Line::new(row, what)
        .figure(quantity("under motet run", series[0]))
        .floors(&series[0].floors)
        .against(quantity("over TCP", series[1]), &series[0].over(series[1]))
}

/// Measures commands of clients, one for each starter.
fn rates(bench: &Bench, commands: &[(&Starter<'_>, Vec<String>)]) -> Result<Vec<Series>> {
    let mut measurements: Vec<Measurement<'_>> =
        commands.iter().map(|(starter, words)| -> Measurement<'_> { Box::new(move |_| starter.rate(words)) }).collect();
    bench.compare(bench.of_programs, false, &mut measurements)
}

/// Part `smb`.
pub fn samba(bench: &Bench) -> Result<Vec<Line>> {
    check(&["smbd", "smbclient"])?;
    let scene = Scene::new(bench)?;
    let starters = Starter::both(&scene)?;
    let mut servers = Vec::new();
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for starter in &starters {
        let port = free_port()?;
        let data = scene.data().display().to_string();
        let configuration =
            starter.file("smb.conf", shares::samba_configuration(&data, &starter.folder("state")?, port))?;
        servers.push(starter.serve(&shares::samba(&configuration), port)?);
        let source = scene.data().join(FILE).display().to_string();
        let own = starter.path("written").rsplit('/').next().unwrap_or_default().to_owned();
        reads.push((starter, shares::samba_client(&configuration, port, &format!("get {FILE} /dev/null"))));
        writes.push((starter, shares::samba_client(&configuration, port, &format!("put {source} {own}"))));
    }
    let mut lines = Vec::new();
    for (what, commands) in [("256 MiB read by smbclient", reads), ("256 MiB written by smbclient", writes)] {
        let series = rates(bench, &commands)?;
        lines.push(line("smb", what, [&series[0], &series[1]], Unit::GBs));
    }
    Ok(lines)
}

/// Part `nfs`.
pub fn ganesha(bench: &Bench) -> Result<Vec<Line>> {
    check(&["ganesha.nfsd", "nfs-cat"])?;
    let scene = Scene::new(bench)?;
    let starters = Starter::both(&scene)?;
    let mut servers = Vec::new();
    let mut reads = Vec::new();
    for starter in &starters {
        let port = free_port()?;
        let data = scene.data().display().to_string();
        let configuration =
            starter.file("ganesha.conf", shares::ganesha_configuration(&data, &starter.folder("state")?, port))?;
        let words = shares::ganesha(&configuration, &starter.path("log"), &starter.path("pid"));
        servers.push(starter.serve(&words, port)?);
        let from = shares::nfs_uri(port, &format!("/{FILE}"));
        reads.push((starter, vec!["nfs-cat".to_owned(), from]));
    }
    let series = rates(bench, &reads)?;
    Ok(vec![line("nfs", "256 MiB read by nfs-cat, NFS 4", [&series[0], &series[1]], Unit::GBs)])
}

/// Part `gluster`.
pub fn gluster(bench: &Bench) -> Result<Vec<Line>> {
    check(&["glusterfsd", "glusterfs"])?;
    ensure!(Path::new("/dev/fuse").exists(), "SKIPPED: no /dev/fuse");
    let scene = Scene::new(bench)?;
    let _server = scene.serve(bench, Way::Direct, None)?;
    let starters = Starter::both(&scene)?;
    let volumes = [volume(&starters[0])?, volume(&starters[1])?];
    let seconds = if bench.quick { 1 } else { 4 };
    let mut lines = Vec::new();
    for job in fio::JOBS.iter().filter(|job| JOBS.contains(&job.what)) {
        let mut measurements: Vec<Measurement<'_>> = volumes
            .iter()
            .map(|(mounted, _)| -> Measurement<'_> {
                Box::new(move |_| fio::run(job, &mounted.folder.join(FILE), FILE_BYTES, seconds))
            })
            .collect();
        let is_compared = job.what == RANDOM_READ;
        if is_compared {
            measurements.push(Box::new(|_| preloaded(&scene, job, seconds)));
        }
        let series = bench.compare(bench.of_programs, false, &mut measurements)?;
        drop(measurements);
        let what = format!("fio, {}, mounted by gluster", job.what);
        lines.push(line("gluster", &what, [&series[0], &series[1]], job.unit()));
        if is_compared {
            let quantity = |name: &str, at: usize| Quantity::of(name, &series[at].values, job.unit());
            lines.push(
                Line::new("gluster", format!("fio, {}, motet run --files", job.what))
                    .figure(quantity("preload", 2))
                    .floors(&series[2].floors)
                    .against(quantity("gluster over TCP", 1), &series[2].over(&series[1]))
                    .bound(Bound::AtLeast(LEAST_OVER_GLUSTER)),
            );
        }
    }
    Ok(lines)
}

/// A served and mounted volume.
fn volume(starter: &Starter<'_>) -> Result<(Mounted, Server)> {
    let port = free_port()?;
    let (brick, at) = (starter.folder("brick")?, starter.folder("mounted")?);
    let of_server = starter.file("server.vol", shares::gluster_server_volume(&brick, port))?;
    let of_client = starter.file("client.vol", shares::gluster_client_volume(port))?;
    let words = shares::gluster_server(&of_server, &starter.path("server.log"), &starter.path("server.pid"));
    let server = starter.serve(&words, port)?;
    let words = shares::gluster_client(&of_client, &starter.path("client.log"), &starter.path("client.pid"), &at);
    let client = Server::of(cleanup::start(&mut starter.command(&words))?);
    let mounted = Mounted::by(PathBuf::from(at), client)?;
    std::fs::copy(starter.scene.data().join(FILE), mounted.folder.join(FILE)).context("a file in the volume")?;
    Ok((mounted, server))
}

/// A job of fio under `motet run --files`.
fn preloaded(scene: &Scene, job: &Job, seconds: usize) -> Result<f64> {
    let prefix = scene.path("prefix");
    job.run(&mut scene.run_files(&prefix, &job.words(&prefix.join(FILE), FILE_BYTES, seconds)))
}
