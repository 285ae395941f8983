//! Reading a node file ([`motet_wire::stream::stats`]) that any process may have made, and may be changing now.
//!
//! Nothing is mapped: each part is copied with `pread` and taken apart by the offsets of the format's own structures, so
//! that a file which lies about itself can at worst be refused.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use motet_wire::stream::record::{Events, Life, Record, Rx, SIZE, State, Tx, Who};
use motet_wire::stream::stats::{HEAD, MAGIC, NAME, NodeHead, VERSION, bytes, offset};

/// Most records that a node file may have room for: more than MOTET_STREAMS allows is a lie.
const MOST: usize = 1 << 20;
/// Records copied at a time.
const CHUNK: usize = 256;
/// Reasons that the head counts.
pub const REASONS: usize = 64;

/// The link of such a file's descriptor in /proc.
pub fn is_link(target: &Path) -> bool {
    target.to_str().and_then(|t| t.strip_prefix("/memfd:")).and_then(|t| t.strip_suffix(" (deleted)")) == Some(NAME)
}

/// What a node file said when it was read.
#[derive(Debug, Clone, Default)]
pub struct NodeFile {
    /// The process that made it.
    pub creator: u32,
    /// Records that it has room for.
    pub capacity: usize,
    /// Bytes of shared memory mapped for streams.
    pub segment_bytes: u64,
    /// Connections that stayed plain, by reason.
    pub plain: Vec<u64>,
    /// Streams that could not get a record.
    pub overflow: u64,
    /// Links opened and closed.
    pub links: (u64, u64),
    /// Descriptors of the engine's own.
    pub descriptors: u64,
    /// Streams in use.
    pub records: Vec<Row>,
}

/// One stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Its place in the file, and how often that was reused: together they name the stream.
    pub place: (usize, u32),
    /// The process that uses it, in that process's PID namespace.
    pub owner: u32,
    /// Its descriptor there.
    pub fd: u32,
    /// What became of it.
    pub state: State,
    /// A reason code.
    pub reason: u32,
    /// Receiving stays on TCP.
    pub receives_plain: bool,
    /// This end made the connection.
    pub connected: bool,
    /// Own address and the peer's.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    /// Peer's process and user, when known.
    pub peer: Option<(u32, u32)>,
    /// SO_COOKIE of both sockets.
    pub cookies: (u64, u64),
    /// Bytes sent and received over the wire.
    pub fast: (u64, u64),
    /// Bytes sent and received over TCP, as far as they were counted.
    pub tcp: (u64, u64),
    /// Times a full ring spilled, bytes were taken back, and payload went by single copy.
    pub events: (u64, u64, u64),
    /// Kernel receives and sleeps that cover the stream now.
    pub sleeping: u32,
    /// Its receives came after a wait that Motet sees.
    pub waits_seen: bool,
    /// O_NONBLOCK when the engine took it.
    pub nonblocking: bool,
    /// Seconds since 1970.
    pub began: u64,
}

/// Opens what a descriptor of another process links to, without waiting for anything.
pub fn open(link: &Path) -> io::Result<File> {
    const NONBLOCK: i32 = 0o4000;
    const NOCTTY: i32 = 0o400;
    let file = File::options().read(true).custom_flags(NONBLOCK | NOCTTY).open(link)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() && !kind.is_fifo() { Ok(file) } else { Err(io::Error::other("not a regular file")) }
}

