//! `motet run --stats`: stays as the parent of the program, and prints the counters of its processes.
//!
//! Each process under Motet appends one line of JSON to the file that MOTET_STATS names when it exits ([`ProcessCounters`]). Here that
//! file is a memfd of this process, so no file is left behind.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

use motet_session::notes;
use serde::{Deserialize, Serialize};

use crate::children::{self, cannot_start};
use crate::exit_error::{FAILED, Failure, Outcome};
use crate::output::{self, Align, Table};

/// The counters of one process, ended streams included. A missing field is 0.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct ProcessCounters {
    pid: u32,
    command: String,
    /// Connections handed to Motet, and those of them that were upgraded.
    streams: u64,
    upgraded: u64,
    /// Bytes sent and received, by path.
    sent_fast: u64,
    sent_tcp: u64,
    received_fast: u64,
    received_tcp: u64,
    /// Streams whose bytes over TCP the kernel alone counts, so they are not in `sent_tcp` and `received_tcp`.
    uncounted_tcp: u64,
    /// Number of spills of a full ring, of downgrades, and of single copies.
    spilled: u64,
    downgraded: u64,
    single_copy: u64,
    /// Links opened and closed.
    links: u64,
    links_closed: u64,
    /// Connections that stayed on TCP, by reason code.
    stayed_on_tcp: std::collections::BTreeMap<u32, u64>,
}

/// Starts the program, waits for it, prints the table, and ends as the program did.
pub fn run(mut command: Command, program: &OsStr, at: &Path, json: bool) -> Outcome {
    let failed = |what: &str, e: &dyn std::fmt::Display| Failure::new(FAILED, format!("{what}: {e}"));
    let file = memfd().map_err(|e| failed("cannot create a memfd for the statistics", &e))?;
    command.env("MOTET_STATS", format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));

    let mut signals = children::catch_signals()?;
    let child = children::start(&mut command, at).map_err(|e| cannot_start(program, &e))?;
    let status = children::wait(child, &mut signals)?;

    let lines = read(file);
    let shown = if json { json_lines(&lines)? } else { render(&lines) };
    notes::raw(&shown);
    children::end_as(status)
}

fn memfd() -> Result<File, rustix::io::Errno> {
    use rustix::fs::{MemfdFlags, memfd_create};
    memfd_create("motet-stats", MemfdFlags::CLOEXEC).map(File::from)
}

fn read(mut file: File) -> Vec<ProcessCounters> {
    let mut bytes = Vec::new();
    // Each writer opens the file itself, so the position of this descriptor is still 0.
    let _ = file.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn json_lines(lines: &[ProcessCounters]) -> Outcome<String> {
    let text = serde_json::to_string_pretty(lines);
    text.map(|t| t + "\n").map_err(|e| Failure::new(FAILED, format!("cannot make JSON: {e}")))
}

fn render(lines: &[ProcessCounters]) -> String {
    if lines.is_empty() {
        return "motet: no counters: no process had a socket that could be upgraded, or all were killed\n".into();
    }
    let right = ["STREAMS", "UPGRADED", "SENT shm", "SENT tcp", "RECEIVED shm", "RECEIVED tcp"]
        .map(|name| (name, Align::Right));
    let mut columns = vec![("PID", Align::Right)];
    columns.extend(right);
    columns.push(("COMMAND", Align::Left));
    let mut table = Table::new(&columns);
    let cells = |first: String, line: &ProcessCounters, last: String| {
        let tcp = |counted| output::tcp_bytes(counted, line.uncounted_tcp == 0);
        let mut cells = vec![first, line.streams.to_string(), line.upgraded.to_string()];
        cells.extend([output::bytes(line.sent_fast), tcp(line.sent_tcp)]);
        cells.extend([output::bytes(line.received_fast), tcp(line.received_tcp), last]);
        cells
    };
    let mut total = ProcessCounters::default();
    for line in lines {
        table.row(cells(line.pid.to_string(), line, output::sanitize(&line.command, 60)));
        total.add(line);
    }
    if lines.len() > 1 {
        table.row(cells("all".into(), &total, String::new()));
    }
    let stayed = total
        .stayed_on_tcp
        .iter()
        .map(|(code, count)| format!("stayed on tcp: {count} x {}\n", motet::reason::text(*code)));
    table.render() + &stayed.collect::<String>()
}

impl ProcessCounters {
    fn add(&mut self, other: &Self) {
        let sum = |a: &mut u64, b: u64| *a = a.saturating_add(b);
        sum(&mut self.streams, other.streams);
        sum(&mut self.upgraded, other.upgraded);
        sum(&mut self.sent_fast, other.sent_fast);
        sum(&mut self.sent_tcp, other.sent_tcp);
        sum(&mut self.received_fast, other.received_fast);
        sum(&mut self.received_tcp, other.received_tcp);
        sum(&mut self.uncounted_tcp, other.uncounted_tcp);
        sum(&mut self.links, other.links);
        sum(&mut self.links_closed, other.links_closed);
        for (code, count) in &other.stayed_on_tcp {
            sum(self.stayed_on_tcp.entry(*code).or_default(), *count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_leniently_and_summed() {
        use std::io::{Seek, SeekFrom, Write};
        let mut file = memfd().unwrap();
        file.write_all(b"{\"pid\":7,\"command\":\"a\",\"streams\":2,\"sent_fast\":1000,\"stayed_on_tcp\":{\"2\":1},\"later\":1}\nhalf a li\n{\"pid\":8,\"streams\":1}\n").unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        let lines = read(file);
        assert_eq!(lines.iter().map(|l| (l.pid, l.streams)).collect::<Vec<_>>(), [(7, 2), (8, 1)]);
        let shown = render(&lines);
        assert!(shown.contains("1.00 kB") && shown.contains("all") && shown.contains("stayed on tcp: 1 x "), "{shown}");
    }

    #[test]
    fn bytes_that_the_kernel_alone_counts_are_not_shown_as_few() {
        let whole = ProcessCounters { streams: 1, sent_tcp: 5000, ..Default::default() };
        let none = ProcessCounters { streams: 1, uncounted_tcp: 1, ..Default::default() };
        let last_row = |lines: &[ProcessCounters]| {
            let words = render(lines).lines().last().unwrap_or_default().to_owned();
            words.split_whitespace().skip(5).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(last_row(std::slice::from_ref(&whole)), ["5.00", "kB", "0", "B", "0", "B"]);
        assert_eq!(last_row(std::slice::from_ref(&none)), ["-", "0", "B", "-"]);
        assert_eq!(last_row(&[whole, none]), [">=5.00", "kB", "0", "B", "-"]);
    }
}
