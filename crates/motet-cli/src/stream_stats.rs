//! Reads node files ([`motet_wire::stream::stats`]), which any process may have written and may be changing.
//!
//! Nothing is mapped. Each part is copied with `pread` and parsed by the offsets of the format's own structures, so a file with
//! impossible contents is refused at worst.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use motet_wire::stream::record::{ConnectionInfo, Events, Lifecycle, Rx, SIZE, State, StreamRecord, Tx};
use motet_wire::stream::stats::{HEAD, MAGIC, NAME, StatsFileHead, VERSION, bytes, offset};

/// Most records that a node file may have room for: the limit of MOTET_STREAMS.
const MAX_RECORDS: usize = 1 << 20;
/// Records that one `pread` copies.
const RECORDS_PER_READ: usize = 256;
/// Reason codes that the head counts.
pub const REASONS: usize = 64;

/// Whether a link of /proc/PID/fd leads to a node file.
pub fn is_link(target: &Path) -> bool {
    target.to_str().and_then(|t| t.strip_prefix("/memfd:")).and_then(|t| t.strip_suffix(" (deleted)")) == Some(NAME)
}

/// The contents of a node file when it was read.
#[derive(Debug, Clone, Default)]
pub struct NodeFile {
    /// The process that created the file.
    pub creator: u32,
    /// Records that the file has room for.
    pub capacity: usize,
    /// Bytes of shared memory mapped for streams.
    pub segment_bytes: u64,
    /// Connections that stayed on TCP, by reason code.
    pub stayed_on_tcp: Vec<u64>,
    /// Streams that could not get a record.
    pub overflow: u64,
    /// Links opened, and links closed.
    pub links: (u64, u64),
    /// Descriptors that the engine itself uses.
    pub descriptors: u64,
    /// Streams in use.
    pub records: Vec<StreamRow>,
}

/// One stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamRow {
    /// Index and generation of the record; together they identify the stream in this file.
    pub id: (usize, u32),
    /// The process that uses it, in that process's PID namespace.
    pub owner: u32,
    /// Its descriptor in that process.
    pub fd: u32,
    /// The state of the stream.
    pub state: State,
    /// A reason code.
    pub reason: u32,
    /// Receiving stays on TCP.
    pub receives_over_tcp: bool,
    /// This end made the connection.
    pub connected: bool,
    /// Local address and the peer's.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    /// The peer's process and user, if known.
    pub peer: Option<(u32, u32)>,
    /// SO_COOKIE of both sockets.
    pub cookies: (u64, u64),
    /// Bytes sent and received over the fast path.
    pub fast: (u64, u64),
    /// Bytes sent and received over TCP, as far as Motet counted them.
    pub tcp: (u64, u64),
    /// Number of spills, of downgrades, and of single copies.
    pub events: (u64, u64, u64),
    /// Receives and waits in the kernel that cover the stream at present.
    pub sleeping: u32,
    /// Its receives follow a wait that Motet sees.
    pub waits_seen: bool,
    /// O_NONBLOCK was set when the engine took the stream.
    pub nonblocking: bool,
    /// Time of the connection, seconds since 1970.
    pub began: u64,
}

/// Opens the regular file behind a descriptor of another process. Never blocks.
pub fn open(link: &Path) -> io::Result<File> {
    const NONBLOCK: i32 = 0o4000;
    const NOCTTY: i32 = 0o400;
    let file = File::options().read(true).custom_flags(NONBLOCK | NOCTTY).open(link)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() && !kind.is_fifo() { Ok(file) } else { Err(io::Error::other("not a regular file")) }
}

/// Reads a node file. An error says what is wrong with the file.
pub fn read(file: &File) -> Result<NodeFile, String> {
    let size = file.metadata().map_err(|e| e.to_string())?.len();
    let mut head = vec![0; size_of::<StatsFileHead>()];
    file.read_exact_at(&mut head, 0).map_err(|_| "it is shorter than its head".to_owned())?;
    let head = Bytes(&head);
    if head.u64(offset_of!(StatsFileHead, magic)) != MAGIC {
        return Err("it does not start with Motet's magic number".to_owned());
    }
    let version = head.u32(offset_of!(StatsFileHead, version));
    if version != VERSION {
        return Err(format!(
            "it was written by another version of Motet (layout {version}, this program reads {VERSION})"
        ));
    }
    let record = head.u32(offset_of!(StatsFileHead, record)) as usize;
    let capacity = head.u32(offset_of!(StatsFileHead, capacity)) as usize;
    let used = head.u32(offset_of!(StatsFileHead, used)) as usize;
    if record != SIZE {
        return Err(format!(
            "it was written by another build of Motet (records of {record} bytes, this program reads {SIZE})"
        ));
    }
    if capacity > MAX_RECORDS || used > capacity || bytes(capacity) as u64 != size {
        return Err("its head does not fit the size of the file".to_owned());
    }
    let stayed_on_tcp =
        (0..REASONS).map(|code| head.u64(offset_of!(StatsFileHead, tcp_only_counts) + 8 * code)).collect();
    Ok(NodeFile {
        creator: head.u32(offset_of!(StatsFileHead, creator)),
        capacity,
        segment_bytes: head.u64(offset_of!(StatsFileHead, segment_bytes)),
        stayed_on_tcp,
        overflow: head.u64(offset_of!(StatsFileHead, overflow)),
        links: (head.u64(offset_of!(StatsFileHead, links)), head.u64(offset_of!(StatsFileHead, links) + 8)),
        descriptors: head.u64(offset_of!(StatsFileHead, descriptors)),
        records: records(file, used)?,
    })
}

