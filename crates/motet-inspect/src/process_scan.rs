//! Scans all processes: which run under Motet, and the contents of their node files and stats pages.
//!
//! A node file is shared by a process and its forked children; each record is listed under the process that owns it. A link between
//! two processes ([`LinkRow`]) is found by the segments that both have mapped, according to the kernel.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;

use motet::reason::{Reason, counts_tcp};
use motet_wire::message::stats::NodeFormat;
use motet_wire::stats_table::StatsFormat;
use motet_wire::stream::record::State;
use motet_wire::stream::stats::StreamFormat;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::elf_check::{self, Obstacle};
use crate::exported::Use;
use crate::node_stats::{self, MessageNode};
use crate::procfs;
use crate::rate::Rate;
use crate::stats_table;
use crate::stream_stats::{self, NodeFile, StreamRow};

/// The preload object's file name.
pub const SHIM: &str = "libmotet_sockets.so";
/// The preload object of the omniORB adapter, which may be missing.
pub const ORB_SHIM: &str = "libmotet_omniorb.so";
/// The preload object of exported folders, which may be missing.
pub const FILES_SHIM: &str = "libmotet_files.so";
/// Motet's libfabric provider, which may be missing.
pub const PROVIDER: &str = "libmotet-fi.so";
/// Motet's driver of Globus XIO, which may be missing.
pub const XIO_DRIVER: &str = "libglobus_xio_motet_driver.so";

/// The name of the memfds that two processes share.
const SEGMENT: &str = "motet-segment";
/// While this file exists, new processes stay on TCP.
const KILL_FILE: &str = "/etc/motet/disable";

/// The path of payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// Shared memory.
    Shm,
    /// The kernel's TCP.
    Tcp,
}

impl Path {
    /// The driver's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }
}

/// Bytes by path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Moved {
    /// Bytes over the fast path.
    pub fast: u64,
    /// Bytes over TCP, as far as Motet counts them: 0 for a stream that is not upgraded, whose bytes only the kernel counts.
    pub tcp: u64,
}

impl std::ops::AddAssign for Moved {
    fn add_assign(&mut self, other: Self) {
        // Wrapping: the numbers come from a file that any process may have written.
        self.fast = self.fast.wrapping_add(other.fast);
        self.tcp = self.tcp.wrapping_add(other.tcp);
    }
}

/// A stream, as users see it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Stream {
    /// Its descriptor.
    pub fd: u32,
    /// Local address.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub local: Option<SocketAddr>,
    /// The peer's address.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub peer: Option<SocketAddr>,
    /// This end made the connection.
    pub connected: bool,
    /// The peer's process; unknown until the upgrade.
    pub peer_pid: Option<u32>,
    /// The peer's user.
    pub peer_uid: Option<u32>,
    /// The path of payload.
    pub path: Path,
    /// The state of the stream.
    #[serde(serialize_with = "state_name", deserialize_with = "state_of_name")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub state: State,
    /// The reason code.
    pub reason: u32,
    /// The reason text.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub reason_text: Cow<'static, str>,
    /// Bytes sent.
    pub sent: Moved,
    /// Bytes received.
    pub received: Moved,
    /// Number of spills of a full ring to TCP.
    pub spilled: u64,
    /// Number of downgrades: unread bytes moved back to TCP.
    pub downgraded: u64,
    /// Number of transfers by single copy.
    pub single_copy: u64,
    /// Time of the connection, seconds since 1970.
    pub began: u64,
    /// Bytes per second, from the second of two scans on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Index and generation of its record; together they identify the stream in its node file.
    #[serde(skip)]
    pub id: (usize, u32),
    /// The state of its receiving half.
    #[serde(skip)]
    pub receiver: Receiver,
}

/// The state of the receiving half of an upgraded stream: reasons why its gate may be closed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Receiver {
    /// It receives over TCP, although the stream is upgraded.
    pub over_tcp: bool,
    /// A thread sleeps on it in the kernel.
    pub sleeps: bool,
    /// Its receives do not block, and no wait that Motet sees precedes them.
    pub unseen: bool,
}

/// The states of streams, and their words.
const STATES: [(State, &str); 5] = [
    (State::Free, "free"),
    (State::Candidate, "pending"),
    (State::Attached, "upgraded"),
    (State::TcpOnly, "tcp"),
    (State::Broken, "reset"),
];

