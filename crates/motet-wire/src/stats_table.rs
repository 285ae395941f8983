//! A table of statistics: one memfd with a head and rows, which a process writes and `motet` reads.
//!
//! What it is: what the stats file of streams ([`crate::stream::stats`]) and the stats page of a node ([`crate::message::stats`]) have in common.
//! `motet ps` and `motet why` find a table as `/proc/PID/fd/N -> /memfd:NAME`. It needs no daemon and no socket, and it vanishes with its
//! processes. What it is not: the meaning of a row. No peer maps a table.
//!
//! ```text
//!   0             TableHead, then the rest of the format's head
//!   Format::HEAD  row 0, row 1, ...
//! ```

use crate::mapping::Mapping;
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::{AtomicU32, AtomicU64};
use std::fmt::Debug;
use std::marker::PhantomData;

/// What one kind of table consists of.
///
/// # Safety
/// [`Head`](Self::Head) and [`Row`](Self::Row) consist of atomics, so any bytes are valid, and `Head` is `repr(C)` and begins with a [`TableHead`].
pub unsafe trait StatsFormat: Debug + Copy {
    /// First eight bytes of every table.
    const MAGIC: u64;
    /// Version of the format. A reader accepts only its own. It changes with every change of `Head` or `Row`.
    const VERSION: u32;
    /// The name that is given to `memfd_create`.
    const NAME: &'static str;
    /// Bytes before the first row.
    const HEAD: usize;
    /// The start of a table.
    type Head;
    /// A row.
    type Row;
}

/// The start of every table.
#[repr(C)]
#[derive(Debug)]
pub struct TableHead {
    /// [`StatsFormat::MAGIC`].
    pub magic: AtomicU64,
    /// [`StatsFormat::VERSION`].
    pub version: AtomicU32,
    /// Bytes of a row.
    pub row: AtomicU32,
    /// Rows that the table has room for.
    pub capacity: AtomicU32,
    /// One past the highest row ever used.
    pub used: AtomicU32,
    /// The process that made the table, a pid of its own namespace. Forked children have the descriptor, too.
    pub process: AtomicU32,
    /// Streams or links for which there was no row.
    pub not_listed: AtomicU32,
}

/// A mapped table.
#[derive(Debug, Clone, Copy)]
pub struct StatsTable<F> {
    mapping: Mapping,
    capacity: usize,
    format: PhantomData<F>,
}

impl<F: StatsFormat> StatsTable<F> {
    /// Bytes of a row.
    pub const ROW: usize = size_of::<F::Row>();

    /// Bytes of a table of so many rows, which is also the offset of the row behind them.
    pub const fn bytes(rows: usize) -> usize {
        F::HEAD + rows * Self::ROW
    }

    /// The table in a mapping; `None` if the mapping has no room for the head and `capacity` rows.
    pub fn over(mapping: Mapping, capacity: usize) -> Option<Self> {
        (mapping.length() >= Self::bytes(capacity)).then_some(Self { mapping, capacity, format: PhantomData })
    }

    /// Writes the common head of a new table, the magic last.
    pub fn begin(&self, process: u32) {
        let head = self.table();
        head.version.store(F::VERSION, Relaxed);
        head.row.store(Self::ROW as u32, Relaxed);
        head.capacity.store(self.capacity as u32, Relaxed);
        head.process.store(process, Relaxed);
        head.magic.store(F::MAGIC, Release);
    }

    /// The mapping.
    pub fn mapping(&self) -> Mapping {
        self.mapping
    }

    /// Rows that the table has room for.
    #[inline(always)]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The head.
    pub fn head(&self) -> &F::Head {
        const { assert!(size_of::<F::Head>() <= F::HEAD && align_of::<F::Head>() <= 4096) };
        let base = self.mapping.at(0, F::HEAD).expect("checked by over");
        // SAFETY: inside the mapping, page-aligned, and by the contract of StatsFormat made of atomics, valid for any bytes.
        unsafe { &*base.cast::<F::Head>() }
    }

    /// The part of the head that all tables have.
    pub fn table(&self) -> &TableHead {
        const { assert!(size_of::<TableHead>() <= F::HEAD) };
        let base = self.mapping.at(0, F::HEAD).expect("checked by over");
        // SAFETY: as for `head`, which begins with a TableHead.
        unsafe { &*base.cast::<TableHead>() }
    }

    /// The row with an index; `None` beyond the capacity.
    #[inline(always)]
    pub fn row(&self, index: usize) -> Option<&F::Row> {
        const { assert!(F::HEAD.is_multiple_of(align_of::<F::Row>()) && align_of::<F::Row>() <= 4096) };
        if index >= self.capacity {
            return None;
        }
        let base = self.mapping.at(Self::bytes(index), Self::ROW)?;
        // SAFETY: inside the mapping, aligned as HEAD and ROW are multiples of a row's alignment, made of atomics by the contract of StatsFormat.
        Some(unsafe { &*base.cast::<F::Row>() })
    }
}
