//! What one host shows to `motet ps`, `top` and `why` and to the dashboard.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde::{Deserialize, Serialize};

use crate::exported::Use;
use crate::falls::{self, Fall};
use crate::process_scan::Process;
use crate::{other_end, procfs, ranks};

/// The processes of one host.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HostReport {
    /// The host's name in the session; empty outside of one.
    pub host: String,
    /// When the processes were read, milliseconds since 1970.
    pub at_ms: u64,
    /// The processes under Motet.
    pub processes: Vec<Process>,
    /// The command lines of the peers of streams and links, by process id.
    pub commands: BTreeMap<u32, String>,
    /// Streams and links that are on TCP and should not be.
    pub falls: Vec<Fall>,
}

impl HostReport {
    /// The report on processes of this host.
    pub fn of(host: &str, mut processes: Vec<Process>) -> Self {
        other_end::set_reasons(&mut processes);
        for process in &mut processes {
            process.files = Use::of(process.pid);
            process.mpi = ranks::note(process.pid, !process.nodes.is_empty());
        }
        let peers = processes.iter().flat_map(|process| {
            let streams = process.streams.iter().filter_map(|stream| stream.peer_pid);
            let links = process.links.iter().filter_map(|link| link.peer_pid);
            let of_nodes = process.nodes.iter().flat_map(|node| &node.links).filter_map(|link| link.peer_pid);
            streams.chain(links).chain(of_nodes)
        });
        let peers: BTreeSet<u32> = peers.collect();
        let commands = peers.into_iter().filter_map(|pid| Some((pid, procfs::command(pid)?))).collect();
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let at_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let falls = falls::of(&processes);
        Self { host: host.to_owned(), at_ms, processes, commands, falls }
    }

    /// Notes which processes belong to a session.
    pub fn mark_session(&mut self, members: &HashSet<u32>) {
        for process in &mut self.processes {
            process.in_session = Some(members.contains(&process.pid));
        }
    }

    /// The command line of a peer.
    pub fn command(&self, pid: u32) -> Option<&str> {
        self.commands.get(&pid).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_scan;

    #[test]
    fn report_survives_the_way_as_json() {
        let own = process_scan::of(std::process::id()).unwrap();
        let mut report = HostReport::of("here", vec![own]);
        report.mark_session(&HashSet::from([std::process::id()]));
        assert_eq!(report.processes[0].in_session, Some(true));
        report.mark_session(&HashSet::new());
        assert_eq!(report.processes[0].in_session, Some(false));
        report.commands.insert(7, "x".to_owned());
        let text = serde_json::to_string(&report).unwrap();
        let back: HostReport = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&back).unwrap(), text);
        assert_eq!((back.command(7), back.processes[0].pid), (Some("x"), std::process::id()));
        assert_eq!(back.processes[0].status, report.processes[0].status);
    }
}
