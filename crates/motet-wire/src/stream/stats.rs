//! The stats file of streams: one table ([`crate::stats_table`]) for each fork group (a process and its forked children) that holds the records of
//! its streams. Unlike other tables it is also where the streams keep their state.

use crate::stats_table::{StatsFormat, StatsTable, TableHead};
use crate::stream::record::StreamRecord;
use crate::sync::{AtomicU32, AtomicU64};

/// The stats file.
pub type StatsFile = StatsTable<StreamFormat>;

/// The format of the stats file.
#[derive(Debug, Clone, Copy)]
pub struct StreamFormat;

// SAFETY: StatsFileHead begins with a TableHead; it and StreamRecord consist of atomics.
unsafe impl StatsFormat for StreamFormat {
    const MAGIC: u64 = u64::from_le_bytes(*b"MOTETnod");
    const VERSION: u32 = 5 + cfg!(motet_next_version) as u32;
    const NAME: &'static str = "motet-node";
    const HEAD: usize = if cfg!(motet_next_version) { 8192 } else { 4096 };
    type Head = StatsFileHead;
    type Row = StreamRecord;
}

/// The start of a stats file.
#[repr(C)]
#[derive(Debug)]
pub struct StatsFileHead {
    /// What all tables have.
    pub table: TableHead,
    /// Bytes of segments that are mapped in the process of the fork group that last opened or closed a stream.
    pub segment_bytes: AtomicU64,
    /// Connections that stayed on TCP, by reason code.
    pub tcp_only_counts: [AtomicU64; 64],
    /// Links that the fork group has opened, and closed.
    pub links: [AtomicU64; 2],
    /// Pids of the processes of the fork group that have streams; 0: none, `u32::MAX`: reserved for a fork under way.
    pub members: [AtomicU32; MEMBERS],
    /// Descriptors that the engine uses for itself in the process of the fork group that last opened or closed a stream.
    pub descriptors: AtomicU64,
}

/// Processes of a fork group that can have streams at the same time.
pub const MEMBERS: usize = 63;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::stream::record::{ConnectionInfo, Events, Lifecycle, Rx, SIZE, Tx};
    use std::mem::offset_of;

    /// The layout of version 5. A change of this line requires a new [`StatsFormat::VERSION`].
    #[cfg(not(motet_next_version))]
    #[test]
    fn layout_matches_version() {
        let parts = [
            size_of::<Tx>(),
            size_of::<Rx>(),
            size_of::<Lifecycle>(),
            size_of::<Events>(),
            size_of::<ConnectionInfo>(),
        ];
        let places = [
            offset_of!(Tx, single_copy_bytes),
            offset_of!(Rx, same_cpu),
            offset_of!(Lifecycle, pending_messages),
            offset_of!(Events, single_copy),
        ];
        let layout = (SIZE, parts, places, size_of::<StatsFileHead>());
        assert_eq!((StreamFormat::VERSION, layout), (5, (512, [128, 128, 64, 64, 128], [64, 84, 40, 32], 832)));
    }
}
