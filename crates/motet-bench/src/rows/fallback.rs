//! Peers that cannot be reached faster: one without Motet, one on another host. Nothing may be lost there.

use super::{call, nearly_equal};
use crate::Options;
use crate::bench::Bench;
use crate::pair::Program;
use crate::place::Placement::Two;
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Row d.
pub fn fallback(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let env = bench.sockets()?;
    let mut lines = Vec::new();
    let at_server = |p: &Program| Program { serve_env: env.clone(), ..p.clone() };
    let at_caller = |p: &Program| Program { call_env: env.clone(), ..p.clone() };
    let at_both = |p: &Program| p.clone().with_env(&env);
    let here = |p: Program| p;
    compare(bench, "unequipped caller", &here, &at_server, &mut lines)?;
    compare(bench, "unequipped server", &here, &at_caller, &mut lines)?;
    match Hosts::up() {
        Ok(hosts) => compare(bench, "peer on another host", &|p| hosts.spread(p), &at_both, &mut lines)?,
        Err(error) => lines.push(Line::not_measured("d", "peer on another host", format!("{error:#}"))),
    }
    Ok(lines)
}

/// Round trip and bandwidth, plainly and equipped as `equip` does, in places where `go` takes both.
fn compare(
    bench: &Bench,
    what: &str,
    go: &dyn Fn(Program) -> Program,
    equip: &dyn Fn(&Program) -> Program,
    lines: &mut Vec<Line>,
) -> Result<()> {
    for (program, size, name) in [("pingpong", 64, "64 B round trips"), ("stream", 65536, "64 KiB writes")] {
        let plain = go(bench.program(program)?);
        let motet = equip(&plain);
        let arguments = call(bench, size, &[]);
        let [motet, plain] = nearly_equal(bench, (&motet, &plain), Two, &arguments)?;
        let operations = |ns: &f64| {
            if size == 64 { 0.5e9 / ns } else { size as f64 / ns }
        };
        let unit = if size == 64 { Unit::PerSecond } else { Unit::GBs };
        let [fast, slow] = [&motet, &plain].map(|s| s.values.iter().map(operations).collect::<Vec<f64>>());
        lines.push(
            Line::new("d", format!("{what}, {name}"))
                .figure(Quantity::of("under Motet", &fast, unit))
                .floors(&motet.floors)
                .against(Quantity::of("plain", &slow, unit), &plain.over(&motet))
                .nearly(Bound::AtLeast(0.98)),
        );
    }
    Ok(())
}

/// Two test hosts, for as long as this lives.
struct Hosts {
    script: PathBuf,
    address: String,
}

/// The set of test hosts that is ours.
const SET: &str = "bench";

impl Hosts {
    fn up() -> Result<Self> {
        let executable = std::env::current_exe()?;
        let mut roots = vec![PathBuf::from(".")];
        roots.extend(executable.ancestors().skip(1).take(3).map(Path::to_path_buf));
        let script = roots.iter().map(|root| root.join("scripts/hosts")).find(|path| path.exists());
        let script = script.context("SKIPPED: scripts/hosts is in the source tree only")?;
        let up = Command::new(&script).args(["--set", SET, "up", "near", "far"]).output()?;
        if !up.status.success() {
            let said = String::from_utf8_lossy(&up.stderr);
            bail!("SKIPPED: no test hosts here: {}", said.lines().last().unwrap_or("scripts/hosts failed"));
        }
        let mut hosts = Self { script, address: String::new() };
        let list = Command::new(&hosts.script).args(["--set", SET, "list"]).output()?;
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        let near = list.lines().find_map(|line| line.strip_prefix("near")?.split_whitespace().next());
        hosts.address = near.context("scripts/hosts list does not name an address")?.to_owned();
        Ok(hosts)
    }

    /// The server on one host, the caller on the other.
    fn spread(&self, program: Program) -> Program {
        let on = |host: &str| -> Vec<OsString> {
            let words = ["--set", SET, "exec", host, "--"];
            std::iter::once(self.script.clone().into()).chain(words.map(OsString::from)).collect()
        };
        Program { elsewhere: [on("near"), on("far")], host: Some(self.address.clone()), ..program }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = Command::new(&self.script).args(["--set", SET, "down"]).output();
    }
}