/// Reads a node file, or says what is wrong with it.
pub fn read(file: &File) -> Result<NodeFile, String> {
    let size = file.metadata().map_err(|e| e.to_string())?.len();
    let mut head = vec![0; size_of::<NodeHead>()];
    file.read_exact_at(&mut head, 0).map_err(|_| "shorter than its head".to_owned())?;
    let head = Bytes(&head);
    if head.u64(offset_of!(NodeHead, magic)) != MAGIC {
        return Err("does not start with Motet's magic number".to_owned());
    }
    let version = head.u32(offset_of!(NodeHead, version));
    if version != VERSION {
        return Err(format!("written by another version of Motet (layout {version}, this program reads {VERSION})"));
    }
    let record = head.u32(offset_of!(NodeHead, record)) as usize;
    let capacity = head.u32(offset_of!(NodeHead, capacity)) as usize;
    let used = head.u32(offset_of!(NodeHead, used)) as usize;
    if record != SIZE {
        return Err(format!(
            "written by another build of Motet (records of {record} bytes, this program reads {SIZE})"
        ));
    }
    if capacity > MOST || used > capacity || bytes(capacity) as u64 != size {
        return Err("its sizes disagree with its file".to_owned());
    }
    let plain = (0..REASONS).map(|code| head.u64(offset_of!(NodeHead, plain) + 8 * code)).collect();
    Ok(NodeFile {
        creator: head.u32(offset_of!(NodeHead, creator)),
        capacity,
        segment_bytes: head.u64(offset_of!(NodeHead, segment_bytes)),
        plain,
        overflow: head.u64(offset_of!(NodeHead, overflow)),
        links: (head.u64(offset_of!(NodeHead, links)), head.u64(offset_of!(NodeHead, links) + 8)),
        descriptors: head.u64(offset_of!(NodeHead, descriptors)),
        records: records(file, used)?,
    })
}

fn records(file: &File, used: usize) -> Result<Vec<Row>, String> {
    const { assert!(HEAD >= size_of::<NodeHead>()) };
    let mut rows = Vec::new();
    let mut buffer = vec![0; CHUNK * SIZE];
    for first in (0..used).step_by(CHUNK) {
        let count = CHUNK.min(used - first);
        let part = &mut buffer[..count * SIZE];
        file.read_exact_at(part, offset(first) as u64).map_err(|_| "shorter than it says".to_owned())?;
        rows.extend(part.chunks_exact(SIZE).enumerate().filter_map(|(at, record)| row(first + at, Bytes(record))));
    }
    Ok(rows)
}

/// One record; `None` when it is not in use.
fn row(index: usize, record: Bytes<'_>) -> Option<Row> {
    let (tx, rx) = (record.from(offset_of!(Record, tx)), record.from(offset_of!(Record, rx)));
    let (life, events) = (record.from(offset_of!(Record, life)), record.from(offset_of!(Record, events)));
    let who = record.from(offset_of!(Record, who));
    let state = State::from_u32(life.u32(offset_of!(Life, state)));
    if state == State::Free {
        return None;
    }
    // As `Record::fast_bytes`, but the numbers may be anything.
    let fast_sent = tx.u64(offset_of!(Tx, tail)).saturating_sub(tx.u64(offset_of!(Tx, returned)));
    let fast_received = rx.u64(offset_of!(Rx, head)).saturating_sub(rx.u64(offset_of!(Rx, moved)));
    let fast_sent = fast_sent.wrapping_add(tx.u64(offset_of!(Tx, copied)));
    let fast_received = fast_received.wrapping_add(rx.u64(offset_of!(Rx, copied)));
    let peer = (who.u32(offset_of!(Who, pid)), who.u32(offset_of!(Who, uid)));
    Some(Row {
        place: (index, life.u32(offset_of!(Life, generation))),
        owner: life.u32(offset_of!(Life, owner)),
        fd: life.u32(offset_of!(Life, fd)),
        state,
        reason: life.u32(offset_of!(Life, reason)),
        receives_plain: life.u32(offset_of!(Life, plain)) != 0,
        connected: who.u32(offset_of!(Who, role)) == 1,
        addresses: address(&who, 0).zip(address(&who, 1)),
        peer: (peer.0 != u32::MAX && peer.0 != 0).then_some(peer),
        cookies: (who.u64(offset_of!(Who, cookies)), who.u64(offset_of!(Who, cookies) + 8)),
        fast: (fast_sent, fast_received),
        tcp: (tx.u64(offset_of!(Tx, tcp)), rx.u64(offset_of!(Rx, tcp))),
        events: (
            events.u64(offset_of!(Events, spilled)),
            events.u64(offset_of!(Events, downgraded)),
            events.u64(offset_of!(Events, single_copy)),
        ),
        sleeping: rx.u32(offset_of!(Rx, busy)),
        waits_seen: rx.u32(offset_of!(Rx, evidence)) != 0,
        nonblocking: life.u32(offset_of!(Life, nonblocking)) != 0,
        began: who.u64(offset_of!(Who, began)),
    })
}