fn state_name<S: Serializer>(state: &State, serializer: S) -> Result<S::Ok, S::Error> {
    let word = STATES.iter().find(|(known, _)| known == state).map_or("free", |(_, word)| word);
    serializer.serialize_str(word)
}

fn state_of_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<State, D::Error> {
    let word = Cow::<str>::deserialize(deserializer)?;
    let state = STATES.iter().find(|(_, known)| *known == word).map(|(state, _)| *state);
    state.ok_or_else(|| serde::de::Error::custom("no state of a stream"))
}

impl Stream {
    /// Whether Motet counts its bytes over TCP.
    pub fn is_counted(&self) -> bool {
        counts_tcp(self.state, Reason(self.reason))
    }
}

impl From<StreamRow> for Stream {
    fn from(row: StreamRow) -> Self {
        let is_counted = counts_tcp(row.state, Reason(row.reason));
        Self {
            fd: row.fd,
            local: row.addresses.map(|a| a.0),
            peer: row.addresses.map(|a| a.1),
            connected: row.connected,
            peer_pid: row.peer.map(|p| p.0),
            peer_uid: row.peer.map(|p| p.1),
            // The path that bytes may take; `recent` corrects it to the path that they do take.
            path: if row.state == State::Attached && !row.receives_over_tcp { Path::Shm } else { Path::Tcp },
            receiver: Receiver {
                over_tcp: row.receives_over_tcp,
                sleeps: row.sleeping != 0,
                unseen: row.nonblocking && !row.waits_seen,
            },
            state: row.state,
            reason: row.reason,
            reason_text: motet::reason::text(row.reason).into(),
            // What the engine has noted once does not count on: only the kernel does.
            sent: Moved { fast: row.fast.0, tcp: if is_counted { row.tcp.0 } else { 0 } },
            received: Moved { fast: row.fast.1, tcp: if is_counted { row.tcp.1 } else { 0 } },
            spilled: row.events.0,
            downgraded: row.events.1,
            single_copy: row.events.2,
            began: row.began,
            rate: None,
            id: row.id,
        }
    }
}

/// A link: the shared memory of a process and one other. The first stream that needs it opens it; it is closed when it has been
/// idle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LinkRow {
    /// The other process; unknown if it is gone or belongs to another user.
    pub peer_pid: Option<u32>,
    /// Streams on the link.
    pub streams: usize,
    /// Segments that both processes have mapped.
    pub segments: usize,
    /// Bytes of the segments in this process's address space, large rings included; an unused page takes no memory.
    pub bytes: u64,
}

/// How a process stands to Motet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", tag = "status", content = "detail")]
pub enum ProcessStatus {
    /// It has a node file.
    Active,
    /// Under Motet, without a socket so far that could be upgraded.
    NoSocketYet,
    /// Under Motet, with every connection on TCP for this reason.
    SwitchedOff(String),
    /// Not under Motet, but it uses the library for messages.
    NodesOnly,
    /// Started under Motet, but without the preload object for this reason.
    NotLoaded(String),
    /// It has a node file that cannot be read for this reason.
    Unreadable(String),
    /// Runs without Motet for this reason.
    WithoutMotet(String),
    /// It belongs to another user and cannot be inspected.
    #[default]
    Hidden,
}

/// The totals of a node file: all streams of its fork group, ended streams included.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeRow {
    /// The process that created the node file.
    pub creator: u32,
    /// Streams that the file has room for.
    pub capacity: usize,
    /// Bytes of shared memory mapped for streams.
    pub segment_bytes: u64,
    /// Streams for which the file had no room.
    pub overflow: u64,
    /// Links opened so far.
    pub links_opened: u64,
    /// Links closed so far.
    pub links_closed: u64,
    /// Descriptors that the engine itself uses.
    pub descriptors: u64,
    /// Connections that stayed on TCP, by reason.
    pub stayed_on_tcp: Vec<TcpCount>,
}

/// The number of connections that stayed on TCP for one reason.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TcpCount {
    /// The reason code.
    pub reason: u32,
    /// The reason text.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub text: Cow<'static, str>,
    /// Number of connections.
    pub count: u64,
}

