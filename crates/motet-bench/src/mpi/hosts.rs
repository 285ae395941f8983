//! Ranks on two test hosts: over the TCP of Motet, and over that of Open MPI.

use super::libraries::Libraries;
use super::{Part, compare};
use crate::bench::Bench;
use crate::hosts::Hosts;
use crate::pair::Process;
use crate::report::Line;
use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// The launch agent that replaces ssh.
const AGENT: &str = include_str!("../../../../tests/mpi/agent.py");

pub fn measure(bench: &Bench, libraries: &Libraries, bar: &ProgressBar) -> Result<Vec<Line>> {
    let hosts = Hosts::up()?;
    let agent = libraries.path("agent.py");
    std::fs::write(&agent, AGENT)?;
    std::fs::set_permissions(&agent, std::fs::Permissions::from_mode(0o755))?;
    let _shells =
        Hosts::NAMES.map(|host| shell(bench, &hosts, host, &agent)).into_iter().collect::<Result<Vec<_>>>()?;
    let before: Vec<String> =
        hosts.on(Hosts::NAMES[0]).iter().map(|word| word.to_string_lossy().into_owned()).collect();
    compare(bench, &libraries.between(&before, &agent, &Hosts::NAMES.join(",")), Part::Hosts, bar)
}

/// A shell on a host that the launch agent reaches. It ends on drop.
fn shell(bench: &Bench, hosts: &Hosts, host: &str, agent: &Path) -> Result<Process> {
    let words = hosts.on(host);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg(agent).arg("--serve").env_remove("LD_PRELOAD");
    let mut shell = Process::start(command, &bench.cpus, None).context("a shell on a test host")?;
    match shell.line()?.as_str() {
        "ready" => Ok(shell),
        said => bail!("a shell on a test host printed `{said}`"),
    }
}
