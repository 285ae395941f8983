//! `motet why`: for every stream and every link of a node, the driver in use and each rejected driver with its reason.

use clap::Args;
use motet_wire::stream::record::State;
use serde::Serialize;

use crate::exit_error::{Failure, NOT_FOUND, Outcome};
use crate::host_files::{self, HostFiles};
use crate::output::{self, bytes, sanitize};
use crate::ps::{address, note, of_host, tcp_bytes};
use crate::watched::Source;
use motet_inspect::drivers::DriverVerdict;
use motet_inspect::exported::Use;
use motet_inspect::node_stats::{MessageLink, MessageNode};
use motet_inspect::process_scan::{self, Moved, NodeRow, Process, ProcessStatus, Stream};
use motet_inspect::procfs;
use motet_inspect::report::HostReport;
use motet_session::api::{Export, ExportUse};

/// Show the path of every connection, and why it takes no other
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
    drivers: Vec<DriverVerdict>,
    #[serde(skip)]
    stream: Stream,
}

#[derive(Serialize)]
struct Answer {
    /// The host in the session; without a session there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    host: String,
    pid: u32,
    command: String,
    #[serde(flatten)]
    status: ProcessStatus,
    /// For an MPI rank: the transport of its messages.
    mpi: Option<String>,
    pairs: Vec<Pair>,
    /// What it exports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    exports: Vec<Export>,
    /// The exports that it uses, as a mount or a disk.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    export_uses: Vec<ExportUse>,
    /// The exports that `motet run --files` shows to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    files: Vec<Use>,
    /// What `files` says, in words, for people.
    #[serde(skip)]
    of_files: String,
    /// The nodes of messages.
    nodes: Vec<MessageNode>,
    /// The totals of the fork group, ended connections included.
    node: Option<NodeRow>,
    /// The host and the process, for the heading.
    #[serde(skip)]
    heading: String,
    /// Command lines of peers.
    #[serde(skip)]
    commands: std::collections::BTreeMap<u32, String>,
}

#[derive(Serialize)]
struct WhyReport {
    processes: Vec<Answer>,
}

/// The command.
pub fn run(arguments: &Arguments, json: bool) -> Outcome {
    let mut source = Source::from_env();
    let reports = source.once();
    let mut answers: Vec<Answer> = match arguments.subject.as_deref() {
        None => each(&reports).map(|(report, process)| answer(report, process, |_, _| true)).collect(),
        Some(subject) => match subject.parse::<u32>() {
            Ok(pid) => of_process(&reports, pid)?,
            Err(_) => of_peer(&reports, subject)?,
        },
    };
    add_exports(&mut answers, &HostFiles::of(&source, &reports), &reports);
    if json {
        output::json(&WhyReport { processes: answers })?;
    } else if answers.is_empty() {
        output::text("no process is under Motet; start one with `motet run -- COMMAND`\n")?;
    } else {
        output::text(&answers.iter().map(render).collect::<Vec<_>>().join("\n"))?;
    }
    Ok(0)
}

/// Notes what each process exports and uses. An answer without a host is of this host.
fn add_exports(answers: &mut [Answer], files: &[HostFiles], reports: &[HostReport]) {
    for answer in answers {
        let here;
        let of_host = match files.iter().find(|files| files.host == answer.host) {
            Some(files) => files,
            None => {
                here = HostFiles::here(&answer.host);
                &here
            }
        };
        let own = |pid: u32| pid == answer.pid;
        answer.exports = of_host.exports.iter().filter(|export| own(export.process)).cloned().collect();
        answer.export_uses = of_host.uses.iter().filter(|used| own(used.process)).cloned().collect();
        let process = each(reports).find(|(report, process)| report.host == answer.host && own(process.pid));
        let process = process.map(|(_, process)| process);
        answer.of_files = host_files::reasons(&answer.exports, &answer.export_uses, &answer.files, process);
    }
}

