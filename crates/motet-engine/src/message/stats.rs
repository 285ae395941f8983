//! The stats page of a node, which `motet why` reads: the writing side of [`motet_wire::message::stats`].
//!
//! The page has a head for the node and a row for each link, in memory that is not shared with peers. Peer and driver are written when a link comes up or
//! goes down, counters when the kernel is polled or a sleep begins. The counters are numbers that exist anyway (positions of FIFOs and rings) or belong to
//! something slow (a single copy, a loan), so messages pay nothing. If there is no memory for a page, the node has none.

use super::link::LinkState;
use super::transport::{Identity, NodeId, Transport};
use crate::driver::Driver;
use crate::reason::Reason;
use motet_sys::memory::{self, AddressRanges};
use motet_sys::private_fds::PrivateFd;
use motet_sys::{clock, thread};
use motet_wire::message::stats::{self, LinkCount, MAX_ATTEMPTS, NodeFormat, ROWS};
use motet_wire::stats_table::StatsFormat;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// The address ranges of stats pages, which are used for nothing else.
static RANGES: Mutex<AddressRanges> = Mutex::new(AddressRanges::new());

/// Bytes of a stats page.
const BYTES: usize = stats::StatsPage::bytes(ROWS);

/// Memory for rows is allocated in units of so many bytes.
const PAGE_BYTES: usize = 4096;

/// How a link was established.
#[derive(Debug, Clone, Default)]
pub struct ConnectHistory {
    /// This node has connected to the peer; otherwise the peer to this node.
    pub is_connector: bool,
    /// Drivers that have failed before, or that may not be used, with the reasons.
    pub failures: Vec<(u64, Reason)>,
}

impl ConnectHistory {
    /// Notes that a driver has failed.
    pub fn add_failure(&mut self, driver: &str, reason: Reason) {
        self.failures.push((stats::word(driver), reason));
    }
}

/// The stats page of a node; `None` inside: there was no memory for it.
#[derive(Debug, Default)]
pub struct StatsPage(Option<OpenPage>);

#[derive(Debug)]
struct OpenPage {
    page: stats::StatsPage,
    /// Bytes of the page that have memory.
    pages: usize,
    /// The memfd by which other processes find the page.
    _file: PrivateFd,
}

