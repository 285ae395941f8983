//! The exports of hosts and the processes that use them, for `motet ps -l` and `motet why`.

use motet_files::{exports, uses};
use motet_inspect::exported::Use;
use motet_inspect::process_scan::Process;
use motet_inspect::report::HostReport;
use motet_session::api::{Export, ExportUse};
use motet_session::client::Client;
use serde::Serialize;

use crate::output::{Align, Table, bytes, sanitize};
use crate::watched::{self, Source};

/// The exports of one host, and the mounts and disks there that use exports.
#[derive(Debug, Default)]
pub struct HostFiles {
    /// The host's name in the session; without a session there is none.
    pub host: String,
    /// What is exported.
    pub exports: Vec<Export>,
    /// What uses exports, of this host or of others.
    pub uses: Vec<ExportUse>,
}

/// Something of a host.
#[derive(Debug, Serialize)]
pub struct OfHost<T> {
    /// The host's name in the session; without a session there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// What it is.
    #[serde(flatten)]
    pub is: T,
}

impl HostFiles {
    /// Those of this host, which has this name.
    pub fn here(host: &str) -> Self {
        let exports = exports::list(None).unwrap_or_default().into_iter().map(Export::from).collect();
        Self { host: host.to_owned(), exports, uses: uses::list() }
    }

    /// Those of the hosts of these reports. A gatekeeper that does not know them leaves them out.
    pub fn of(source: &Source, reports: &[HostReport]) -> Vec<Self> {
        match source {
            Source::Session(client) => reports.iter().map(|report| Self::ask(client, &report.host)).collect(),
            Source::Here(_) => vec![Self::here("")],
        }
    }

    fn ask(client: &Client, host: &str) -> Self {
        let exports = client.get(&format!("/v1/hosts/{host}/exports")).unwrap_or_default();
        let uses = client.get(&format!("/v1/hosts/{host}/export-uses")).unwrap_or_default();
        Self { host: host.to_owned(), exports, uses }
    }

    /// Nothing is exported or used.
    pub fn is_empty(&self) -> bool {
        self.exports.is_empty() && self.uses.is_empty()
    }

    /// Leaves only what one process exports and uses.
    pub fn retain(&mut self, pid: u32) {
        self.exports.retain(|export| export.process == pid);
        self.uses.retain(|used| used.process == pid);
    }
}

/// How a use reaches its files: the directory itself, or messages by the drivers of its process.
fn way(used: &ExportUse, process: Option<&Process>) -> String {
    if used.direct {
        return "directory itself".to_owned();
    }
    let links = process.iter().flat_map(|process| &process.nodes).flat_map(|node| &node.links);
    let verdicts = links.filter(|link| link.gone.is_none()).flat_map(|link| &link.drivers);
    let mut drivers: Vec<&str> = verdicts.filter(|verdict| verdict.in_use).map(|v| v.driver.as_str()).collect();
    drivers.sort_unstable();
    drivers.dedup();
    if drivers.is_empty() {
        "messages".to_owned()
    } else {
        format!("messages by {}", sanitize(&drivers.join(", "), 40))
    }
}

/// The tables of exports and of their uses; nothing where there are none.
pub fn tables(files: &[HostFiles], reports: &[HostReport]) -> String {
    let exports: Vec<_> =
        files.iter().flat_map(|host| host.exports.iter().map(|export| (&*host.host, export))).collect();
    let uses: Vec<_> = files.iter().flat_map(|host| host.uses.iter().map(|used| (&*host.host, used))).collect();
    let mut out = String::new();
    if !exports.is_empty() {
        out += &format!("\n{}", export_table(&exports, watched::several(reports)));
    }
    if !uses.is_empty() {
        out += &format!("\n{}", use_table(&uses, reports));
    }
    out
}

/// Columns of both tables: what is open, and what was done.
const COUNTS: [(&str, Align); 5] = [
    ("OPEN", Align::Right),
    ("LOCKS", Align::Right),
    ("REQUESTS", Align::Right),
    ("READ", Align::Right),
    ("WRITTEN", Align::Right),
];