/// All processes with the reports that they are in.
fn each(reports: &[HostReport]) -> impl Iterator<Item = (&HostReport, &Process)> {
    reports.iter().flat_map(|report| report.processes.iter().map(move |process| (report, process)))
}

/// All pairs of one process; of each process with this id, if it is one on several hosts.
fn of_process(reports: &[HostReport], pid: u32) -> Outcome<Vec<Answer>> {
    let found = each(reports).filter(|(_, p)| p.pid == pid).map(|(report, p)| answer(report, p, |_, _| true));
    let found: Vec<Answer> = found.collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let missing = || Failure::new(NOT_FOUND, format!("no process {pid}; `motet ps` lists the processes under Motet"));
    let report = HostReport::of("", vec![process_scan::of(pid).ok_or_else(missing)?]);
    Ok(each(std::slice::from_ref(&report)).map(|(report, p)| answer(report, p, |_, _| true)).collect())
}

/// All pairs and links that `subject` names: an address of either end, a port, a part of the peer's command, or a peer node.
fn of_peer(reports: &[HostReport], subject: &str) -> Outcome<Vec<Answer>> {
    let matches = |stream: &Stream, command: Option<&str>| {
        let by_address = [stream.peer, stream.local].into_iter().flatten().any(|a| {
            let port = subject.strip_prefix(':').is_some_and(|p| p.parse() == Ok(a.port()));
            port || a.to_string() == subject || a.ip().to_string() == subject
        });
        by_address || command.is_some_and(|c| c.contains(subject))
    };
    let matches_link = |report: &HostReport, link: &MessageLink| {
        let command = link.peer_pid.and_then(|pid| report.command(pid));
        link.peer_name.as_deref() == Some(subject) || command.is_some_and(|c| c.contains(subject))
    };
    let answers = each(reports).map(|(report, p)| {
        let mut answer = answer(report, p, matches);
        answer.nodes.iter_mut().for_each(|node| node.links.retain(|link| matches_link(report, link)));
        answer.nodes.retain(|node| !node.links.is_empty());
        answer
    });
    let answers: Vec<Answer> = answers.filter(|a| !a.pairs.is_empty() || !a.nodes.is_empty()).collect();
    if answers.is_empty() {
        let what = format!("no stream or link to `{}`; `motet ps -l` lists all streams", sanitize(subject, 60));
        return Err(Failure::new(NOT_FOUND, what));
    }
    Ok(answers)
}

fn answer(report: &HostReport, process: &Process, matches: impl Fn(&Stream, Option<&str>) -> bool) -> Answer {
    let pairs = process.streams.iter().filter_map(|stream| {
        let peer_command = stream.peer_pid.and_then(|pid| report.command(pid));
        matches(stream, peer_command).then(|| Pair {
            local: stream.local,
            peer: stream.peer,
            peer_pid: stream.peer_pid,
            peer_command: peer_command.map(str::to_owned),
            path: stream.path,
            reason: stream.reason,
            sent: stream.sent,
            received: stream.received,
            drivers: verdicts(stream),
            stream: stream.clone(),
        })
    });
    Answer {
        host: report.host.clone(),
        mpi: process.mpi.clone(),
        pairs: pairs.collect(),
        exports: Vec::new(),
        export_uses: Vec::new(),
        files: process.files.clone(),
        of_files: String::new(),
        nodes: process.nodes.clone(),
        pid: process.pid,
        command: process.command.clone(),
        status: process.status.clone(),
        node: process.node.clone(),
        heading: of_host(report, process),
        commands: report.commands.clone(),
    }
}