/// A process.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Process {
    /// Its id, in the PID namespace of this command.
    pub pid: u32,
    /// Effective user.
    pub uid: Option<u32>,
    /// Command line.
    pub command: String,
    /// How it stands to Motet.
    #[serde(flatten)]
    pub status: ProcessStatus,
    /// The totals of its node file.
    pub node: Option<NodeRow>,
    /// Streams that it owns.
    pub streams: Vec<Stream>,
    /// Its nodes of messages.
    pub nodes: Vec<MessageNode>,
    /// Links to other processes, by peer; empty if only one process was read.
    pub links: Vec<LinkRow>,
    /// Bytes of memory of its links, both ends together; 0 if no visible process has the descriptors of the segments.
    pub memory: u64,
    /// For an MPI rank: the transport of its messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mpi: Option<String>,
    /// The exports that `motet run --files` shows to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<Use>,
    /// Whether it is a process of the gatekeeper's session; unknown without a gatekeeper.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_session: Option<bool>,
    /// Bytes per second of its streams and links, from the second of two scans on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Mapped segments: bytes by inode.
    #[serde(skip)]
    segments: BTreeMap<u64, u64>,
    /// Memory of the segments whose descriptors it has, by inode.
    #[serde(skip)]
    pages: BTreeMap<u64, u64>,
    /// Identity of its node file, which the processes of a fork group share.
    #[serde(skip)]
    pub(crate) fork_group: Option<Identity>,
}

impl Process {
    /// Bytes sent and received by its present streams.
    pub fn moved(&self) -> (Moved, Moved) {
        let (mut sent, mut received) = (Moved::default(), Moved::default());
        for stream in &self.streams {
            sent += stream.sent;
            received += stream.received;
        }
        (sent, received)
    }

    /// Whether Motet counts all bytes over TCP: of all of its streams, and no connection was left to TCP.
    pub fn counts_tcp(&self) -> bool {
        let has_others = self.node.as_ref().is_some_and(|node| !node.stayed_on_tcp.is_empty());
        !has_others && self.streams.iter().all(Stream::is_counted)
    }

    /// Bytes of messages sent and received by its nodes, through shared memory or by another driver.
    pub fn messages(&self) -> (Moved, Moved) {
        let (mut sent, mut received) = (Moved::default(), Moved::default());
        for link in self.nodes.iter().flat_map(|node| &node.links) {
            let (out, back) = link.counts.bytes();
            // Frames are what drivers without shared memory carry.
            let frames = (link.counts.frames_sent, link.counts.frames_received);
            sent += Moved { fast: out.saturating_sub(frames.0), tcp: frames.0 };
            received += Moved { fast: back.saturating_sub(frames.1), tcp: frames.1 };
        }
        (sent, received)
    }

    /// Bytes of memory of its links, divided by its upgraded streams.
    pub fn memory_of_a_stream(&self) -> Option<u64> {
        let upgraded = self.streams.iter().filter(|s| s.state == State::Attached).count() as u64;
        (upgraded > 0 && self.memory > 0).then(|| self.memory / upgraded)
    }

    /// The number of streams on the fast path, and of the others.
    pub fn paths(&self) -> (usize, usize) {
        let fast = self.streams.iter().filter(|s| s.path == Path::Shm).count();
        (fast, self.streams.len() - fast)
    }
}

/// All processes under Motet, or with a node of messages, by process id.
pub fn scan() -> Vec<Process> {
    let mut files = Files::default();
    let processes = procfs::pids().into_iter().filter_map(|pid| read_process(pid, &mut files));
    let mut processes: Vec<_> =
        processes.filter(|p| !matches!(p.status, ProcessStatus::WithoutMotet(_) | ProcessStatus::Hidden)).collect();
    let links: Vec<_> = processes.iter().map(|process| links(process, &processes)).collect();
    let pages: HashMap<u64, u64> =
        processes.iter().flat_map(|p| &p.pages).map(|(inode, bytes)| (*inode, *bytes)).collect();
    for (process, links) in processes.iter_mut().zip(links) {
        process.links = links;
        process.memory = process.segments.keys().filter_map(|inode| pages.get(inode)).sum();
    }
    name_peers(&mut processes);
    processes
}

