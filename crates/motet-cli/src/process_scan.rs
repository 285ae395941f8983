//! One look at all processes: which are equipped, and what their node files say.
//!
//! A node file is shared by a process and its forked children; each record is listed under the process that owns it. What two
//! processes share beside it, their link, is what the kernel says they have both mapped: see [`Link`].

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;

use motet_wire::stream::record::State;
use serde::{Serialize, Serializer};

use crate::elf_check::{self, Obstacle};
use crate::node_stats::{self, MessageNode};
use crate::procfs;
use crate::stream_stats::{self, NodeFile, Row};

/// The preload object's file name.
pub const SHIM: &str = "libmotet_sockets.so";
/// The preload object of the omniORB voice, which may be missing.
pub const ORB_SHIM: &str = "libmotet_omniorb.so";
/// Motet's provider of libfabric, which may be missing.
pub const PROVIDER: &str = "libmotet-fi.so";

/// How the memory between two processes is called.
const SEGMENT: &str = "motet-segment";
/// While it exists, processes that begin stay plain.
const KILL_FILE: &str = "/etc/motet/disable";

/// What payload takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// Shared memory.
    Shm,
    /// The kernel's TCP.
    Tcp,
}

impl Path {
    /// As the driver is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }
}

/// A pair of counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// Bytes over the fast path.
    pub fast: u64,
    /// Bytes over TCP, as far as they were counted: the kernel alone counts those of a stream that is never upgraded.
    pub tcp: u64,
}

impl std::ops::AddAssign for Moved {
    fn add_assign(&mut self, other: Self) {
        // Wrapping: the numbers come from a file that anybody may have written.
        self.fast = self.fast.wrapping_add(other.fast);
        self.tcp = self.tcp.wrapping_add(other.tcp);
    }
}

/// A stream as it is shown.
#[derive(Debug, Clone, Serialize)]
pub struct Stream {
    /// Its descriptor.
    pub fd: u32,
    /// Own address.
    pub local: Option<SocketAddr>,
    /// The peer's.
    pub peer: Option<SocketAddr>,
    /// This end made the connection.
    pub connected: bool,
    /// The peer's process; unknown until the upgrade.
    pub peer_pid: Option<u32>,
    /// The peer's user.
    pub peer_uid: Option<u32>,
    /// What payload takes.
    pub path: Path,
    /// What became of the stream.
    #[serde(serialize_with = "state_name")]
    pub state: State,
    /// Why; code.
    pub reason: u32,
    /// Why; text.
    pub reason_text: &'static str,
    /// Bytes out.
    pub sent: Moved,
    /// Bytes in.
    pub received: Moved,
    /// Times a full ring spilled to TCP.
    pub spilled: u64,
    /// Times unread bytes moved back to TCP.
    pub downgraded: u64,
    /// Large transfers by single copy.
    pub single_copy: u64,
    /// Seconds since 1970.
    pub began: u64,
    /// Names the stream among those of its node file; for rates.
    #[serde(skip)]
    pub place: (usize, u32),
    /// What its receiver does.
    #[serde(skip)]
    pub receiver: Receiver,
}

/// What the receiving half of an upgraded stream does, as far as its record says: why its gate may be closed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Receiver {
    /// It keeps to TCP, although it is upgraded.
    pub plain: bool,
    /// A thread sleeps on it in the kernel now.
    pub sleeps: bool,
    /// Its receives do not block, and follow no wait that Motet sees.
    pub unseen: bool,
}

fn state_name<S: Serializer>(state: &State, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match state {
        State::Free => "free",
        State::Candidate => "pending",
        State::Attached => "upgraded",
        State::Plain => "plain",
        State::Broken => "reset",
    })
}

