//! A session of the bench: in a folder of its own, ended and removed when dropped, also by a signal.

use crate::bench::Bench;
use crate::cleanup;
use anyhow::{Context, Result, bail, ensure};
use motet_session::client::Client;
use motet_session::paths::{DIR_VARIABLE, NAME_VARIABLE, SessionPaths};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// The name of the session.
const NAME: &str = "bench";
/// The group of the members that a scene starts.
pub const GROUP: &str = "members";

/// A session. It is up unless it has been made by [`Scene::down`].
pub struct Scene {
    folder: TempDir,
    motet: PathBuf,
    /// This executable as a worker.
    worker: Vec<OsString>,
}

impl Scene {
    /// A folder and a name for a session that is not up.
    pub fn down(bench: &Bench) -> Result<Self> {
        Ok(Self { folder: cleanup::folder()?, motet: find_motet(bench)?, worker: bench.worker(&["session"]).words })
    }

    /// A session that is up.
    pub fn up(bench: &Bench) -> Result<Self> {
        let scene = Self::down(bench)?;
        scene.run(&["up"])?;
        Ok(scene)
    }

    /// The command `motet` in this session.
    pub fn motet(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.motet);
        command.args(words);
        self.set(&mut command);
        command
    }

    fn set(&self, command: &mut Command) {
        command.env(DIR_VARIABLE, self.root()).env(NAME_VARIABLE, NAME);
    }

    /// Runs the command; it must succeed. Returns its output.
    pub fn run(&self, words: &[&str]) -> Result<String> {
        let output = cleanup::output(&mut self.motet(words))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "motet {}: {}", words.join(" "), said.lines().last().unwrap_or_default());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// A folder for files of a part.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder of sessions: one of its own, which no other user may enter.
    fn root(&self) -> PathBuf {
        self.folder.path().join("sessions")
    }

    /// The files of the session.
    pub fn paths(&self) -> Result<SessionPaths> {
        Ok(SessionPaths::within(&self.root(), NAME)?)
    }

    /// A client of its gatekeeper.
    pub fn client(&self) -> Result<Client> {
        Ok(Client::of(&self.paths()?)?)
    }

    /// The gatekeeper's process.
    pub fn gatekeeper(&self) -> Result<u32> {
        Ok(self.client()?.get::<motet_session::api::Session>("/v1/session")?.gatekeeper.pid)
    }

    /// A counter of the gatekeeper.
    pub fn metric(&self, name: &str) -> Result<f64> {
        metric(&self.paths()?, name)
    }

    /// Starts a worker of the session.
    pub fn worker(&self, words: &[&str], output: Stdio) -> Result<Child> {
        let mut command = Command::new(&self.worker[0]);
        command.args(&self.worker[1..]).args(words).stdin(Stdio::piped()).stdout(output);
        self.set(&mut command);
        cleanup::start(&mut command).context("a worker")
    }

    /// Runs a role by `size` members, and returns the numbers that rank 0 prints.
    pub fn members(&self, size: usize, role: &[&str]) -> Result<Vec<f64>> {
        let mut children = Children::default();
        for rank in 0..size {
            let place = [rank, size].map(|number| number.to_string());
            let output = if rank == 0 { Stdio::piped() } else { Stdio::null() };
            children.0.push(self.worker(&[&[role[0], &place[0], &place[1]], &role[1..]].concat(), output)?);
        }
        let mut text = String::new();
        children.0[0].stdout.take().context("a pipe")?.read_to_string(&mut text)?;
        for mut child in std::mem::take(&mut children.0) {
            let status = child.wait()?;
            if !status.success() {
                bail!("a member failed: {status}");
            }
        }
        text.split_whitespace().map(|word| word.parse().with_context(|| format!("`{word}` is no number"))).collect()
    }
}

/// The command: the built one beside this executable, or another one.
pub fn find_motet(bench: &Bench) -> Result<PathBuf> {
    let beside = std::env::current_exe()?.with_file_name("motet");
    if beside.exists() { Ok(beside) } else { bench.find("motet") }
}

/// A counter of the gatekeeper of a session.
pub fn metric(paths: &SessionPaths, name: &str) -> Result<f64> {
    let mut stream = UnixStream::connect(paths.socket())?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.take(1 << 20).read_to_string(&mut text)?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(value.with_context(|| format!("the gatekeeper has no {name}"))?.trim().parse()?)
}

/// Processes that end with this.
#[derive(Default)]
pub struct Children(pub Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if self.root().join(NAME).exists() {
            let _ = cleanup::output(&mut self.motet(&["down"]));
        }
    }
}
