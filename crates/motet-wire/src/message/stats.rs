//! The stats page of a node: one table ([`crate::stats_table`]) for each node with its identity, its links and their counters.
//!
//! What it is: what `motet why` shows of nodes. The node writes it, and any process with the permission reads it. What it is not: it is no input.
//! The node never reads its contents back, and a reader may see a row that is half old and half new.

use crate::stats_table::{StatsFormat, StatsTable, TableHead};
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicU32, AtomicU64};

/// The stats page.
pub type StatsPage = StatsTable<NodeFormat>;

/// The format of the stats page.
#[derive(Debug, Clone, Copy)]
pub struct NodeFormat;

// SAFETY: StatsHead begins with a TableHead; it and LinkRow consist of atomics.
unsafe impl StatsFormat for NodeFormat {
    const MAGIC: u64 = u64::from_le_bytes(*b"MOTETlnk");
    const VERSION: u32 = 1;
    const NAME: &'static str = "motet-links";
    const HEAD: usize = 4096;
    type Head = StatsHead;
    type Row = LinkRow;
}

/// Rows of a stats page. The memory of rows is allocated when they are first used.
pub const ROWS: usize = 1024;
/// Failed attempts to connect that a row has room for.
pub const MAX_ATTEMPTS: usize = 4;

/// The start of a stats page.
#[repr(C)]
#[derive(Debug)]
pub struct StatsHead {
    /// What all tables have.
    pub table: TableHead,
    /// The node's id.
    pub node: [AtomicU64; 2],
    /// The node's name, truncated to 64 bytes, padded with zeros.
    pub name: [AtomicU64; 8],
    /// The node's addresses, truncated to 256 bytes, padded with zeros.
    pub address: [AtomicU64; 32],
    /// The drivers that the node may use, as [`word`]s, followed by 0.
    pub drivers: [AtomicU64; 8],
    /// Failed connects, by reason code.
    pub failed_connects: [AtomicU64; 64],
}

/// The row of one link.
#[repr(C, align(256))]
#[derive(Debug)]
pub struct LinkRow {
    /// 0: unused, 1: up, 2: down and not closed yet.
    pub state: AtomicU32,
    /// 1: this node connected, 0: it accepted.
    pub is_connector: AtomicU32,
    /// The link's number in this node.
    pub link: AtomicU32,
    /// Reason code of a link that is down.
    pub reason: AtomicU32,
    /// The driver of the link, as a [`word`].
    pub driver: AtomicU64,
    /// Id of the node at the other end.
    pub peer: [AtomicU64; 2],
    /// Pid of the process at the other end; 0 if it is unknown or not visible here.
    pub process: AtomicU32,
    /// Attempts with other drivers that failed before.
    pub failed_attempts: AtomicU32,
    /// When the link came up, seconds of CLOCK_REALTIME.
    pub up_since_s: AtomicU64,
    /// The first of the failed attempts: driver as a [`word`], reason code.
    pub attempts: [[AtomicU64; 2]; MAX_ATTEMPTS],
    /// Counters, indexed by [`LinkCount`].
    pub counts: [AtomicU64; COUNTS],
}

/// Counters of a link. None of them costs an instruction in the path of a short message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkCount {
    /// FIFO cells sent.
    CellsSent,
    /// FIFO cells received.
    CellsReceived,
    /// Bytes sent through the payload ring.
    RingBytesSent,
    /// Bytes received through the payload ring.
    RingBytesReceived,
    /// Bytes of frames sent, on a link without shared memory.
    FrameBytesSent,
    /// Bytes of frames received, on a link without shared memory.
    FrameBytesReceived,
    /// Times that a link without shared memory was connected again.
    Reconnects,
    /// Bodies that this node copied out of the peer's memory.
    SingleCopies,
    /// Bytes of the bodies that this node copied out of the peer's memory.
    SingleCopyBytes,
    /// Bodies for which the system refused single copy.
    SingleCopyRefused,
    /// Loaned messages: read in the memory of the sender.
    Loans,
    /// Receives in place that ended with a copy.
    LoansCopied,
    /// Open channels at present.
    Channels,
    /// Long messages being received at present.
    LongIncoming,
    /// Long messages being sent at present.
    LongOutgoing,
    /// Bodies among the single copies of which the peer copied a part.
    CooperativeCopies,
}

/// Counters that a row has room for.
pub const COUNTS: usize = 16;

/// The first eight bytes of a driver's name as a word.
pub fn word(name: &str) -> u64 {
    let mut bytes = [0; 8];
    let length = name.len().min(8);
    bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
    u64::from_le_bytes(bytes)
}

/// Writes text into words, truncated to their size and padded with zeros.
pub fn write_text(words: &[AtomicU64], text: &str) {
    let mut rest = text.as_bytes();
    for place in words {
        let (front, more) = rest.split_at(rest.len().min(8));
        let mut bytes = [0; 8];
        bytes[..front.len()].copy_from_slice(front);
        place.store(u64::from_le_bytes(bytes), Relaxed);
        rest = more;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// The layout of version 1. A change of this line requires a new [`StatsFormat::VERSION`].
    #[test]
    fn layout_matches_version() {
        let head = (size_of::<StatsHead>(), offset_of!(StatsHead, address), offset_of!(StatsHead, failed_connects));
        let row = (
            size_of::<LinkRow>(),
            offset_of!(LinkRow, attempts),
            offset_of!(LinkRow, counts),
            LinkCount::CooperativeCopies as usize,
        );
        assert_eq!((NodeFormat::VERSION, head, row), (1, (944, 112, 432), (256, 56, 120, 15)));
    }

    #[test]
    fn text_is_truncated_to_its_words() {
        let words: [AtomicU64; 2] = [AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX)];
        for (text, seen) in [("", [0; 16]), ("ninebytes", *b"ninebytes\0\0\0\0\0\0\0"), (&"x".repeat(17), [b'x'; 16])] {
            write_text(&words, text);
            assert_eq!(words.each_ref().map(|word| word.load(Relaxed).to_le_bytes()).concat(), seen);
        }
        assert_eq!((word("shm"), word("longer than eight")), (word("shm\0"), word("longer t")));
    }
}