impl From<Row> for Stream {
    fn from(row: Row) -> Self {
        Self {
            fd: row.fd,
            local: row.addresses.map(|a| a.0),
            peer: row.addresses.map(|a| a.1),
            connected: row.connected,
            peer_pid: row.peer.map(|p| p.0),
            peer_uid: row.peer.map(|p| p.1),
            // Where bytes may go; where they go is `recent`'s.
            path: if row.state == State::Attached && !row.receives_plain { Path::Shm } else { Path::Tcp },
            receiver: Receiver {
                plain: row.receives_plain,
                sleeps: row.sleeping != 0,
                unseen: row.nonblocking && !row.waits_seen,
            },
            state: row.state,
            reason: row.reason,
            reason_text: motet::reason::text(row.reason),
            sent: Moved { fast: row.fast.0, tcp: row.tcp.0 },
            received: Moved { fast: row.fast.1, tcp: row.tcp.1 },
            spilled: row.events.0,
            downgraded: row.events.1,
            single_copy: row.events.2,
            began: row.began,
            place: row.place,
        }
    }
}

/// What exists between a process and one other, beside the streams themselves: opened by the first stream that needs it, closed
/// when it has been idle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Link {
    /// The other process; unknown when it is gone, or another user's.
    pub peer_pid: Option<u32>,
    /// Streams on it now.
    pub streams: usize,
    /// Pieces of memory that both have mapped.
    pub segments: usize,
    /// Bytes of them in this process's address space, large rings included; a page that nobody has used takes no memory.
    pub bytes: u64,
}

/// How far a process is with Motet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "status", content = "detail")]
pub enum Standing {
    /// It has a node file.
    Active,
    /// Equipped; it has had no socket yet that could be upgraded.
    NoSocketYet,
    /// Equipped, and told or bound to keep every connection plain.
    SwitchedOff(String),
    /// Not equipped: it uses Motet by itself, for messages.
    NodesOnly,
    /// Started under Motet, but the preload object is not in it.
    NotLoaded(String),
    /// It has a node file that cannot be read.
    Unreadable(String),
    /// Nothing of Motet is in it.
    NotEquipped(String),
    /// Another user's: nothing can be seen.
    #[default]
    Hidden,
}

/// What the node file says about all streams of its processes, those that ended included.
#[derive(Debug, Clone, Serialize)]
pub struct Node {
    /// The process that made it.
    pub creator: u32,
    /// Streams that it has room for.
    pub capacity: usize,
    /// Bytes of shared memory mapped for streams.
    pub segment_bytes: u64,
    /// Streams that found no room.
    pub overflow: u64,
    /// Links opened so far.
    pub links_opened: u64,
    /// Links closed so far.
    pub links_closed: u64,
    /// Descriptors of the engine's own.
    pub descriptors: u64,
    /// Connections that stayed on TCP, by reason.
    pub plain: Vec<Plain>,
}

/// How many connections stayed on TCP for one reason.
#[derive(Debug, Clone, Serialize)]
pub struct Plain {
    /// Code.
    pub reason: u32,
    /// Text.
    pub text: &'static str,
    /// How many.
    pub count: u64,
}

/// A process.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Process {
    /// Its id, as this command sees it.
    pub pid: u32,
    /// Effective user.
    pub uid: Option<u32>,
    /// Command line.
    pub command: String,
    /// How far it is with Motet.
    #[serde(flatten)]
    pub standing: Standing,
    /// What its node file says as a whole.
    pub node: Option<Node>,
    /// Streams that it owns.
    pub streams: Vec<Stream>,
    /// Its nodes of messages.
    pub nodes: Vec<MessageNode>,
    /// Links to other processes, by peer; empty when only one process was looked at.
    pub links: Vec<Link>,
    /// Bytes of memory that its links take, those of the other ends included; 0 where nobody who could tell was seen.
    pub memory: u64,
    /// Segments that it has mapped: bytes by inode.
    #[serde(skip)]
    segments: BTreeMap<u64, u64>,
    /// Memory of segments whose descriptors it has, by inode.
    #[serde(skip)]
    pages: BTreeMap<u64, u64>,
    /// Its node file: forked relatives have the same.
    #[serde(skip)]
    pub(crate) family: Option<Identity>,
}

impl Process {
    /// Bytes out and in, of the streams that are there now.
    pub fn moved(&self) -> (Moved, Moved) {
        let (mut sent, mut received) = (Moved::default(), Moved::default());
        for stream in &self.streams {
            sent += stream.sent;
            received += stream.received;
        }
        (sent, received)
    }

