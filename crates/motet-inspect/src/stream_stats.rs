//! What the stats file of streams ([`motet_wire::stream::stats`]) says, read by [`crate::stats_table`].

use std::fs::File;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use motet_wire::stats_table::TableHead;
use motet_wire::stream::record::{ConnectionInfo, Events, Lifecycle, Rx, State, StreamRecord, Tx};
use motet_wire::stream::stats::{StatsFileHead, StreamFormat};

use crate::stats_table::{self, Bytes};

/// Reason codes that the head counts.
const REASONS: usize = 64;

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

/// Reads a node file. An error says what is wrong with the file.
pub fn read(file: &File) -> Result<NodeFile, String> {
    let (head, records) = stats_table::read::<StreamFormat, _>(file, |_, index, record| row(index, record))?;
    let head = Bytes(&head);
    let stayed_on_tcp =
        (0..REASONS).map(|code| head.u64(offset_of!(StatsFileHead, tcp_only_counts) + 8 * code)).collect();
    Ok(NodeFile {
        creator: head.u32(offset_of!(TableHead, process)),
        capacity: head.u32(offset_of!(TableHead, capacity)) as usize,
        segment_bytes: head.u64(offset_of!(StatsFileHead, segment_bytes)),
        stayed_on_tcp,
        overflow: head.u32(offset_of!(TableHead, not_listed)).into(),
        links: (head.u64(offset_of!(StatsFileHead, links)), head.u64(offset_of!(StatsFileHead, links) + 8)),
        descriptors: head.u64(offset_of!(StatsFileHead, descriptors)),
        records,
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats_table::tests::{file, head};
    use motet_wire::stats_table::StatsFormat;
    use motet_wire::stream::record::SIZE;
    use motet_wire::stream::stats::StatsFile;

    #[test]
    fn records_of_noise_are_rows_or_nothing() {
        let mut contents = head::<StreamFormat>(StreamFormat::VERSION, SIZE as u32, 300, 300);
        contents.resize(StatsFile::bytes(300), 0);
        let mut seed = 1u32;
        for byte in &mut contents[StreamFormat::HEAD..] {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (seed >> 24) as u8 & 7;
        }
        assert!(read(&file(&contents, contents.len() as u64)).unwrap().records.len() <= 300);
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
