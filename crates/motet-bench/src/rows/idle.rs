//! What a connection costs while nothing happens: processor time and memory.

use crate::Options;
use crate::bench::Bench;
use crate::measure::cpu_time;
use crate::pair::{Process, Server};
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::{Context, Result, bail};
use std::io::Write;
use std::time::Duration;

/// Row `idle-cpu`.
pub fn processor(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    const LINKS: usize = 100;
    let seconds = if bench.quick { 4 } else { 10 };
    let mut hub = hub(bench)?;
    let peer = start_peer(bench, &hub.port, "engine", LINKS, 32)?;
    let fast = take(&mut hub, LINKS, 32)?;
    let _peer = wait_until_up(peer)?;
    if fast != LINKS {
        bail!("only {fast} of {LINKS} links went to shared memory");
    }
    ask(&mut hub, "wait")?;
    std::thread::sleep(Duration::from_millis(500)); // until their threads sleep
    let before = cpu_time(hub.process.child.id())?;
    std::thread::sleep(Duration::from_secs(seconds));
    let after = cpu_time(hub.process.child.id())?;
    let (ms, ticks) = ((after.0 - before.0) as f64 / 1e6, after.1 - before.1);
    Ok(vec![
        Line::new("idle-cpu", format!("idle process with {LINKS} links, processor time over {seconds} s"))
            .figure(Quantity::of(format!("{ticks} ticks of 10 ms, by the scheduler's clock"), &[ms], Unit::Ms))
            .bound(Bound::AtMost(0.1 * seconds as f64))
            .note("no measurable time: 0.01 % of one CPU at most"),
    ])
}

/// Row `peer-memory`.
pub fn memory(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    const PEERS: usize = 64;
    let mut lines = Vec::new();
    for (what, kind, rounds, bound) in
        [("known peer on TCP", "tcp", 4, 4096.0), ("connected idle peer", "engine", 32, 256.0 * 1024.0)]
    {
        let mut hub = hub(bench)?;
        let mut peers = Vec::new();
        // The first peers bring what all peers share: the engine, a first block of records.
        let mut join = |hub: &mut Server, count: usize| -> Result<()> {
            let mut fast = 0;
            for _ in 0..count {
                let peer = start_peer(bench, &hub.port, kind, 1, rounds)?;
                fast = take(hub, 1, rounds)?;
                peers.push(wait_until_up(peer)?);
            }
            if kind == "engine" && fast != peers.len() {
                bail!("only {fast} of {} peers are connected through shared memory", peers.len());
            }
            Ok(())
        };
        join(&mut hub, 4)?;
        let before = resident(hub.process.child.id())?;
        join(&mut hub, PEERS)?;
        let after = resident(hub.process.child.id())?;
        let each = |i: usize| (after[i] as f64 - before[i] as f64) / PEERS as f64;
        lines.push(
            Line::new("peer-memory", format!("memory of a process for each {what}"))
                .figure(Quantity::of("private memory and pages of segments", &[each(0) + each(1)], Unit::Bytes))
                .bound(Bound::AtMost(bound))
                .note(format!(
                    "{:.0} B private and {:.0} B of segments, over {PEERS} peers; the kernel's own socket buffers not counted",
                    each(0),
                    each(1)
                )),
        );
    }
    Ok(lines)
}

/// Bytes of resident memory outside segments, and of all pages that segments have, touched by this process or not.
fn resident(pid: u32) -> Result<[u64; 2]> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    let (mut private, mut segments) = (0, 0);
    let mut segment = None;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        let bytes = || words.clone().next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0) * 1024;
        if first.contains('-') {
            // The node file is sparse: it takes what is resident of it.
            let is_segment = line.contains("/memfd:") && !line.contains("/memfd:motet-node");
            segment = is_segment.then(|| pages(pid, first));
        } else if first == "Size:" {
            // A segment counts whole where the kernel does not say how many pages it has.
            segments += segment.map_or(0, |given| given.unwrap_or_else(bytes));
        } else if first == "Rss:" && segment.is_none() {
            private += bytes();
        }
    }
    Ok([private, segments])
}

/// Bytes of pages that the file of a mapping has. Only root may read that.
fn pages(pid: u32, range: &str) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    Some(std::fs::metadata(format!("/proc/{pid}/map_files/{range}")).ok()?.blocks() * 512)
}

fn hub(bench: &Bench) -> Result<Server> {
    Server::start(&bench.worker(&["hub"]), &bench.cpus, Some(bench.cpus.pair[0]))
}

fn ask(hub: &mut Server, words: &str) -> Result<String> {
    let input = hub.process.input.as_mut().context("the hub has no input")?;
    writeln!(input, "{words}")?;
    hub.process.line()
}

/// Lets the hub accept links. Returns how many of all its links use shared memory.
fn take(hub: &mut Server, count: usize, rounds: usize) -> Result<usize> {
    let answer = ask(hub, &format!("take {count} {rounds}"))?;
    let fast = answer.split_whitespace().nth(2).and_then(|word| word.parse().ok());
    fast.with_context(|| format!("the hub answered `{answer}`"))
}

fn start_peer(bench: &Bench, port: &str, kind: &str, links: usize, rounds: usize) -> Result<Process> {
    let mut command = bench.worker(&["peer", kind]).command(1, "call");
    command.args(["127.0.0.1", port, &links.to_string(), &rounds.to_string()]);
    Process::start(command, &bench.cpus, Some(bench.cpus.pair[1]))
}

fn wait_until_up(mut peer: Process) -> Result<Process> {
    if peer.line()? != "up" {
        bail!("a peer did not get ready");
    }
    Ok(peer)
}
