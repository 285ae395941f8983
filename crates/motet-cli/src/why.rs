//! `motet why`: for every pair of processes, the path in use and each rejected one with its reason; for streams and for nodes of
//! messages.

use std::collections::HashMap;

use clap::Args;
use serde::Serialize;

use crate::drivers::{self, Verdict};
use crate::exit_error::{Failure, NOT_FOUND, Outcome};
use crate::node_stats::{MessageLink, MessageNode};
use crate::output::{self, bytes, harmless};
use crate::process_scan::{self, Node, Process, Standing, Stream};
use crate::ps::{address, note, tcp_bytes};
use crate::{process_scan::Moved, procfs, ranks, recent};

/// Tell for every connection which path it takes, and why not another
#[derive(Debug, Args)]
pub struct Arguments {
    /// A process (either end), an address, a port (`:5000`), or part of a peer's command
    #[arg(value_name = "PID|PEER")]
    subject: Option<String>,
}

#[derive(Serialize)]
struct Pair {
    local: Option<std::net::SocketAddr>,
    peer: Option<std::net::SocketAddr>,
    peer_pid: Option<u32>,
    peer_command: Option<String>,
    path: process_scan::Path,
    reason: u32,
    sent: Moved,
    received: Moved,
    drivers: Vec<Verdict>,
    #[serde(skip)]
    stream: Stream,
}

#[derive(Serialize)]
struct Answer {
    pid: u32,
    command: String,
    #[serde(flatten)]
    standing: Standing,
    /// Of a rank of MPI: by which way it sends.
    mpi: Option<String>,
    pairs: Vec<Pair>,
    /// Nodes of messages.
    nodes: Vec<MessageNode>,
    /// Of the whole process family, ended connections included.
    node: Option<Node>,
}

#[derive(Serialize)]
struct Report {
    processes: Vec<Answer>,
}

/// The command.
pub fn run(arguments: &Arguments, json: bool) -> Outcome {
    let processes = recent::take();
    let answers: Vec<Answer> = match arguments.subject.as_deref() {
        None => processes.into_iter().map(|p| answer(p, |_, _| true)).collect(),
        Some(subject) => match subject.parse::<u32>() {
            Ok(pid) => of_process(processes, pid)?,
            Err(_) => of_peer(processes, subject)?,
        },
    };
    if json {
        output::json(&Report { processes: answers })?;
    } else if answers.is_empty() {
        output::text("no process is under Motet; start one with `motet run -- COMMAND`\n")?;
    } else {
        output::text(&answers.iter().map(render).collect::<Vec<_>>().join("\n"))?;
    }
    Ok(0)
}

/// All pairs of one process, and the far ends of pairs with it.
fn of_process(processes: Vec<Process>, pid: u32) -> Outcome<Vec<Answer>> {
    if processes.iter().any(|p| p.pid == pid) {
        return Ok(processes.into_iter().filter(|p| p.pid == pid).map(|p| answer(p, |_, _| true)).collect());
    }
    let missing = || Failure::new(NOT_FOUND, format!("there is no process {pid}; `motet ps` lists those under Motet"));
    let process = process_scan::of(pid).ok_or_else(missing)?;
    Ok(vec![answer(process, |_, _| true)])
}

/// All pairs whose far or near address, or whose peer's command, is meant.
fn of_peer(processes: Vec<Process>, subject: &str) -> Outcome<Vec<Answer>> {
    let meant = |stream: &Stream, command: Option<&str>| {
        let by_address = [stream.peer, stream.local].into_iter().flatten().any(|a| {
            let port = subject.strip_prefix(':').is_some_and(|p| p.parse() == Ok(a.port()));
            port || a.to_string() == subject || a.ip().to_string() == subject
        });
        by_address || command.is_some_and(|c| c.contains(subject))
    };
    let by_node = |link: &MessageLink| {
        let command = link.peer_pid.and_then(procfs::command);
        link.peer_name.as_deref() == Some(subject) || command.is_some_and(|c| c.contains(subject))
    };
    let answers = processes.into_iter().map(|p| {
        let mut answer = answer(p, meant);
        answer.nodes.iter_mut().for_each(|node| node.links.retain(by_node));
        answer.nodes.retain(|node| !node.links.is_empty());
        answer
    });
    let answers: Vec<Answer> = answers.filter(|a| !a.pairs.is_empty() || !a.nodes.is_empty()).collect();
    if answers.is_empty() {
        let what = format!("no stream to `{}`; `motet ps -l` lists all streams", harmless(subject, 60));
        return Err(Failure::new(NOT_FOUND, what));
    }
    Ok(answers)
}