fn records(file: &File, used: usize) -> Result<Vec<StreamRow>, String> {
    const { assert!(HEAD >= size_of::<StatsFileHead>()) };
    let mut rows = Vec::new();
    let mut buffer = vec![0; RECORDS_PER_READ * SIZE];
    for first in (0..used).step_by(RECORDS_PER_READ) {
        let count = RECORDS_PER_READ.min(used - first);
        let part = &mut buffer[..count * SIZE];
        file.read_exact_at(part, offset(first) as u64).map_err(|_| "it is shorter than its head says".to_owned())?;
        rows.extend(part.chunks_exact(SIZE).enumerate().filter_map(|(at, record)| row(first + at, Bytes(record))));
    }
    Ok(rows)
}

/// Parses one record; `None` if it is free.
fn row(index: usize, record: Bytes<'_>) -> Option<StreamRow> {
    let (tx, rx) = (record.from(offset_of!(StreamRecord, tx)), record.from(offset_of!(StreamRecord, rx)));
    let (life, events) =
        (record.from(offset_of!(StreamRecord, lifecycle)), record.from(offset_of!(StreamRecord, events)));
    let who = record.from(offset_of!(StreamRecord, connection));
    let state = State::from_u32(life.u32(offset_of!(Lifecycle, state)));
    if state == State::Free {
        return None;
    }
    // The sum of `StreamRecord::fast_bytes`, for numbers that may be anything.
    let fast_sent = tx.u64(offset_of!(Tx, tail)).saturating_sub(tx.u64(offset_of!(Tx, returned_bytes)));
    let fast_received = rx.u64(offset_of!(Rx, head)).saturating_sub(rx.u64(offset_of!(Rx, returned_bytes)));
    let fast_sent = fast_sent.wrapping_add(tx.u64(offset_of!(Tx, single_copy_bytes)));
    let fast_received = fast_received.wrapping_add(rx.u64(offset_of!(Rx, single_copy_bytes)));
    let peer = (who.u32(offset_of!(ConnectionInfo, pid)), who.u32(offset_of!(ConnectionInfo, uid)));
    Some(StreamRow {
        id: (index, life.u32(offset_of!(Lifecycle, generation))),
        owner: life.u32(offset_of!(Lifecycle, owner)),
        fd: life.u32(offset_of!(Lifecycle, fd)),
        state,
        reason: life.u32(offset_of!(Lifecycle, reason)),
        receives_over_tcp: life.u32(offset_of!(Lifecycle, tcp_only)) != 0,
        connected: who.u32(offset_of!(ConnectionInfo, role)) == 1,
        addresses: address(&who, 0).zip(address(&who, 1)),
        peer: (peer.0 != u32::MAX && peer.0 != 0).then_some(peer),
        cookies: (who.u64(offset_of!(ConnectionInfo, cookies)), who.u64(offset_of!(ConnectionInfo, cookies) + 8)),
        fast: (fast_sent, fast_received),
        tcp: (tx.u64(offset_of!(Tx, tcp_bytes)), rx.u64(offset_of!(Rx, tcp_bytes))),
        events: (
            events.u64(offset_of!(Events, spilled)),
            events.u64(offset_of!(Events, downgraded)),
            events.u64(offset_of!(Events, single_copy)),
        ),
        sleeping: rx.u32(offset_of!(Rx, kernel_calls)),
        waits_seen: rx.u32(offset_of!(Rx, evidence_left)) != 0,
        nonblocking: life.u32(offset_of!(Lifecycle, nonblocking)) != 0,
        began: who.u64(offset_of!(ConnectionInfo, began)),
    })
}

/// The local address (`end` 0) or the peer's (1).
fn address(who: &Bytes<'_>, end: usize) -> Option<SocketAddr> {
    let at = offset_of!(ConnectionInfo, addresses) + 16 * end;
    let octets: [u8; 16] = who.0.get(at..at + 16)?.try_into().ok()?;
    let ip = match who.u32(offset_of!(ConnectionInfo, family)) {
        4 => IpAddr::V4(Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3])),
        6 => IpAddr::V6(Ipv6Addr::from(octets)),
        _ => return None,
    };
    let port = u16::try_from(who.u32(offset_of!(ConnectionInfo, ports) + 4 * end)).ok()?;
    Some(SocketAddr::new(ip.to_canonical(), port))
}