impl StatsPage {
    /// Makes the stats page of a node.
    pub fn open(identity: &Identity, drivers: &[&'static dyn Driver], address: &str) -> Self {
        let Ok(file) = memory::create_memfd(NodeFormat::NAME, BYTES, &[], NodeFormat::HEAD) else { return Self(None) };
        let file = PrivateFd::new(file);
        let mapping = RANGES.lock().unwrap_or_else(PoisonError::into_inner).map(&file, BYTES, PAGE_BYTES);
        let Some(page) = mapping.ok().and_then(|mapping| stats::StatsPage::over(mapping, ROWS)) else {
            return Self(None);
        };
        let head = page.head();
        store_node_id(&head.node, identity.id);
        stats::write_text(&head.name, &identity.name);
        stats::write_text(&head.address, address);
        for (entry, driver) in head.drivers.iter().zip(drivers) {
            entry.store(stats::word(driver.name()), Relaxed);
        }
        page.begin(thread::real_pid());
        Self(Some(OpenPage { page, pages: NodeFormat::HEAD, _file: file }))
    }

    /// Counts a failed connection attempt, or a failed link that has no row any more.
    #[cold]
    pub fn connect_failed(&self, reason: Reason) {
        if let Some(entry) = self.0.as_ref().and_then(|open| open.page.head().failed_connects.get(reason.0 as usize)) {
            entry.fetch_add(1, Relaxed);
        }
    }

    /// Writes the row of a link that has come up. `index` is the link's place among the node's links.
    #[cold]
    pub fn link_up(&mut self, index: u32, link: u32, link_state: &LinkState, history: &ConnectHistory) {
        let Some(open) = &mut self.0 else { return };
        let Some(row) = open.row_for(index) else { return };
        row.state.store(0, Relaxed);
        row.is_connector.store(u32::from(history.is_connector), Relaxed);
        row.link.store(link, Relaxed);
        row.reason.store(0, Relaxed);
        row.driver.store(stats::word(link_state.driver), Relaxed);
        store_node_id(&row.peer, link_state.peer);
        let process = match &link_state.transport {
            Some(Transport::SharedMemory(shm)) => shm.pid,
            _ => 0,
        };
        row.process.store(process, Relaxed);
        row.failed_attempts.store(history.failures.len() as u32, Relaxed);
        row.up_since_s.store(clock::wall().0, Relaxed);
        for (entry, (driver, reason)) in row.attempts.iter().zip(history.failures.iter().take(MAX_ATTEMPTS)) {
            entry[0].store(*driver, Relaxed);
            entry[1].store(u64::from(reason.0), Relaxed);
        }
        row.counts.iter().for_each(|count| count.store(0, Relaxed));
        row.state.store(1, Relaxed);
    }

    /// Writes the counters of a link to its row, and whether the link is down.
    pub fn counts(&self, index: u32, link_state: &LinkState) {
        let Some(row) = self.0.as_ref().and_then(|open| open.row(index)) else { return };
        let put = |count: LinkCount, value: u64| row.counts[count as usize].store(value, Relaxed);
        match &link_state.transport {
            Some(Transport::SharedMemory(shm)) => {
                put(LinkCount::CellsSent, shm.fifo_tx.tail());
                put(LinkCount::CellsReceived, shm.fifo_rx.head());
                put(LinkCount::RingBytesSent, shm.payload_rings.0.tail());
                put(LinkCount::RingBytesReceived, shm.payload_rings.1.head());
            }
            Some(Transport::Packet(packet_transport)) => {
                let [out, fifo_rx, again] = packet_transport.counts();
                put(LinkCount::FrameBytesSent, out);
                put(LinkCount::FrameBytesReceived, fifo_rx);
                put(LinkCount::Reconnects, again);
            }
            None => {}
        }
        let ([copied, bytes], loans) = (link_state.copy_counts.done, link_state.channel_table.segments.counts);
        put(LinkCount::SingleCopies, copied);
        put(LinkCount::SingleCopyBytes, bytes);
        put(LinkCount::SingleCopyRefused, link_state.copy_counts.refused);
        put(LinkCount::CooperativeCopies, link_state.copy_counts.assisted);
        put(LinkCount::Loans, loans.in_place);
        put(LinkCount::LoansCopied, loans.copied);
        let [channels, incoming, outgoing] = link_state.proto.counts().map(u64::from);
        put(LinkCount::Channels, channels);
        put(LinkCount::LongIncoming, incoming);
        put(LinkCount::LongOutgoing, outgoing);
        if let Some(reason) = link_state.gone {
            row.reason.store(reason.0, Relaxed);
            row.state.store(2, Relaxed);
        }
    }

    /// Clears the row of a link that is removed.
    #[cold]
    pub fn link_removed(&self, index: u32) {
        if let Some(row) = self.0.as_ref().and_then(|open| open.row(index)) {
            row.state.store(0, Relaxed);
        }
    }
}

impl OpenPage {
    /// The row of a link, if it has memory.
    fn row(&self, index: u32) -> Option<&stats::LinkRow> {
        let index = index as usize;
        (stats::StatsPage::bytes(index + 1) <= self.pages).then(|| self.page.row(index)).flatten()
    }

    /// The row of a link, for which memory is allocated if necessary. `None`: there is none, and a store there would end the process.
    fn row_for(&mut self, index: u32) -> Option<&stats::LinkRow> {
        let end = stats::StatsPage::bytes(index as usize + 1);
        while self.pages < end.min(BYTES) && memory::populate_at(self.page.mapping(), self.pages, PAGE_BYTES) {
            self.pages += PAGE_BYTES;
        }
        if end > self.pages {
            self.page.table().not_listed.fetch_add(1, Relaxed);
            return None;
        }
        self.page.table().used.fetch_max(index + 1, Relaxed);
        self.row(index)
    }
}

impl Drop for OpenPage {
    fn drop(&mut self) {
        RANGES.lock().unwrap_or_else(PoisonError::into_inner).retire(self.page.mapping());
    }
}

fn store_node_id(words: &[AtomicU64; 2], NodeId(id): NodeId) {
    for (word, bytes) in words.iter().zip(id.chunks_exact(8)) {
        word.store(u64::from_le_bytes(std::array::from_fn(|n| bytes[n])), Relaxed);
    }
}
