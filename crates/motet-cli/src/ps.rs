//! `motet ps`: the processes under Motet, their streams and links.

use std::net::SocketAddr;

use clap::Args;
use serde::Serialize;

use crate::exit_error::{Failure, NOT_FOUND, Outcome};
use crate::host_files::{self, HostFiles, OfHost};
use crate::output::{self, Align, Table, bytes, sanitize};
use crate::watched::{self, HostProcess, Source};
use motet_inspect::process_scan::{Moved, Path, Process, ProcessStatus, Stream};
use motet_inspect::procfs;
use motet_inspect::report::HostReport;
use motet_session::api::{Export, ExportUse};

/// List the processes under Motet: streams, paths, bytes
#[derive(Debug, Args)]
pub struct Arguments {
    /// One line for each stream, each link, each export and each use of an export as well
    #[arg(short, long)]
    long: bool,

    /// Only this process
    #[arg(value_name = "PID")]
    pid: Option<u32>,
}

#[derive(Serialize)]
struct PsReport {
    processes: Vec<HostProcess>,
    /// With `-l`: what the hosts export, and what uses exports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    exports: Vec<OfHost<Export>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    export_uses: Vec<OfHost<ExportUse>>,
}

/// The command.
pub fn run(arguments: &Arguments, json: bool) -> Outcome {
    let mut source = Source::from_env();
    let mut reports = source.once();
    let mut files = if arguments.long { HostFiles::of(&source, &reports) } else { Vec::new() };
    if let Some(pid) = arguments.pid {
        files.iter_mut().for_each(|host| host.retain(pid));
        reports.iter_mut().for_each(|report| report.processes.retain(|p| p.pid == pid));
    }
    if let Some(pid) = arguments.pid {
        let is_known =
            files.iter().any(|host| !host.is_empty()) || reports.iter().any(|report| !report.processes.is_empty());
        if !is_known && !procfs::exists(pid) {
            return Err(Failure::new(
                NOT_FOUND,
                format!("no process {pid}; `motet ps` lists the processes under Motet"),
            ));
        }
    }
    if json {
        let (mut exports, mut export_uses) = (Vec::new(), Vec::new());
        for HostFiles { host, exports: own, uses } in files {
            exports.extend(own.into_iter().map(|is| OfHost { host: host.clone(), is }));
            export_uses.extend(uses.into_iter().map(|is| OfHost { host: host.clone(), is }));
        }
        output::json(&PsReport { processes: watched::processes(reports), exports, export_uses })?;
        return Ok(0);
    }
    let tables = host_files::tables(&files, &reports);
    if !reports.iter().all(|report| report.processes.is_empty()) {
        output::text(&(list(&reports, arguments.long) + &tables))?;
    } else if tables.is_empty() {
        output::text(&nothing(arguments.pid))?;
    } else {
        output::text(tables.trim_start())?;
    }
    Ok(0)
}

fn nothing(pid: Option<u32>) -> String {
    let others = if motet_sys::thread::euid() == 0 { "" } else { " (only root sees those of other users)" };
    match pid {
        Some(pid) => format!("process {pid} is not under Motet; `motet why {pid}` gives the reason\n"),
        None => format!("no process is under Motet{others}; start one with `motet run -- COMMAND`\n"),
    }
}

fn list(reports: &[HostReport], long: bool) -> String {
    let mut table = table(watched::several(reports));
    for report in reports {
        for process in &report.processes {
            table.row(row(report, process, watched::several(reports)));
        }
    }
    let mut out = table.render();
    if long {
        let each = reports.iter().flat_map(|report| report.processes.iter().map(move |process| (report, process)));
        for (report, process) in
            each.filter(|(_, p)| !p.streams.is_empty() || !p.links.is_empty() || !p.files.is_empty())
        {
            out += &format!("\n{} {}\n", of_host(report, process), sanitize(&process.command, 90));
            out += &host_files::reasons(&[], &[], &process.files, None);
            if !process.streams.is_empty() {
                out += &streams(report, &process.streams);
            }
            if !process.links.is_empty() {
                out += &links(report, process);
            }
        }
    }
    out
}

/// The process id, with the host if there is a session.
pub fn of_host(report: &HostReport, process: &Process) -> String {
    if report.host.is_empty() {
        process.pid.to_string()
    } else {
        format!("{}:{}", sanitize(&report.host, 64), process.pid)
    }
}

/// The table of processes, without rows; with a column for hosts if there are several.
pub fn table(hosts: bool) -> Table {
    let right = |name| (name, Align::Right);
    let host: &[_] = if hosts { &[("HOST", Align::Left)] } else { &[] };
    let columns = [
        right("PID"),
        ("USER", Align::Left),
        right("STREAMS"),
        right("shm"),
        right("tcp"),
        right("MEMORY"),
        right("a stream"),
        right("SENT shm"),
        right("tcp"),
        right("RECEIVED shm"),
        right("tcp"),
        ("COMMAND", Align::Left),
    ];
    Table::new(&[host, &columns].concat())
}