fn new_table(with_host: bool, first: &[(&'static str, Align)], last: (&'static str, Align)) -> Table {
    let host: &[_] = if with_host { &[("HOST", Align::Left)] } else { &[] };
    Table::new(&[host, first, &COUNTS, &[last]].concat())
}

fn export_table(exports: &[(&str, &Export)], with_host: bool) -> String {
    let first = [("EXPORT", Align::Left), ("PID", Align::Right), ("ACCESS", Align::Left), ("CLIENTS", Align::Right)];
    let mut table = new_table(with_host, &first, ("DIRECTORY", Align::Left));
    for (host, export) in exports {
        let mut cells = if with_host { vec![sanitize(host, 64)] } else { Vec::new() };
        let access = if export.read_only { "read-only" } else { "read-write" };
        cells.extend([sanitize(&export.name, 64), export.process.to_string(), access.to_owned()]);
        cells.extend([export.clients, export.open_files, export.locks, export.requests].map(|n| n.to_string()));
        cells.extend([export.bytes_read, export.bytes_written].map(bytes));
        cells.push(sanitize(&export.directory, 60));
        table.row(cells);
    }
    table.render()
}

fn use_table(uses: &[(&str, &ExportUse)], reports: &[HostReport]) -> String {
    let with_host = watched::several(reports);
    let first = [("USES EXPORT", Align::Left), ("PID", Align::Right), ("AS", Align::Left), ("WAY", Align::Left)];
    let mut table = new_table(with_host, &first, ("AT", Align::Left));
    for (host, used) in uses {
        let report = reports.iter().find(|report| report.host == *host);
        let process = report.and_then(|report| report.processes.iter().find(|process| process.pid == used.process));
        let mut cells = if with_host { vec![sanitize(host, 64)] } else { Vec::new() };
        cells.extend([sanitize(&used.export, 64), used.process.to_string(), sanitize(&used.front, 16)]);
        cells.push(way(used, process));
        cells.extend([used.open_files, used.locks, used.requests].map(|n| n.to_string()));
        cells.extend([used.bytes_read, used.bytes_written].map(bytes));
        cells.push(sanitize(&used.at, 60));
        table.row(cells);
    }
    table.render()
}

/// What `motet why` says of the exports that a process serves, uses and sees.
pub fn reasons(exports: &[Export], uses: &[ExportUse], seen: &[Use], process: Option<&Process>) -> String {
    let mut out = String::new();
    for export in exports {
        let direct = if export.direct { "may use the directory itself" } else { "do so, too" };
        let (directory, name) = (sanitize(&export.directory, 120), sanitize(&export.name, 64));
        out += &format!(
            "  exports {directory} as {name}: {} clients send messages; programs of this host {direct}\n",
            export.clients
        );
        if !export.storage.is_empty() {
            out += &format!("    direct reads by {}\n", sanitize(&export.storage, 300));
        }
    }
    for used in uses {
        let (export, at, front) = (sanitize(&used.export, 64), sanitize(&used.at, 120), sanitize(&used.front, 16));
        let (way, why) = (way(used, process), sanitize(&used.why, 160));
        out += &format!("  uses export {export} at {at} ({front}) by {way}: {why}\n");
        if !used.storage.is_empty() {
            out += &format!("    {}\n", sanitize(&used.storage, 300));
        }
    }
    for seen in seen {
        out += &format!("  {}\n", sanitize(&seen.to_string(), 400));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_a_column_for_hosts_only_with_several() {
        let used: ExportUse = serde_json::from_str(
            r#"{"process":7,"front":"mount","export":"results","at":"/mnt/r","direct":true,"why":"because","open_files":1,
                "locks":2,"requests":3,"bytes_read":4000,"bytes_written":5000}"#,
        )
        .unwrap();
        let report = |host: &str| HostReport::of(host, Vec::new());
        let files = |host: &str| HostFiles { host: host.to_owned(), exports: Vec::new(), uses: vec![used.clone()] };
        let one = tables(&[files("a")], &[report("a")]);
        assert!(one.contains("results") && one.contains("directory itself") && !one.contains("HOST"), "{one}");
        let two = tables(&[files("a"), HostFiles::default()], &[report("a"), report("b")]);
        assert!(two.contains("HOST") && two.contains("4.00 kB"), "{two}");
        assert_eq!(tables(&[HostFiles::default()], &[report("a")]), "");
        assert_eq!(way(&ExportUse { direct: false, ..used }, None), "messages");
    }
}
