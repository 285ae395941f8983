//! Apache's mpm_event: every request passes from a listener's epoll set to a thread and back.

use super::servers::wrk_report;
use super::{Plan, Target, missing, number_after, sandbox};
use crate::Options;
use crate::bench::Bench;
use crate::report::{Line, Unit};
use crate::sandbox::{BothServers, Ready, Sandbox, Setup};
use anyhow::{Context, Result};
use motet_programs::services;
use std::fs;

/// The folder of Apache's modules on Debian.
const MODULES: &str = "/usr/lib/apache2/modules";

/// Row `apache`: requests a second, and the server's CPU time for each.
pub fn apache(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let what = "Apache mpm_event, keep-alive";
    if let Some(line) = missing("apache", what, &["apache2", "wrk"]) {
        return line;
    }
    let sandbox = sandbox(bench)?;
    let root = sandbox.path("");
    sandbox.file("60B", "hello\n".repeat(10))?;
    sandbox.file("100kB", "x".repeat(100_000))?;
    let both = sandbox.both(|mode, port| {
        let own = sandbox.subfolder(port)?;
        let text = services::apache_event(&own, MODULES, &root, port.parse()?);
        let configuration = sandbox.file(&format!("{port}.conf"), text)?;
        sandbox.server(mode, &["apache2", "-f", &configuration, "-DFOREGROUND"], Ready::Listens(port))
    })?;
    let plan = |what: String, unit, target| Plan::new("apache", what, unit, target);
    let mut lines = Vec::new();
    for (page, connections) in [("60B", "1"), ("60B", "32"), ("100kB", "1"), ("100kB", "32")] {
        let title = format!("{what}, {page}, wrk c={connections}");
        let load = |setup| load(&sandbox, &both, setup, page, connections);
        let rate = plan(title.clone(), Unit::PerSecond, Target::NeverSlower);
        lines.extend(rate.measure(&sandbox, |setup| Ok(load(setup)?.rate)));
        let title = format!("{title}: the server's CPU time a request");
        let cpu = plan(title, Unit::Ns, Target::NeverSlower).of_cpu_time();
        lines.extend(cpu.measure(&sandbox, |setup| Ok(load(setup)?.cpu_ns)));
    }
    Ok(lines)
}

/// The results of one run of the load generator.
struct Load {
    /// Requests a second.
    rate: f64,
    /// CPU time of the server for each, ns.
    cpu_ns: f64,
}

fn load(sandbox: &Sandbox<'_>, both: &BothServers, setup: Setup, page: &str, connections: &str) -> Result<Load> {
    let server = both.server(setup.mode).pid();
    let before = cpu_of_children(server)?;
    let reported = wrk_report(sandbox, setup, both.port(setup.mode), page, connections)?;
    let spent = cpu_of_children(server)? - before;
    let requests: f64 = reported
        .lines()
        .find_map(|line| line.split_once(" requests in ")?.0.trim().parse().ok())
        .context("wrk reports no requests")?;
    Ok(Load { rate: number_after(&reported, "Requests/sec:")?, cpu_ns: spent as f64 / requests })
}

/// CPU time of all threads of the children of a process, ns.
fn cpu_of_children(parent: u32) -> Result<u64> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
    let mut sum = 0;
    for child in children.split_whitespace() {
        for thread in fs::read_dir(format!("/proc/{child}/task"))? {
            let reported = fs::read_to_string(thread?.path().join("schedstat"))?;
            let first = reported.split_whitespace().next().context("an empty schedstat")?;
            sum += first.parse::<u64>()?;
        }
    }
    Ok(sum)
}
