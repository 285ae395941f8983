//! Test hosts on this machine, made by scripts/hosts.

use crate::pair::Program;
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Test hosts. They are removed on drop.
pub struct Hosts {
    script: PathBuf,
    address: String,
}

/// The name of the set of test hosts.
const SET: &str = "bench";

impl Hosts {
    /// The names of two hosts, that of the server first.
    pub const NAMES: [&str; 2] = ["near", "far"];

    /// Makes two hosts. An error that begins with `SKIPPED` says why that is not possible here.
    pub fn up() -> Result<Self> {
        Self::up_as(&Self::NAMES)
    }

    /// Makes hosts of these names.
    pub fn up_as(names: &[&str]) -> Result<Self> {
        let script = script("hosts")?;
        crate::cleanup::register(&script, &["--set", SET, "down"]);
        let up = Command::new(&script).args(["--set", SET, "up"]).args(names).output()?;
        if !up.status.success() {
            let said = String::from_utf8_lossy(&up.stderr);
            bail!("SKIPPED: no test hosts here: {}", said.lines().last().unwrap_or("scripts/hosts failed"));
        }
        let mut hosts = Self { script, address: String::new() };
        let list = Command::new(&hosts.script).args(["--set", SET, "list"]).output()?;
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        let first = list.lines().find_map(|line| line.strip_prefix(*names.first()?)?.split_whitespace().next());
        hosts.address = first.context("scripts/hosts list does not name an address")?.to_owned();
        Ok(hosts)
    }

    /// The words in front of a command that run it on a host.
    pub fn on(&self, host: &str) -> Vec<OsString> {
        let words = ["--set", SET, "exec", host, "--"];
        std::iter::once(self.script.clone().into()).chain(words.map(OsString::from)).collect()
    }

    /// The address of the first host.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The program with its server on one host and its caller on the other.
    pub fn spread(&self, program: Program) -> Program {
        Program { host_prefix: Self::NAMES.map(|name| self.on(name)), host: Some(self.address.clone()), ..program }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = Command::new(&self.script).args(["--set", SET, "down"]).output();
        crate::cleanup::unregister(&self.script);
    }
}

/// A script of the source tree. The error begins with `SKIPPED`.
pub fn script(name: &str) -> Result<PathBuf> {
    let executable = std::env::current_exe()?;
    let mut roots = vec![PathBuf::from(".")];
    roots.extend(executable.ancestors().skip(1).take(3).map(Path::to_path_buf));
    let script = roots.iter().map(|root| root.join("scripts").join(name)).find(|path| path.exists());
    let script = script.with_context(|| format!("SKIPPED: scripts/{name} is in the source tree only"))?;
    Ok(std::path::absolute(script)?)
}