/// Own address (0) or the peer's (1).
fn address(who: &Bytes<'_>, end: usize) -> Option<SocketAddr> {
    let at = offset_of!(Who, addresses) + 16 * end;
    let octets: [u8; 16] = who.0.get(at..at + 16)?.try_into().ok()?;
    let ip = match who.u32(offset_of!(Who, family)) {
        4 => IpAddr::V4(Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3])),
        6 => IpAddr::V6(Ipv6Addr::from(octets)),
        _ => return None,
    };
    let port = u16::try_from(who.u32(offset_of!(Who, ports) + 4 * end)).ok()?;
    Some(SocketAddr::new(ip.to_canonical(), port))
}

/// Integers in a private copy; beyond its end they are 0.
pub struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    fn from(&self, at: usize) -> Bytes<'_> {
        Bytes(self.0.get(at..).unwrap_or_default())
    }
    /// At an offset.
    pub fn u32(&self, at: usize) -> u32 {
        self.0.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
    }
    /// At an offset.
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
        let mut head = vec![0; size_of::<NodeHead>()];
        let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
        put(offset_of!(NodeHead, magic), &MAGIC.to_ne_bytes());
        put(offset_of!(NodeHead, version), &VERSION.to_ne_bytes());
        put(offset_of!(NodeHead, record), &record.to_ne_bytes());
        put(offset_of!(NodeHead, capacity), &capacity.to_ne_bytes());
        put(offset_of!(NodeHead, used), &used.to_ne_bytes());
        head
    }

    #[test]
    fn lying_sizes_are_refused() {
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
    fn another_layout_is_named() {
        let mut head_bytes = head(SIZE as u32, 0, 0);
        for version in [99, 1] {
            head_bytes[offset_of!(NodeHead, version)] = version;
            assert!(read(&file(&head_bytes, HEAD as u64)).unwrap_err().contains(&format!("layout {version},")));
        }
        // A build whose record has grown without a new version: whole records of another size in a file that fits them.
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
    fn a_record_comes_back_as_it_was_written() {
        use std::sync::atomic::Ordering::Relaxed;
        let record = Record::default();
        // As bytes, through the format's own offsets: what `row` reads must be what the fields hold.
        let mut raw = vec![0u8; SIZE];
        let mut put = |at: usize, bytes: &[u8]| raw[at..at + bytes.len()].copy_from_slice(bytes);
        record.tx.tail.store(1000, Relaxed);
        put(offset_of!(Record, tx) + offset_of!(Tx, tail), &record.tx.tail.load(Relaxed).to_ne_bytes());
        put(offset_of!(Record, tx) + offset_of!(Tx, returned), &100u64.to_ne_bytes());
        put(offset_of!(Record, tx) + offset_of!(Tx, copied), &7000u64.to_ne_bytes());
        put(offset_of!(Record, life) + offset_of!(Life, state), &2u32.to_ne_bytes());
        put(offset_of!(Record, life) + offset_of!(Life, owner), &77u32.to_ne_bytes());
        put(offset_of!(Record, who) + offset_of!(Who, family), &4u32.to_ne_bytes());
        put(offset_of!(Record, who) + offset_of!(Who, addresses) + 16, &[127, 0, 0, 1]);
        put(offset_of!(Record, who) + offset_of!(Who, ports) + 4, &5000u32.to_ne_bytes());
        let row = row(5, Bytes(&raw)).unwrap();
        assert_eq!((row.place.0, row.owner, row.state, row.fast.0), (5, 77, State::Attached, 7900));
        assert_eq!(row.addresses.unwrap().1, "127.0.0.1:5000".parse().unwrap());
    }
}