/// The links of one process: its peer is the process that has the same segment mapped.
fn links(process: &Process, all: &[Process]) -> Vec<LinkRow> {
    let mut links = BTreeMap::<Option<u32>, LinkRow>::new();
    let empty = |peer_pid| LinkRow { peer_pid, streams: 0, segments: 0, bytes: 0 };
    let upgraded = |s: &&Stream| s.state == State::Attached;
    let peers: HashSet<u32> = process.streams.iter().filter_map(|s| s.peer_pid).collect();
    for (inode, bytes) in &process.segments {
        let others = all.iter().filter(|p| p.pid != process.pid && p.segments.contains_key(inode));
        // A process of the same fork group may have the segment mapped as well. Prefer a peer of a stream, then another group.
        let named = |p: &Process| peers.contains(&p.pid);
        let peer = others.max_by_key(|p| (named(p), p.fork_group != process.fork_group)).map(|p| p.pid);
        let own = peers.contains(&process.pid).then_some(process.pid);
        let link = links.entry(peer.or(own)).or_insert_with(|| empty(peer.or(own)));
        link.segments += 1;
        link.bytes += bytes;
    }
    for stream in process.streams.iter().filter(upgraded) {
        links.entry(stream.peer_pid).or_insert_with(|| empty(stream.peer_pid)).streams += 1;
    }
    links.into_values().collect()
}

/// One process, with or without Motet; `None` if there is no such process.
pub fn of(pid: u32) -> Option<Process> {
    read_process(pid, &mut Files::default())
}

/// Device and inode.
pub(crate) type Identity = (u64, u64);

/// Node files by identity: each is read once in a scan.
#[derive(Default)]
struct Files {
    known: HashMap<Identity, Result<NodeFile, String>>,
}

impl Files {
    fn read(&mut self, link: &std::path::Path) -> Option<(Identity, &Result<NodeFile, String>)> {
        let opened = match stats_table::open(link) {
            // The descriptor was closed, or the process is gone.
            Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound) => return None,
            Err(e) => return Some(((0, 0), self.known.entry((0, 0)).or_insert(Err(e.to_string())))),
            Ok(file) => file,
        };
        let identity = procfs::identity(&opened).ok()?;
        Some((identity, self.known.entry(identity).or_insert_with(|| stream_stats::read(&opened))))
    }
}

fn read_process(pid: u32, files: &mut Files) -> Option<Process> {
    let command = procfs::command(pid)?;
    let mut process =
        Process { pid, uid: procfs::uid(pid), command, status: ProcessStatus::Hidden, ..Process::default() };
    let Ok(links) = procfs::links(pid) else { return Some(process) };
    let own = procfs::own_pid(pid);
    let mut file = None;
    for (link, _) in links.iter().filter(|(_, target)| procfs::is_memfd(target, StreamFormat::NAME)) {
        match files.read(link) {
            Some((identity, Ok(read))) => {
                process.fork_group = Some(identity);
                file = Some(Ok(read.clone()));
            }
            Some((_, Err(why))) if file.is_none() => file = Some(Err(why.clone())),
            _ => {}
        }
    }
    process.nodes = nodes(&links, own);
    match file {
        Some(Ok(read)) => {
            process.status = ProcessStatus::Active;
            process.streams = read.records.iter().filter(|r| r.owner == own).cloned().map(Stream::from).collect();
            process.node = Some(summary(&read));
            process.segments = procfs::memfds(pid, SEGMENT);
            let files = links.iter().filter(|(_, target)| procfs::is_memfd(target, SEGMENT));
            process.pages = files.filter_map(|(link, _)| procfs::pages(link)).collect();
        }
        Some(Err(why)) => process.status = ProcessStatus::Unreadable(why),
        None => {
            process.status = match without_node(pid) {
                ProcessStatus::WithoutMotet(_) if !process.nodes.is_empty() => ProcessStatus::NodesOnly,
                status => status,
            }
        }
    }
    Some(process)
}

/// The nodes of messages of a process. A forked child has the descriptors of its parent's stats pages, which are skipped.
fn nodes(links: &[(std::path::PathBuf, std::path::PathBuf)], own: u32) -> Vec<MessageNode> {
    let pages_of_nodes = links.iter().filter(|(_, target)| procfs::is_memfd(target, NodeFormat::NAME));
    let nodes = pages_of_nodes.filter_map(|(link, _)| node_stats::read(&stats_table::open(link).ok()?).ok());
    nodes.filter(|node| node.process == own).collect()
}