/// One verdict for each driver on a stream, the driver in use first.
fn verdicts(stream: &Stream) -> Vec<DriverVerdict> {
    let mut verdicts: Vec<DriverVerdict> = motet::driver_table::DRIVERS
        .iter()
        .map(|driver| {
            let (wire, fast) = (driver.streams().is_some(), stream.path == process_scan::Path::Shm);
            let text = &*stream.reason_text;
            let reason = match (wire, fast) {
                (true, _) => text,
                (false, true) => "slower; carries what the faster path cannot",
                (false, false) if stream.state == State::Attached => {
                    "most bytes of the last 250 ms took it (most of all bytes, if none moved)"
                }
                (false, false) => "every stream starts on it",
            };
            DriverVerdict { driver: driver.name().to_owned(), in_use: wire == fast, reason: reason.to_owned() }
        })
        .collect();
    verdicts.sort_by_key(|v| !v.in_use);
    verdicts
}

fn render(answer: &Answer) -> String {
    let mut out = format!("{} {}\n", answer.heading, sanitize(&answer.command, 90));
    if let Some(mpi) = &answer.mpi {
        out += &format!("  {}\n", sanitize(mpi, 300));
    }
    out += &answer.of_files;
    for node in &answer.nodes {
        out += &messages(answer, node);
    }
    let serves_files = !answer.exports.is_empty() || !answer.export_uses.is_empty();
    if serves_files && matches!(answer.status, ProcessStatus::WithoutMotet(_)) {
        return out;
    }
    if let Some(note) = note(&answer.status).filter(|_| !matches!(answer.status, ProcessStatus::NodesOnly)) {
        return out + &format!("  {note}\n");
    }
    for pair in &answer.pairs {
        let arrow = if pair.stream.connected { "->" } else { "<-" };
        let peer = match (pair.peer_pid, &pair.peer_command) {
            (Some(pid), Some(command)) => format!("  ({pid} {})", sanitize(procfs::name(command), 30)),
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
    if answer.pairs.is_empty() && !matches!(answer.status, ProcessStatus::NodesOnly) {
        out += "  no stream at present\n";
    }
    if let Some(node) = &answer.node {
        out += &totals(node);
    }
    out
}

/// A node of messages: its links, with a verdict on each driver and the counts of messages.
fn messages(answer: &Answer, node: &MessageNode) -> String {
    let mut out = format!("  node {} ({})\n", sanitize(&node.name, 64), sanitize(&node.address, 120));
    for link in &node.links {
        out += &message_link(answer, link);
    }
    if node.links.is_empty() {
        out += "    no link at present\n";
    }
    if node.links_not_listed > 0 {
        out += &format!("    links not listed so far: {}\n", node.links_not_listed);
    }
    for failed in &node.failed_connects {
        out += &format!("    failed connects so far: {} x {}\n", failed.count, failed.text);
    }
    out
}

fn message_link(answer: &Answer, link: &MessageLink) -> String {
    let arrow = if link.connector { "->" } else { "<-" };
    let peer = sanitize(link.peer_name.as_deref().unwrap_or(&link.peer), 64);
    let process = link.peer_pid.map_or(String::new(), |pid| match answer.commands.get(&pid) {
        Some(command) => format!("  ({pid} {})", sanitize(procfs::name(command), 30)),
        None => format!("  (process {pid})"),
    });
    let mut out = format!("    link {} {arrow} {peer}{process}\n", link.link);
    if let Some(gone) = &link.gone {
        out += &format!("      gone      {gone}\n");
    }
    for verdict in &link.drivers {
        let word = if verdict.in_use { "in use  " } else { "rejected" };
        out += &format!("      {word}  {:4} {}\n", sanitize(&verdict.driver, 8), verdict.reason);
    }
    for line in link.counts.lines() {
        out += &format!("      messages  {line}\n");
    }
    out
}

/// What the node file has counted since it was created.
fn totals(node: &NodeRow) -> String {
    let mut out = String::new();
    for stayed in &node.stayed_on_tcp {
        out += &format!("  stayed on tcp so far: {} x {}\n", stayed.count, stayed.text);
    }
    if node.overflow > 0 {
        out +=
            &format!("  streams without a record so far: {}; raise MOTET_STREAMS ({})\n", node.overflow, node.capacity);
    }
    out
}