/// A private copy of bytes; integers beyond its end read as 0.
pub struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    fn from(&self, at: usize) -> Bytes<'_> {
        Bytes(self.0.get(at..).unwrap_or_default())
    }
    /// The 32-bit integer at an offset.
    pub fn u32(&self, at: usize) -> u32 {
        self.0.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
    }
    /// The 64-bit integer at an offset.
    pub fn u64(&self, at: usize) -> u64 {
        self.0.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    fn file(contents: &[u8], size: u64) -> File {
        use rustix::fs::{MemfdFlags, memfd_create};
        let fd: OwnedFd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        let file = File::from(fd);
        file.write_all_at(contents, 0).unwrap();
        file.set_len(size).unwrap();
        file
    }

    fn head(record: u32, capacity: u32, used: u32) -> Vec<u8> {
        let mut head = vec![0; size_of::<StatsFileHead>()];
        let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
        put(offset_of!(StatsFileHead, magic), &MAGIC.to_ne_bytes());
        put(offset_of!(StatsFileHead, version), &VERSION.to_ne_bytes());
        put(offset_of!(StatsFileHead, record), &record.to_ne_bytes());
        put(offset_of!(StatsFileHead, capacity), &capacity.to_ne_bytes());
        put(offset_of!(StatsFileHead, used), &used.to_ne_bytes());
        head
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let record = SIZE as u32;
        assert!(read(&file(b"", 0)).is_err());
        assert!(read(&file(&[0xff; 8192], 8192)).unwrap_err().contains("magic"));
        assert!(read(&file(&head(record, 4, 0), bytes(3) as u64)).is_err());
        assert!(read(&file(&head(record, 4, 5), bytes(4) as u64)).is_err());
        assert!(read(&file(&head(record * 2, 4, 4), bytes(4) as u64)).is_err());
        assert!(read(&file(&head(record, u32::MAX, u32::MAX), 1 << 20)).is_err());
        assert_eq!(read(&file(&head(record, 4, 4), bytes(4) as u64)).unwrap().records, []);
    }

    #[test]
    fn another_layout_is_reported() {
        let mut head_bytes = head(SIZE as u32, 0, 0);
        for version in [99, 1] {
            head_bytes[offset_of!(StatsFileHead, version)] = version;
            assert!(read(&file(&head_bytes, HEAD as u64)).unwrap_err().contains(&format!("layout {version},")));
        }
        // A build with larger records under the same version, in a file of the right size.
        let grown = head(SIZE as u32 + 128, 3, 3);
        let size = HEAD as u64 + 3 * (SIZE as u64 + 128);
        assert!(read(&file(&grown, size)).unwrap_err().contains(&format!("records of {} bytes", SIZE + 128)));
    }

    #[test]
    fn records_of_noise_are_rows_or_nothing() {
        let mut contents = head(SIZE as u32, 300, 300);
        contents.resize(bytes(300), 0);
        let mut seed = 1u32;
        for byte in &mut contents[HEAD..] {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (seed >> 24) as u8 & 7;
        }
        assert!(read(&file(&contents, bytes(300) as u64)).unwrap().records.len() <= 300);
    }

    #[test]
    fn record_is_read_as_it_was_written() {
        use std::sync::atomic::Ordering::Relaxed;
        let record = StreamRecord::default();
        // Written by the format's own offsets: `row` must read what the fields hold.
        let mut raw = vec![0u8; SIZE];
        let mut put = |at: usize, bytes: &[u8]| raw[at..at + bytes.len()].copy_from_slice(bytes);
        record.tx.tail.store(1000, Relaxed);
        put(offset_of!(StreamRecord, tx) + offset_of!(Tx, tail), &record.tx.tail.load(Relaxed).to_ne_bytes());
        put(offset_of!(StreamRecord, tx) + offset_of!(Tx, returned_bytes), &100u64.to_ne_bytes());
        put(offset_of!(StreamRecord, tx) + offset_of!(Tx, single_copy_bytes), &7000u64.to_ne_bytes());
        put(offset_of!(StreamRecord, lifecycle) + offset_of!(Lifecycle, state), &2u32.to_ne_bytes());
        put(offset_of!(StreamRecord, lifecycle) + offset_of!(Lifecycle, owner), &77u32.to_ne_bytes());
        put(offset_of!(StreamRecord, connection) + offset_of!(ConnectionInfo, family), &4u32.to_ne_bytes());
        put(offset_of!(StreamRecord, connection) + offset_of!(ConnectionInfo, addresses) + 16, &[127, 0, 0, 1]);
        put(offset_of!(StreamRecord, connection) + offset_of!(ConnectionInfo, ports) + 4, &5000u32.to_ne_bytes());
        let row = row(5, Bytes(&raw)).unwrap();
        assert_eq!((row.id.0, row.owner, row.state, row.fast.0), (5, 77, State::Attached, 7900));
        assert_eq!(row.addresses.unwrap().1, "127.0.0.1:5000".parse().unwrap());
    }
}
