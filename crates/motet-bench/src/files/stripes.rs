//! A file striped over one, two and four test hosts, read and written from a fifth one over links of one rate.

use super::scene::{TMPFS, ask};
use crate::bench::{Bench, Measurement};
use crate::cleanup;
use crate::pair::Process;
use crate::report::{Bound, Line, Quantity, Unit};
use crate::session::host_scene::HostScene;
use anyhow::{Result, ensure};
use std::cell::RefCell;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// The servers' hosts and, last, the client's.
const HOSTS: [&str; 5] = ["s1", "s2", "s3", "s4", "client"];
/// The rate of each link in each direction: low, so that the links and not the CPUs of this machine bound what is measured.
pub const LINK_RATE: &str = "150mbit";
/// Bytes of a unit, of a transfer, and of the file.
const UNIT: &str = "262144";
const TRANSFER_BYTES: usize = 2 << 20;
const FILE_BYTES: usize = 32 << 20;
/// How many times as long as others these measurements are: a transfer takes long on slow links.
const TIMES: usize = 20;
/// How many servers, and the least part of that many times the rate of one.
const COUNTS: [(usize, f64); 3] = [(1, 1.0), (2, 1.9), (4, 3.6)];

/// Part `stripes`.
pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    let scene = HostScene::of(bench, &HOSTS)?;
    for server in &HOSTS[..4] {
        shape(&scene, server, "client")?;
        shape(&scene, "client", server)?;
    }
    scene.begin()?;
    let mut servers = Vec::new();
    for (at, host) in HOSTS[..4].iter().enumerate() {
        servers.push(serve(bench, &scene, host, &format!("part-{}", at + 1), &[])?);
    }
    let mut workers = Vec::new();
    for (count, _) in COUNTS {
        let others: Vec<String> = (2..=count).map(|at| format!("s{at}:part-{at}")).collect();
        let (name, others) = (format!("over-{count}"), others.join(","));
        let more = if others.is_empty() { &[][..] } else { &["--stripe", &others, "--stripe-unit", UNIT] };
        servers.push(serve(bench, &scene, HOSTS[0], &name, more)?);
        let words = bench.worker(&["files", "client", "new", &name, &FILE_BYTES.to_string()]).words;
        workers.push(RefCell::new(start(bench, &scene, HOSTS[4], words)?));
    }
    let mut lines = Vec::new();
    // One transfer waits for the slowest of its hosts, and the others meanwhile for the next one. Several under way keep all links in use, as the kernel's
    // read-ahead and write-back do for programs of a mount.
    for (operation, how) in
        [("read", "one at a time"), ("read-together", "4 under way"), ("write-together", "4 under way")]
    {
        let question = format!("{operation} {TRANSFER_BYTES} {}", TIMES * bench.ms);
        let mut measurements: Vec<Measurement<'_>> = workers
            .iter()
            .map(|worker| -> Measurement<'_> { Box::new(|_| Ok(ask(&mut worker.borrow_mut(), &question)?[0])) })
            .collect();
        let series = bench.compare(bench.of_programs, false, &mut measurements)?;
        let rates = |at: usize| -> Vec<f64> { series[at].values.iter().map(|ns| TRANSFER_BYTES as f64 / ns).collect() };
        for (at, (count, least)) in COUNTS.iter().enumerate().skip(1) {
            let verb = operation.trim_end_matches("-together");
            let what = format!("2 MiB sequential {verb}, {how}, {count} servers, links of {LINK_RATE}");
            let line = Line::new("stripes", what)
                .figure(Quantity::of(format!("{count} servers"), &rates(at), Unit::GBs))
                .against(Quantity::of("1 server", &rates(0), Unit::GBs), &series[0].over(&series[at]));
            let has_target = operation != verb;
            lines.push(if has_target { line.bound(Bound::AtLeast(*least)) } else { line });
        }
    }
    Ok(lines)
}

/// Bounds the rate from a host to another one.
pub fn shape(scene: &HostScene, from: &str, to: &str) -> Result<()> {
    let shape = format!("tc qdisc add dev to-{to} root tbf rate {LINK_RATE} burst 64kb latency 100ms");
    let output = cleanup::output(scene.on(from).args(shape.split(' ')))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "SKIPPED: links cannot be shaped: {}", said.lines().last().unwrap_or_default());
    Ok(())
}

/// Starts an export of a directory of a host's own tmpfs.
pub fn serve(bench: &Bench, scene: &HostScene, host: &str, name: &str, more: &[&str]) -> Result<Process> {
    let directory = Path::new(TMPFS).join(name).display().to_string();
    let serve = r#"mkdir -p "$1" && exec "$0" export "$1" --as "$2" "${@:3}""#;
    let mut words: Vec<OsString> = ["bash", "-c", serve].map(OsString::from).to_vec();
    words.push(scene.motet().into());
    words.extend([directory.as_str(), name].iter().chain(more).map(OsString::from));
    let mut server = start(bench, scene, host, words)?;
    let line = server.line()?;
    ensure!(line.contains("is exported as"), "motet export: {line}");
    Ok(server)
}

pub fn start(bench: &Bench, scene: &HostScene, host: &str, words: Vec<OsString>) -> Result<Process> {
    let all = [scene.words(host), words].concat();
    let mut command = Command::new(&all[0]);
    command.args(&all[1..]).env_remove("LD_PRELOAD");
    Process::start(command, &bench.cpus, None)
}
