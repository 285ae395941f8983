//! A session of test hosts (scripts/hosts), eight unless others are named, each with a folder of sessions of its own. Commands reach the hosts by scripts/host-agent.

use super::scene::{Children, find_motet, metric};
use crate::bench::Bench;
use crate::cleanup;
use crate::hosts::{Hosts, script};
use anyhow::{Context, Result, bail, ensure};
use motet_session::api::View;
use motet_session::client::Client;
use motet_session::hosts::Host;
use motet_session::paths::{DIR_VARIABLE, NAME_VARIABLE, SessionPaths};
use motet_sys::rustix::process::Pid;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The hosts; the first one is the primary one.
pub const HOSTS: [&str; 8] = ["h1", "h2", "h3", "h4", "h5", "h6", "h7", "h8"];
/// The name of the session.
const NAME: &str = "bench";
/// Nothing takes so long.
const LIMIT: Duration = Duration::from_secs(30);

/// The hosts, and their session if it is up.
pub struct HostScene {
    names: &'static [&'static str],
    motet: PathBuf,
    /// This executable as a worker.
    worker: Vec<OsString>,
    agent: PathBuf,
    folder: TempDir,
    /// The agents' servers end before their hosts.
    _servers: Children,
    hosts: Hosts,
}

impl HostScene {
    /// The hosts without a session. An error that begins with `SKIPPED` says why they cannot be made.
    pub fn down(bench: &Bench) -> Result<Self> {
        Self::of(bench, &HOSTS)
    }

    /// Hosts of these names without a session; the first one will be the primary one.
    pub fn of(bench: &Bench, names: &'static [&'static str]) -> Result<Self> {
        let hosts = Hosts::up_as(names)?;
        let (agent, folder) = (script("host-agent")?, cleanup::folder()?);
        let mut servers = Children::default();
        for host in names {
            let words = hosts.on(host);
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).arg(&agent).arg("serve").arg(folder.path().join(format!("{host}.sock")));
            servers.0.push(cleanup::start(command.stdin(Stdio::null())).context("scripts/host-agent")?);
        }
        let began = Instant::now();
        while !names.iter().all(|host| folder.path().join(format!("{host}.sock")).exists()) {
            ensure!(began.elapsed() < LIMIT, "scripts/host-agent does not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        let worker = bench.worker(&["session"]).words;
        Ok(Self { names, motet: find_motet(bench)?, worker, agent, folder, _servers: servers, hosts })
    }

    /// The hosts with a session.
    pub fn up(bench: &Bench) -> Result<Self> {
        let scene = Self::down(bench)?;
        scene.begin()?;
        Ok(scene)
    }

    /// `motet up --hosts`.
    pub fn begin(&self) -> Result<()> {
        let to = format!("{} {}/%h.sock env {DIR_VARIABLE}={}/%h", self.agent.display(), self.root(), self.root());
        let primary = self.names[0];
        self.run(primary, &["up", "--host", primary, "--hosts", &self.names[1..].join(","), "--agent", &to]).map(drop)
    }

    /// The hosts.
    pub fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// A folder that all hosts see.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The words in front of a command that run it on a host, in its session, on the CPUs of its caller. Each has a mount namespace of its own; those of
    /// [`HostScene::on`] share one.
    pub fn words(&self, host: &str) -> Vec<OsString> {
        let mut words = self.hosts.on(host);
        words.extend(["env".to_owned(), format!("{DIR_VARIABLE}={}/{host}", self.root())].map(OsString::from));
        words.push(format!("{NAME_VARIABLE}={NAME}").into());
        words
    }

    /// The command `motet`.
    pub fn motet(&self) -> &Path {
        &self.motet
    }

    fn root(&self) -> String {
        self.folder.path().display().to_string()
    }

    /// A command on a host, in its session.
    pub fn on(&self, host: &str) -> Command {
        let mut command = Command::new(&self.agent);
        command.arg(self.folder.path().join(format!("{host}.sock"))).arg("env");
        command.arg(format!("{DIR_VARIABLE}={}/{host}", self.root())).arg(format!("{NAME_VARIABLE}={NAME}"));
        command
    }

    /// Runs `motet` on a host; it must succeed. Returns its output.
    pub fn run(&self, host: &str, words: &[&str]) -> Result<String> {
        let output = cleanup::output(self.on(host).arg(&self.motet).args(words))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "motet {}: {}", words.join(" "), said.lines().last().unwrap_or_default());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts a worker on a host.
    pub fn worker(&self, host: &str, words: &[&str]) -> Result<Child> {
        let mut command = self.on(host);
        command.args(&self.worker).args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        cleanup::start(&mut command).context("a worker")
    }

    /// The gatekeeper of a host, by its number outside of the host.
    pub fn gatekeeper(&self, host: &str) -> Result<Pid> {
        let folder = format!("{DIR_VARIABLE}={}/{host}", self.root());
        let has = |file: PathBuf, text: &str| {
            std::fs::read(file).is_ok_and(|all| all.split(|byte| *byte == 0).any(|one| one == text.as_bytes()))
        };
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let Some(pid) = name.to_str().and_then(|pid| Pid::from_raw(pid.parse().ok()?)) else { continue };
            if has(path.join("cmdline"), "gatekeeper") && has(path.join("environ"), &folder) {
                return Ok(pid);
            }
        }
        bail!("host {host} has no gatekeeper")
    }

    fn paths(&self, host: &str) -> Result<SessionPaths> {
        Ok(SessionPaths::within(&self.folder.path().join(host), NAME)?)
    }

    /// A client of a host's gatekeeper. All hosts see its socket.
    fn client(&self, host: &str) -> Result<Client> {
        Ok(Client::of(&self.paths(host)?)?)
    }

    /// Whether the directory is right, by the primary gatekeeper: all hosts are up and answer, and each has its one member attached to it.
    pub fn is_right(&self, group: &str) -> Result<bool> {
        let client = self.client(self.names[0])?;
        let hosts = client.get::<Vec<Host>>("/v1/hosts")?;
        if hosts.iter().filter(|host| host.up).count() != self.names.len() {
            return Ok(false);
        }
        let has_all = |view: &View| view.members.len() == self.names.len();
        for host in self.names {
            // By the link between the hosts: it is there before the nodes attach again.
            let view = client.get::<View>(&format!("/v1/hosts/{host}/groups/{group}"))?;
            if !has_all(&view) || metric(&self.paths(host)?, "motet_nodes_attached")? != 1.0 {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Drop for HostScene {
    fn drop(&mut self) {
        if self.folder.path().join(self.names[0]).join(NAME).exists() {
            let _ = self.run(self.names[0], &["down"]);
        }
    }
}
