//! The sheet of a node of messages: one memfd for each node, which says who it is, which links it has and how messages went over them.
//!
//! What it is: what `motet why` shows of nodes. It is found as `/proc/PID/fd/N -> /memfd:motet-links`, and vanishes with the process. The
//! node writes, whoever may look reads; no peer maps it. What it is not: nothing in it is ever read back by the node, and a reader may
//! see a row half old and half new.
//!
//! ```text
//!   0     StatsHead (magic, version, rows, who, calls that failed)
//!   4096  row 0, row 1, ...
//! ```

use crate::mapping::Mapping;
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicU32, AtomicU64};

/// First eight bytes of every sheet.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MOTETlnk");
/// Version of the sheet: a reader takes only its own. It changes with anything in [`StatsHead`] or [`LinkRow`].
pub const VERSION: u32 = 1;
/// Name given to memfd_create.
pub const NAME: &str = "motet-links";
/// Bytes before the first row.
pub const HEAD: usize = 4096;
/// Bytes of a row.
pub const ROW: usize = 256;
/// Rows of a sheet: links beyond them are counted, not shown.
pub const ROWS: usize = 1024;
/// Bytes of a sheet; pages of rows come into being as rows are used.
pub const BYTES: usize = HEAD + ROWS * ROW;
/// Ways to a peer that were tried in vain before the one in use, and have a place in its row.
pub const MAX_ATTEMPTS: usize = 4;

/// The start of a sheet.
#[repr(C)]
#[derive(Debug)]
pub struct StatsHead {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// [`ROW`].
    pub row: AtomicU32,
    /// [`ROWS`].
    pub rows: AtomicU32,
    /// One past the highest row ever used.
    pub used: AtomicU32,
    /// The process whose node it is, in its own PID namespace: forked children have the descriptor too.
    pub process: AtomicU32,
    /// Links for which there is no row, ever.
    pub links_not_listed: AtomicU32,
    /// The node's number.
    pub node: [AtomicU64; 2],
    /// Its name, as far as it goes in here, padded with zeros.
    pub name: [AtomicU64; 8],
    /// Ways to it, the same.
    pub address: [AtomicU64; 32],
    /// The drivers that it may use, as [`word`]s, 0 behind the last.
    pub drivers: [AtomicU64; 8],
    /// Calls that failed in the end, by reason code.
    pub failed_connects: [AtomicU64; 64],
}

/// One link.
#[repr(C, align(256))]
#[derive(Debug)]
pub struct LinkRow {
    /// 0: none, 1: up, 2: gone and not closed yet.
    pub state: AtomicU32,
    /// 1: this node has called, 0: the peer has.
    pub is_connector: AtomicU32,
    /// The link's number in its node.
    pub link: AtomicU32,
    /// Why it is gone.
    pub reason: AtomicU32,
    /// The driver that carries it, as a [`word`].
    pub driver: AtomicU64,
    /// The node at the other end.
    pub peer: [AtomicU64; 2],
    /// Its process, where it is known and visible.
    pub process: AtomicU32,
    /// Ways that were tried in vain first.
    pub failed_attempts: AtomicU32,
    /// When it came up, seconds since 1970.
    pub up_since_s: AtomicU64,
    /// Those attempts: driver, and reason.
    pub attempts: [[AtomicU64; 2]; MAX_ATTEMPTS],
    /// By [`LinkCount`].
    pub counts: [AtomicU64; COUNTS],
}

/// What is counted of a link: nothing for which the way of a short message would have to do more than it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkCount {
    /// Lines of lanes put, of all packets, and taken.
    CellsSent,
    /// See there.
    CellsReceived,
    /// Bytes of long messages that went through the ring beside the lane, out and in.
    RingBytesSent,
    /// See there.
    RingBytesReceived,
    /// Bytes of frames put and taken, where the medium is no memory, and how often it was connected again.
    FrameBytesSent,
    /// See there.
    FrameBytesReceived,
    /// See there.
    Reconnects,
    /// Bodies copied here out of the peer's memory, their bytes, and those for which the system refused that.
    SingleCopies,
    /// See there.
    SingleCopyBytes,
    /// See there.
    SingleCopyRefused,
    /// Messages read where the sender had put them, and receives in place that ended with a copy.
    Loans,
    /// See there.
    LoansCopied,
    /// Channels, long messages coming, and going, now.
    Channels,
    /// See there.
    LongIncoming,
    /// See there.
    LongOutgoing,
    /// Of the bodies copied here, those of which the peer has copied some.
    CooperativeCopies,
}

/// Places for counts.
pub const COUNTS: usize = 16;

/// A driver's name in a word: its first eight bytes.
pub fn word(name: &str) -> u64 {
    let mut bytes = [0; 8];
    let length = name.len().min(8);
    bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
    u64::from_le_bytes(bytes)
}

/// Writes text into words, as much as fits, with zeros behind it.
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

/// A mapped sheet.
#[derive(Debug, Clone, Copy)]
pub struct StatsPage {
    mapping: Mapping,
}

impl StatsPage {
    /// The sheet in a mapping, which must be of [`BYTES`].
    pub fn over(mapping: Mapping) -> Option<Self> {
        (mapping.length() >= BYTES).then_some(Self { mapping })
    }

    /// The mapping.
    pub fn mapping(&self) -> Mapping {
        self.mapping
    }

    /// The head.
    pub fn head(&self) -> &StatsHead {
        const { assert!(size_of::<StatsHead>() <= HEAD) };
        let base = self.mapping.at(0, HEAD).expect("checked by over");
        // SAFETY: inside the mapping, page-aligned, made of atomics, valid for any bytes.
        unsafe { &*base.cast::<StatsHead>() }
    }

    /// A row; `None` beyond the last.
    pub fn row(&self, index: usize) -> Option<&LinkRow> {
        const { assert!(cfg!(loom) || size_of::<LinkRow>() == ROW && HEAD.is_multiple_of(align_of::<LinkRow>())) };
        if index >= ROWS {
            return None;
        }
        let base = self.mapping.at(HEAD + index * ROW, ROW)?;
        // SAFETY: inside the mapping, aligned as HEAD and ROW are multiples of a row's alignment, made of atomics.
        Some(unsafe { &*base.cast::<LinkRow>() })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// What version 1 looks like. Whoever changes this line changes [`VERSION`] too.
    #[test]
    fn a_layout_has_its_version() {
        let head = (size_of::<StatsHead>(), offset_of!(StatsHead, address), offset_of!(StatsHead, failed_connects));
        let row = (
            size_of::<LinkRow>(),
            offset_of!(LinkRow, attempts),
            offset_of!(LinkRow, counts),
            LinkCount::CooperativeCopies as usize,
        );
        assert_eq!((VERSION, head, row), (1, (944, 112, 432), (256, 56, 120, 15)));
    }

    #[test]
    fn text_goes_in_as_far_as_there_is_room() {
        let words: [AtomicU64; 2] = [AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX)];
        for (text, seen) in [("", [0; 16]), ("ninebytes", *b"ninebytes\0\0\0\0\0\0\0"), (&"x".repeat(17), [b'x'; 16])] {
            write_text(&words, text);
            assert_eq!(words.each_ref().map(|word| word.load(Relaxed).to_le_bytes()).concat(), seen);
        }
        assert_eq!((word("shm"), word("longer than eight")), (word("shm\0"), word("longer t")));
    }
}
