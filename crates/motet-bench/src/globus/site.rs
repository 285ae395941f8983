//! Programs of GridFTP, and how they are started with and without Motet.

use crate::bench::Bench;
use crate::cleanup;
use crate::files::scene::Server;
use crate::session::scene::find_motet;
use anyhow::{Context, Result, ensure};
use motet_programs::{find, free_port, is_root};
use std::ffi::OsString;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Nothing takes so long.
const LIMIT: Duration = Duration::from_secs(30);

/// What carries data channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// XIO's driver `tcp`.
    Tcp,
    /// Motet's driver, without `motet run`.
    Driver,
    /// XIO's driver `tcp` under `motet run`.
    Run,
}

/// The programs, and the folder of the driver.
pub struct Programs {
    motet: PathBuf,
    driver: PathBuf,
}

impl Programs {
    /// Finds them. An error that begins with `SKIPPED` says what is missing.
    pub fn find(bench: &Bench) -> Result<Self> {
        for (program, package) in
            [("globus-gridftp-server", "globus-gridftp-server-progs"), ("globus-url-copy", "globus-gass-copy-progs")]
        {
            find(program).with_context(|| format!("SKIPPED: no {program} (package {package})"))?;
        }
        let driver = bench
            .find("globus/libglobus_xio_motet_driver.so")
            .context("SKIPPED: the driver of Globus XIO is not built (libglobus-xio-dev)")?;
        let folder = driver.parent().context("a folder")?.to_owned();
        Ok(Self { motet: find_motet(bench)?, driver: folder })
    }

    /// A program that runs in this way, behind the words `before`.
    pub fn command(&self, way: Way, before: &[OsString], program: &str) -> Command {
        let mut words = before.to_vec();
        if way == Way::Run {
            words.extend([self.motet.clone().into(), "run".into(), "--".into()]);
        }
        words.push(program.into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env_remove("LD_PRELOAD").stdin(Stdio::null());
        match way {
            Way::Driver => command.env("LD_LIBRARY_PATH", &self.driver),
            Way::Tcp | Way::Run => command.env_remove("LD_LIBRARY_PATH"),
        };
        command
    }

    /// Starts a server behind the words `before`. Returns it and its port. `here`: it listens on this host, and the call waits for that.
    pub fn serve(&self, way: Way, before: &[OsString], here: bool) -> Result<(Server, u16)> {
        let port = free_port()?;
        let mut command = self.command(way, before, "globus-gridftp-server");
        command.args(["-aa", "-log-level", "ERROR", "-p", &port.to_string()]);
        if is_root() {
            command.args(["-anonymous-user", "root", "-allow-root"]);
        }
        if way == Way::Driver {
            command.args(["-dc-whitelist", "motet,tcp,gsi", "-dc-default", "motet,gsi"]);
        }
        let mut server = Server::of(cleanup::start(command.stdout(Stdio::null()).stderr(Stdio::null()))?);
        let began = Instant::now();
        while here && TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(!server.ended() && began.elapsed() < LIMIT, "globus-gridftp-server does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok((server, port))
    }

    /// Copies `bytes` bytes by globus-url-copy, which runs in a way behind the words `before`. Returns the rate, GB/s.
    pub fn copy(&self, way: Way, before: &[OsString], words: &[&str], bytes: u64) -> Result<f64> {
        let mut command = self.command(way, before, "globus-url-copy");
        let began = Instant::now();
        let output = cleanup::output(command.args(words))?;
        let seconds = began.elapsed().as_secs_f64();
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "globus-url-copy: {}", said.trim().lines().next().unwrap_or_default());
        Ok(bytes as f64 / seconds / 1e9)
    }
}