    /// Bytes of memory of its links for each of its upgraded streams.
    pub fn memory_of_a_stream(&self) -> Option<u64> {
        let upgraded = self.streams.iter().filter(|s| s.state == State::Attached).count() as u64;
        (upgraded > 0 && self.memory > 0).then(|| self.memory / upgraded)
    }

    /// Streams on the fast path, and the others.
    pub fn paths(&self) -> (usize, usize) {
        let fast = self.streams.iter().filter(|s| s.path == Path::Shm).count();
        (fast, self.streams.len() - fast)
    }
}

/// Every process that has to do with Motet, by process id.
pub fn take() -> Vec<Process> {
    let mut files = Files::default();
    let processes = procfs::pids().into_iter().filter_map(|pid| look(pid, &mut files));
    let mut processes: Vec<_> =
        processes.filter(|p| !matches!(p.standing, Standing::NotEquipped(_) | Standing::Hidden)).collect();
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

/// The links of one process among all: whoever has the same segment mapped is its peer.
fn links(process: &Process, all: &[Process]) -> Vec<Link> {
    let mut links = BTreeMap::<Option<u32>, Link>::new();
    let empty = |peer_pid| Link { peer_pid, streams: 0, segments: 0, bytes: 0 };
    let upgraded = |s: &&Stream| s.state == State::Attached;
    let peers: HashSet<u32> = process.streams.iter().filter_map(|s| s.peer_pid).collect();
    for (inode, bytes) in &process.segments {
        let others = all.iter().filter(|p| p.pid != process.pid && p.segments.contains_key(inode));
        // A forked relative may have it mapped as well: the peer is the one that streams lead to, or else a stranger.
        let named = |p: &Process| peers.contains(&p.pid);
        let peer = others.max_by_key(|p| (named(p), p.family != process.family)).map(|p| p.pid);
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

/// One process, equipped or not; `None` when there is none.
pub fn of(pid: u32) -> Option<Process> {
    look(pid, &mut Files::default())
}

/// Device and inode.
pub(crate) type Identity = (u64, u64);

/// Node files, each read once in a survey.
#[derive(Default)]
struct Files {
    known: HashMap<Identity, Result<NodeFile, String>>,
}

impl Files {
    fn read(&mut self, link: &std::path::Path) -> Option<(Identity, &Result<NodeFile, String>)> {
        let opened = match stream_stats::open(link) {
            // The descriptor was closed, or the process is gone.
            Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound) => return None,
            Err(e) => return Some(((0, 0), self.known.entry((0, 0)).or_insert(Err(e.to_string())))),
            Ok(file) => file,
        };
        let identity = procfs::identity(&opened).ok()?;
        Some((identity, self.known.entry(identity).or_insert_with(|| stream_stats::read(&opened))))
    }
}

fn look(pid: u32, files: &mut Files) -> Option<Process> {
    let command = procfs::command(pid)?;
    let mut process = Process { pid, uid: procfs::uid(pid), command, standing: Standing::Hidden, ..Process::default() };
    let Ok(links) = procfs::links(pid) else { return Some(process) };
    let own = procfs::own_pid(pid);
    let mut file = None;
    for (link, _) in links.iter().filter(|(_, target)| stream_stats::is_link(target)) {
        match files.read(link) {
            Some((identity, Ok(read))) => {
                process.family = Some(identity);
                file = Some(Ok(read.clone()));
            }
            Some((_, Err(why))) if file.is_none() => file = Some(Err(why.clone())),
            _ => {}
        }
    }
    process.nodes = nodes(&links, own);
    match file {
        Some(Ok(read)) => {
            process.standing = Standing::Active;
            process.streams = read.records.iter().filter(|r| r.owner == own).cloned().map(Stream::from).collect();
            process.node = Some(summary(&read));
            process.segments = procfs::memfds(pid, SEGMENT);
            let files = links.iter().filter(|(_, target)| is_segment(target));
            process.pages = files.filter_map(|(link, _)| procfs::pages(link)).collect();
        }
        Some(Err(why)) => process.standing = Standing::Unreadable(why),
        None => {
            process.standing = match without_node(pid) {
                Standing::NotEquipped(_) if !process.nodes.is_empty() => Standing::NodesOnly,
                standing => standing,
            }
        }
    }
    Some(process)
}

/// The nodes of messages among what a process has open; forked children have their parent's, which are not theirs.
fn nodes(links: &[(std::path::PathBuf, std::path::PathBuf)], own: u32) -> Vec<MessageNode> {
    let sheets = links.iter().filter(|(_, target)| node_stats::is_link(target));
    let nodes = sheets.filter_map(|(link, _)| node_stats::read(&stream_stats::open(link).ok()?));
    nodes.filter(|node| node.process == own).collect()
}

/// Gives the peers of links between nodes the names that those nodes say they have.
fn name_peers(processes: &mut [Process]) {
    let named = processes
        .iter()
        .flat_map(|process| process.nodes.iter().map(|node| (node.number.clone(), (node.name.clone(), process.pid))));
    let named: HashMap<String, (String, u32)> = named.collect();
    for link in processes.iter_mut().flat_map(|process| &mut process.nodes).flat_map(|node| &mut node.links) {
        if let Some((name, pid)) = named.get(&link.peer) {
            link.peer_name = Some(name.clone());
            link.peer_pid = Some(*pid); // as it is called here, whatever it is in the other's PID namespace
        }
    }
}

fn is_segment(target: &std::path::Path) -> bool {
    target.to_str().and_then(|t| t.strip_prefix("/memfd:")).and_then(|t| t.split(' ').next()) == Some(SEGMENT)
}

fn without_node(pid: u32) -> Standing {
    if procfs::maps(pid, SHIM) == Some(true) {
        return switched_off(pid).map_or(Standing::NoSocketYet, |why| Standing::SwitchedOff(why.to_owned()));
    }
    let asked = procfs::variable(pid, "LD_PRELOAD").is_some_and(|v| v.contains(SHIM));
    let obstacle = elf_check::inspect(&procfs::executable(pid));
    match (asked, obstacle) {
        (true, Err(obstacle)) => Standing::NotLoaded(obstacle.to_string()),
        (true, Ok(())) => Standing::NotLoaded(Obstacle::NOT_FOUND_BY_LOADER.to_owned()),
        (false, Err(obstacle)) => Standing::NotEquipped(obstacle.to_string()),
        (false, Ok(())) => Standing::NotEquipped(elf_check::NOT_STARTED_UNDER_MOTET.to_owned()),
    }
}

/// Why an equipped process keeps every connection plain, as far as it shows from outside.
fn switched_off(pid: u32) -> Option<&'static str> {
    if procfs::variable(pid, "MOTET_DISABLE").is_some_and(|v| !v.is_empty() && v != "0") {
        return Some("it was started with MOTET_DISABLE");
    }
    if procfs::confined(pid) {
        return Some("it runs under a seccomp filter, where extra system calls may kill it");
    }
    std::path::Path::new(KILL_FILE).exists().then_some("the kill file /etc/motet/disable exists")
}

fn summary(file: &NodeFile) -> Node {
    let plain = file.plain.iter().enumerate().filter(|(_, count)| **count > 0);
    Node {
        creator: file.creator,
        capacity: file.capacity,
        segment_bytes: file.segment_bytes,
        overflow: file.overflow,
        links_opened: file.links.0,
        links_closed: file.links.1,
        descriptors: file.descriptors,
        plain: plain
            .map(|(code, count)| Plain { reason: code as u32, text: motet::reason::text(code as u32), count: *count })
            .collect(),
    }
}

/// Commands of the peers of some streams, by process id.
pub fn peer_names(streams: &[Stream]) -> BTreeMap<u32, String> {
    let pids: BTreeSet<u32> = streams.iter().filter_map(|s| s.peer_pid).collect();
    pids.into_iter().filter_map(|pid| Some((pid, procfs::name(&procfs::command(pid)?).to_owned()))).collect()
}