fn answer(process: Process, meant: impl Fn(&Stream, Option<&str>) -> bool) -> Answer {
    let mut commands = HashMap::new();
    let mut command = |pid: u32| commands.entry(pid).or_insert_with(|| procfs::command(pid)).clone();
    let pairs = process.streams.into_iter().filter_map(|stream| {
        let peer_command = stream.peer_pid.and_then(&mut command);
        meant(&stream, peer_command.as_deref()).then(|| Pair {
            local: stream.local,
            peer: stream.peer,
            peer_pid: stream.peer_pid,
            peer_command,
            path: stream.path,
            reason: stream.reason,
            sent: stream.sent,
            received: stream.received,
            drivers: drivers::verdicts(&stream),
            stream,
        })
    });
    Answer {
        mpi: ranks::note(process.pid, !process.nodes.is_empty()),
        pairs: pairs.collect(),
        nodes: process.nodes,
        pid: process.pid,
        command: process.command,
        standing: process.standing,
        node: process.node,
    }
}

fn render(answer: &Answer) -> String {
    let mut out = format!("{} {}\n", answer.pid, harmless(&answer.command, 90));
    if let Some(mpi) = &answer.mpi {
        out += &format!("  {}\n", harmless(mpi, 300));
    }
    for node in &answer.nodes {
        out += &messages(node);
    }
    if let Some(note) = note(&answer.standing).filter(|_| !matches!(answer.standing, Standing::NodesOnly)) {
        return out + &format!("  {note}\n");
    }
    for pair in &answer.pairs {
        let arrow = if pair.stream.connected { "->" } else { "<-" };
        let peer = match (pair.peer_pid, &pair.peer_command) {
            (Some(pid), Some(command)) => format!("  ({pid} {})", harmless(procfs::name(command), 30)),
            (Some(pid), None) => format!("  (process {pid})"),
            _ => String::new(),
        };
        out += &format!("  {} {arrow} {}{peer}\n", address(pair.local), address(pair.peer));
        for verdict in &pair.drivers {
            let word = if verdict.in_use { "in use  " } else { "rejected" };
            out += &format!("    {word}  {:4} {}\n", verdict.driver, verdict.reason);
        }
        let (s, sent, received) = (&pair.stream, pair.sent, pair.received);
        out += &format!(
            "    bytes     shm  {} sent, {} received; tcp {} sent, {} received\n",
            bytes(sent.fast),
            bytes(received.fast),
            tcp_bytes(s, sent),
            tcp_bytes(s, received)
        );
    }
    if answer.pairs.is_empty() && !matches!(answer.standing, Standing::NodesOnly) {
        out += "  no stream now\n";
    }
    if let Some(node) = &answer.node {
        out += &totals(node);
    }
    out
}

/// A node of messages: each link, the drivers for it, and how messages went.
fn messages(node: &MessageNode) -> String {
    let mut out = format!("  node {} ({})\n", harmless(&node.name, 64), harmless(&node.address, 120));
    for link in &node.links {
        out += &message_link(link);
    }
    if node.links.is_empty() {
        out += "    no link now\n";
    }
    if node.unshown > 0 {
        out += &format!("    without a row here: {} links so far\n", node.unshown);
    }
    for failed in &node.failed {
        out += &format!("    calls that failed so far: {} x {}\n", failed.count, failed.text);
    }
    out
}

fn message_link(link: &MessageLink) -> String {
    let arrow = if link.called { "->" } else { "<-" };
    let peer = harmless(link.peer_name.as_deref().unwrap_or(&link.peer), 64);
    let process = link.peer_pid.map_or(String::new(), |pid| match procfs::command(pid) {
        Some(command) => format!("  ({pid} {})", harmless(procfs::name(&command), 30)),
        None => format!("  (process {pid})"),
    });
    let mut out = format!("    link {} {arrow} {peer}{process}\n", link.link);
    if let Some(gone) = link.gone {
        out += &format!("      gone      {gone}\n");
    }
    for way in &link.drivers {
        let word = if way.in_use { "in use  " } else { "rejected" };
        out += &format!("      {word}  {:4} {}\n", harmless(&way.driver, 8), way.reason);
    }
    for line in link.counts.lines() {
        out += &format!("      messages  {line}\n");
    }
    out
}

/// What the node file counted since it was made.
fn totals(node: &Node) -> String {
    let mut out = String::new();
    for plain in &node.plain {
        out += &format!("  stayed on tcp so far: {} x {}\n", plain.count, plain.text);
    }
    if node.overflow > 0 {
        out += &format!("  without a record: {} (raise MOTET_STREAMS, now {})\n", node.overflow, node.capacity);
    }
    out
}