/// The row of one process in [`table`].
pub fn row(report: &HostReport, process: &Process, hosts: bool) -> Vec<String> {
    let user = process.uid.map_or("?".into(), procfs::user);
    let command = sanitize(&process.command, 60);
    let mut cells = if hosts { vec![sanitize(&report.host, 64)] } else { Vec::new() };
    cells.extend([process.pid.to_string(), user]);
    let note = note(&process.status);
    if note.is_none() {
        let (fast, slow) = process.paths();
        cells.extend([process.streams.len(), fast, slow].map(|n| n.to_string()));
        cells.extend([Some(process.memory), process.memory_of_a_stream()].map(|n| n.map_or("-".into(), bytes)));
    } else {
        cells.extend(["-"; 5].map(String::from));
    }
    cells.extend(moved(process, note.is_none()));
    cells.push(note.map_or(command.clone(), |note| format!("{command}  [{note}]")));
    cells
}

/// Bytes sent and received by streams and messages, through memory and over TCP. A dash: not known, because only the kernel counts them.
fn moved(process: &Process, has_streams: bool) -> [String; 4] {
    if !has_streams && process.nodes.is_empty() {
        return ["-"; 4].map(String::from);
    }
    let (mut sent, mut received) = process.moved();
    let (of_messages, and_back) = process.messages();
    sent += of_messages;
    received += and_back;
    let tcp = |counted: u64| output::tcp_bytes(counted, process.counts_tcp());
    [bytes(sent.fast), tcp(sent.tcp), bytes(received.fast), tcp(received.tcp)]
}

/// The note for a process without streams to count; `None` for an active process.
pub fn note(status: &ProcessStatus) -> Option<String> {
    match status {
        ProcessStatus::Active => None,
        ProcessStatus::NodesOnly => Some("no streams; `motet why` shows its nodes".into()),
        ProcessStatus::NoSocketYet => Some("no TCP connection so far that could be upgraded".into()),
        ProcessStatus::SwitchedOff(why) => Some(format!("on TCP: {why}")),
        ProcessStatus::NotLoaded(why) => Some(format!("without Motet: {why}")),
        ProcessStatus::Unreadable(why) => Some(format!("node file unreadable: {why}")),
        ProcessStatus::WithoutMotet(why) => Some(format!("without Motet: {why}")),
        ProcessStatus::Hidden => Some("process of another user; run this command as root or as that user".into()),
    }
}

/// An address, or a dash.
pub fn address(address: Option<SocketAddr>) -> String {
    address.map_or("-".into(), |a| a.to_string())
}

/// Bytes over TCP; a dash if only the kernel counted them.
pub fn tcp_bytes(stream: &Stream, moved: Moved) -> String {
    output::tcp_bytes(moved.tcp, stream.is_counted())
}

fn links(report: &HostReport, process: &Process) -> String {
    let right = |name| (name, Align::Right);
    let mut table = Table::new(&[
        ("LINK TO", Align::Left),
        right("STREAMS"),
        right("SEGMENTS"),
        right("MAPPED"),
        ("", Align::Left),
    ]);
    for link in &process.links {
        let peer = link.peer_pid.map_or("-".into(), |pid| match report.command(pid) {
            Some(command) => format!("{pid} {}", sanitize(procfs::name(command), 20)),
            None => pid.to_string(),
        });
        let note = if link.streams == 0 { "idle" } else { "" };
        table.row(vec![peer, link.streams.to_string(), link.segments.to_string(), bytes(link.bytes), note.into()]);
    }
    table.render()
}

fn streams(report: &HostReport, streams: &[Stream]) -> String {
    let right = |name| (name, Align::Right);
    let left = |name| (name, Align::Left);
    let mut table = Table::new(&[
        right("FD"),
        left("LOCAL"),
        left("PEER"),
        left("PEER PROCESS"),
        left("PATH"),
        left("STATE"),
        right("SENT shm"),
        right("tcp"),
        right("RECEIVED shm"),
        right("tcp"),
        left("REASON"),
    ]);
    for s in streams {
        let peer = s.peer_pid.map_or("-".into(), |pid| match report.command(pid) {
            Some(command) => format!("{pid} {}", sanitize(procfs::name(command), 20)),
            None => pid.to_string(),
        });
        table.row(vec![
            s.fd.to_string(),
            address(s.local),
            address(s.peer),
            peer,
            s.path.name().into(),
            s.state.name().into(),
            if s.path == Path::Shm || s.sent.fast > 0 { bytes(s.sent.fast) } else { "-".into() },
            tcp_bytes(s, s.sent),
            if s.path == Path::Shm || s.received.fast > 0 { bytes(s.received.fast) } else { "-".into() },
            tcp_bytes(s, s.received),
            s.reason_text.to_string(),
        ]);
    }
    table.render()
}
