//! A session of eight test hosts (scripts/hosts), each with a folder of sessions of its own. Commands reach the hosts by scripts/host-agent.

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
use std::path::PathBuf;
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
    motet: PathBuf,
    /// This executable as a worker.
    worker: Vec<OsString>,
    agent: PathBuf,
    folder: TempDir,
    /// The agents' servers end before their hosts.
    _servers: Children,
    _hosts: Hosts,
}

impl HostScene {
    /// The hosts without a session. An error that begins with `SKIPPED` says why they cannot be made.
    pub fn down(bench: &Bench) -> Result<Self> {
        let hosts = Hosts::up_as(&HOSTS)?;
        let (agent, folder) = (script("host-agent")?, cleanup::folder()?);
        let mut servers = Children::default();
        for host in HOSTS {
            let words = hosts.on(host);
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).arg(&agent).arg("serve").arg(folder.path().join(format!("{host}.sock")));
            servers.0.push(cleanup::start(command.stdin(Stdio::null())).context("scripts/host-agent")?);
        }
        let began = Instant::now();
        while !HOSTS.iter().all(|host| folder.path().join(format!("{host}.sock")).exists()) {
            ensure!(began.elapsed() < LIMIT, "scripts/host-agent does not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        let worker = bench.worker(&["session"]).words;
        Ok(Self { motet: find_motet(bench)?, worker, agent, folder, _servers: servers, _hosts: hosts })
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
        self.run(HOSTS[0], &["up", "--host", HOSTS[0], "--hosts", &HOSTS[1..].join(","), "--agent", &to]).map(drop)
    }

    fn root(&self) -> String {
        self.folder.path().display().to_string()
    }

    /// A command on a host, in its session.
    fn on(&self, host: &str) -> Command {
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
        let client = self.client(HOSTS[0])?;
        let hosts = client.get::<Vec<Host>>("/v1/hosts")?;
        if hosts.iter().filter(|host| host.up).count() != HOSTS.len() {
            return Ok(false);
        }
        let has_all = |view: &View| view.members.len() == HOSTS.len();
        for host in HOSTS {
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
        if self.folder.path().join(HOSTS[0]).join(NAME).exists() {
            let _ = self.run(HOSTS[0], &["down"]);
        }
    }
}
