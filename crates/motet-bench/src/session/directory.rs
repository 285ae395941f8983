//! The directory: how fast a joined node is known, and what the gatekeeper costs, idle and with 1000 nodes.

use super::scene::{Children, Scene};
use crate::bench::{Bench, Measurement};
use crate::measure::cpu_time;
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

/// Processes that attach nodes, and nodes of each.
const CROWD: [usize; 2] = [4, 250];
/// Operations on the directory in a repetition.
const OPERATIONS: &str = "300";
/// The most memory of a gatekeeper, bytes.
const MAX_MEMORY: f64 = (40 << 20) as f64;

/// Part `join`.
pub fn join(bench: &Bench) -> Result<Vec<Line>> {
    let scene = Scene::up(bench)?;
    let joined = |_| Ok(scene.members(1, &["join", "20"])?[0]);
    let series = bench.compare(bench.of_programs, false, &mut [Box::new(joined)])?;
    Ok(vec![
        Line::new("join", "a node attaches and joins, until it and another member have the view")
            .figure(Quantity::of("one host, median of 20", &series[0].values, Unit::Ms))
            .bound(Bound::AtMost(20.0)),
    ])
}

/// Part `idle`.
pub fn idle(bench: &Bench) -> Result<Vec<Line>> {
    let scene = Scene::up(bench)?;
    let pid = scene.gatekeeper()?;
    let seconds = if bench.quick { 1 } else { 5 };
    std::thread::sleep(Duration::from_millis(500)); // until its threads sleep
    let used = |_| {
        let before = cpu_time(pid)?;
        std::thread::sleep(Duration::from_secs(seconds));
        Ok((cpu_time(pid)?.0 - before.0) as f64 / 1e6 / seconds as f64)
    };
    let memory = |_| resident(pid);
    let series = bench.compare(bench.of_programs, false, &mut [Box::new(used), Box::new(memory)])?;
    Ok(vec![
        Line::new("idle", "idle gatekeeper, processor time in a second")
            .figure(Quantity::of("by the scheduler's clock", &series[0].values, Unit::Ms))
            .bound(Bound::AtMost(0.1))
            .note("no measurable time: 0.01 % of one CPU at most"),
        Line::new("idle", "idle gatekeeper, memory")
            .figure(Quantity::of("resident", &series[1].values, Unit::Bytes))
            .bound(Bound::AtMost(MAX_MEMORY)),
    ])
}

/// Part `thousand`.
pub fn thousand(bench: &Bench) -> Result<Vec<Line>> {
    let scene = Scene::up(bench)?;
    let pid = scene.gatekeeper()?;
    let [processes, each] = CROWD;
    let mut children = Children::default();
    for process in 0..processes {
        let words = ["attach", &process.to_string(), &processes.to_string(), &each.to_string()];
        children.0.push(scene.worker(&words, Stdio::piped())?);
    }
    for child in &mut children.0 {
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().context("a pipe")?).read_line(&mut line)?;
        ensure!(line == "ready\n", "nodes cannot attach");
    }
    let attached = scene.metric("motet_nodes_attached")?;
    ensure!(attached == (processes * each) as f64, "{attached} nodes are attached");
    let scene = &scene;
    let operations = |group: &'static str| {
        move |_: usize| -> Result<f64> { Ok(scene.members(1, &["operations", group, OPERATIONS])?[0]) }
    };
    let (alone, among) = (operations("few"), operations("crowd-0-0"));
    let memory = |_| resident(pid);
    let measurements: &mut [Measurement<'_>] = &mut [Box::new(&alone), Box::new(&among), Box::new(memory)];
    let series = bench.compare(bench.of_programs, false, measurements)?;
    let nodes = processes * each;
    let line = |group: &str, values: &[f64]| {
        Line::new("thousand", format!("join or leave a group {group}, {nodes} nodes attached"))
            .figure(Quantity::of(format!("99th percentile of {OPERATIONS}"), values, Unit::Ms))
            .bound(Bound::AtMost(10.0))
    };
    Ok(vec![
        line("without other members", &series[0].values),
        line("with 50 other members", &series[1].values)
            .note(format!("the 50 that get the view are threads of one of {processes} processes")),
        Line::new("thousand", format!("gatekeeper with {nodes} nodes, memory"))
            .figure(Quantity::of("resident", &series[2].values, Unit::Bytes))
            .bound(Bound::AtMost(MAX_MEMORY)),
    ])
}

/// Resident memory of a process, bytes.
fn resident(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    Ok(kilobytes.context("VmRSS")?.trim().parse::<f64>()? * 1024.0)
}