/// Sets the name and process of the peer of each link, from the stats page of the peer.
fn name_peers(processes: &mut [Process]) {
    let named = processes
        .iter()
        .flat_map(|process| process.nodes.iter().map(|node| (node.number.clone(), (node.name.clone(), process.pid))));
    let named: HashMap<String, (String, u32)> = named.collect();
    for link in processes.iter_mut().flat_map(|process| &mut process.nodes).flat_map(|node| &mut node.links) {
        if let Some((name, pid)) = named.get(&link.peer) {
            link.peer_name = Some(name.clone());
            link.peer_pid = Some(*pid); // in this command's PID namespace
        }
    }
}

fn without_node(pid: u32) -> ProcessStatus {
    if procfs::maps(pid, SHIM) == Some(true) {
        return switched_off(pid).map_or(ProcessStatus::NoSocketYet, |why| ProcessStatus::SwitchedOff(why.to_owned()));
    }
    let asked = procfs::variable(pid, "LD_PRELOAD").is_some_and(|v| v.contains(SHIM));
    let obstacle = elf_check::inspect(&procfs::executable(pid));
    match (asked, obstacle) {
        (true, Err(obstacle)) => ProcessStatus::NotLoaded(obstacle.to_string()),
        (true, Ok(())) => ProcessStatus::NotLoaded(Obstacle::NOT_FOUND_BY_LOADER.to_owned()),
        (false, Err(obstacle)) => ProcessStatus::WithoutMotet(obstacle.to_string()),
        (false, Ok(())) => ProcessStatus::WithoutMotet(elf_check::NOT_STARTED_UNDER_MOTET.to_owned()),
    }
}

/// Why a process under Motet keeps every connection on TCP, as far as other processes can see.
fn switched_off(pid: u32) -> Option<&'static str> {
    if procfs::variable(pid, "MOTET_DISABLE").is_some_and(|v| !v.is_empty() && v != "0") {
        return Some("it was started with MOTET_DISABLE");
    }
    if procfs::confined(pid) {
        return Some("it runs under a seccomp filter, which may forbid the system calls of Motet");
    }
    std::path::Path::new(KILL_FILE).exists().then_some("/etc/motet/disable exists; remove it to use Motet")
}

fn summary(file: &NodeFile) -> NodeRow {
    let counted = file.stayed_on_tcp.iter().enumerate().filter(|(_, count)| **count > 0);
    NodeRow {
        creator: file.creator,
        capacity: file.capacity,
        segment_bytes: file.segment_bytes,
        overflow: file.overflow,
        links_opened: file.links.0,
        links_closed: file.links.1,
        descriptors: file.descriptors,
        stayed_on_tcp: counted
            .map(|(code, count)| TcpCount {
                reason: code as u32,
                text: motet::reason::text(code as u32).into(),
                count: *count,
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(state: State) -> StreamRow {
        StreamRow {
            id: (0, 0),
            owner: 1,
            fd: 3,
            state,
            reason: 0,
            receives_over_tcp: false,
            connected: true,
            addresses: None,
            peer: None,
            cookies: (0, 0),
            fast: (7, 8),
            tcp: (5, 6),
            events: (0, 0, 0),
            sleeping: 0,
            waits_seen: false,
            nonblocking: false,
            began: 0,
        }
    }

    /// The engine notes the bytes of a stream when it looks at it for the last time. The number does not grow, so it is none.
    #[test]
    fn bytes_that_only_the_kernel_counts_are_not_shown() {
        for (state, tcp) in [(State::Candidate, 0), (State::Attached, 5), (State::TcpOnly, 0), (State::Broken, 5)] {
            let stream = Stream::from(row(state));
            assert_eq!((stream.sent.fast, stream.sent.tcp, stream.is_counted()), (7, tcp, tcp > 0), "{state:?}");
        }
        for reason in [Reason::CONFINED, Reason::OWN_DESCRIPTORS] {
            let stream = Stream::from(StreamRow { reason: reason.0, ..row(State::Attached) });
            assert_eq!((stream.sent.fast, stream.sent.tcp, stream.is_counted()), (7, 0, false), "{reason:?}");
        }
    }
}
