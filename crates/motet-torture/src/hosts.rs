//! Two test hosts on this machine, made by scripts/hosts.

use std::path::PathBuf;
use std::process::Command;

/// Test hosts; dropping it removes them.
pub struct Hosts {
    script: PathBuf,
    set: String,
}

impl Hosts {
    /// Makes hosts with these names. The error says why they cannot be made here.
    pub fn up(names: &[&str]) -> Result<Self, String> {
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/hosts");
        let hosts = Self { script, set: format!("t{}", std::process::id()) };
        let mut command = Command::new(&hosts.script);
        let made = command.args(["--set", &hosts.set, "up"]).args(names).output().map_err(|e| e.to_string())?;
        if made.status.success() {
            return Ok(hosts);
        }
        Err(String::from_utf8_lossy(&made.stderr).lines().last().unwrap_or("scripts/hosts failed").to_owned())
    }

    /// A command that runs on a host.
    pub fn on(&self, host: &str, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.script);
        command.args(["--set", &self.set, "exec", host, "--", program]).args(arguments);
        command
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = Command::new(&self.script).args(["--set", &self.set, "down"]).output();
    }
}
