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
use motet_wire::message::stats::{self, BYTES, HEAD, LinkCount, MAX_ATTEMPTS, ROW};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// The address ranges of stats pages, which are used for nothing else.
static RANGES: Mutex<AddressRanges> = Mutex::new(AddressRanges::new());

/// Memory for rows is allocated in units of so many bytes.
const PAGE: usize = 4096;

/// How a link was established.
#[derive(Debug, Clone, Default)]
pub struct ConnectHistory {
    /// This node has connected to the peer; otherwise the peer to this node.
    pub called: bool,
    /// Drivers that have failed before, or that may not be used, with the reasons.
    pub refused: Vec<(u64, Reason)>,
}

impl ConnectHistory {
    /// Notes that a driver has failed.
    pub fn refused(&mut self, driver: &str, reason: Reason) {
        self.refused.push((stats::word(driver), reason));
    }
}

/// The stats page of a node; `None` inside: there was no memory for it.
#[derive(Debug, Default)]
pub struct StatsPage(Option<Open>);

#[derive(Debug)]
struct Open {
    sheet: stats::StatsPage,
    /// Bytes of the page that have memory.
    pages: usize,
    /// The memfd by which other processes find the page.
    _file: PrivateFd,
}

impl StatsPage {
    /// Makes the stats page of a node.
    pub fn open(identity: &Identity, drivers: &[&'static dyn Driver], address: &str) -> Self {
        let Ok(file) = memory::create_memfd(stats::NAME, BYTES, &[], HEAD) else { return Self(None) };
        let file = PrivateFd::new(file);
        let mapping = RANGES.lock().unwrap_or_else(PoisonError::into_inner).map(&file, BYTES, PAGE);
        let Some(sheet) = mapping.ok().and_then(stats::StatsPage::over) else { return Self(None) };
        let head = sheet.head();
        head.version.store(stats::VERSION, Relaxed);
        head.row.store(ROW as u32, Relaxed);
        head.rows.store(stats::ROWS as u32, Relaxed);
        head.process.store(thread::real_pid(), Relaxed);
        number(&head.node, identity.id);
        stats::write_text(&head.name, &identity.name);
        stats::write_text(&head.address, address);
        for (place, driver) in head.drivers.iter().zip(drivers) {
            place.store(stats::word(driver.name()), Relaxed);
        }
        head.magic.store(stats::MAGIC, Relaxed);
        Self(Some(Open { sheet, pages: HEAD, _file: file }))
    }

    /// Counts a failed connection attempt, or a failed link that has no row any more.
    #[cold]
    pub fn failed(&self, reason: Reason) {
        if let Some(place) = self.0.as_ref().and_then(|open| open.sheet.head().failed_connects.get(reason.0 as usize)) {
            place.fetch_add(1, Relaxed);
        }
    }

    /// Writes the row of a link that has come up. `index` is the link's place among the node's links.
    #[cold]
    pub fn link_state(&mut self, index: u32, link: u32, link_state: &LinkState, how: &ConnectHistory) {
        let Some(open) = &mut self.0 else { return };
        let Some(row) = open.row_for(index) else { return };
        row.state.store(0, Relaxed);
        row.is_connector.store(u32::from(how.called), Relaxed);
        row.link.store(link, Relaxed);
        row.reason.store(0, Relaxed);
        row.driver.store(stats::word(link_state.driver), Relaxed);
        number(&row.peer, link_state.peer);
        let process = match &link_state.transport {
            Some(Transport::SharedMemory(shm)) => shm.pid,
            _ => 0,
        };
        row.process.store(process, Relaxed);
        row.failed_attempts.store(how.refused.len() as u32, Relaxed);
        row.up_since_s.store(clock::wall().0, Relaxed);
        for (place, (driver, reason)) in row.attempts.iter().zip(how.refused.iter().take(MAX_ATTEMPTS)) {
            place[0].store(*driver, Relaxed);
            place[1].store(u64::from(reason.0), Relaxed);
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
                put(LinkCount::CellsSent, shm.outward.tail());
                put(LinkCount::CellsReceived, shm.inward.head());
                put(LinkCount::RingBytesSent, shm.bulk.0.tail());
                put(LinkCount::RingBytesReceived, shm.bulk.1.head());
            }
            Some(Transport::Packet(packet_transport)) => {
                let [out, inward, again] = packet_transport.counts();
                put(LinkCount::FrameBytesSent, out);
                put(LinkCount::FrameBytesReceived, inward);
                put(LinkCount::Reconnects, again);
            }
            None => {}
        }
        let ([copied, bytes], loans) = (link_state.copies.done, link_state.channel_table.segments.counts);
        put(LinkCount::SingleCopies, copied);
        put(LinkCount::SingleCopyBytes, bytes);
        put(LinkCount::SingleCopyRefused, link_state.copies.refused);
        put(LinkCount::CooperativeCopies, link_state.copies.helped);
        put(LinkCount::Loans, loans.lent);
        put(LinkCount::LoansCopied, loans.copied);
        let [channels, coming, going] = link_state.proto.counts().map(u64::from);
        put(LinkCount::Channels, channels);
        put(LinkCount::LongIncoming, coming);
        put(LinkCount::LongOutgoing, going);
        if let Some(reason) = link_state.gone {
            row.reason.store(reason.0, Relaxed);
            row.state.store(2, Relaxed);
        }
    }

    /// Clears the row of a link that is removed.
    #[cold]
    pub fn left(&self, index: u32) {
        if let Some(row) = self.0.as_ref().and_then(|open| open.row(index)) {
            row.state.store(0, Relaxed);
        }
    }
}

impl Open {
    /// The row of a link, if it has memory.
    fn row(&self, index: u32) -> Option<&stats::LinkRow> {
        let index = index as usize;
        (HEAD + (index + 1) * ROW <= self.pages).then(|| self.sheet.row(index)).flatten()
    }

    /// The row of a link, for which memory is allocated if necessary. `None`: there is none, and a store there would end the process.
    fn row_for(&mut self, index: u32) -> Option<&stats::LinkRow> {
        let head = self.sheet.head();
        let end = HEAD + (index as usize + 1) * ROW;
        while self.pages < end.min(BYTES) && memory::populate_at(self.sheet.mapping(), self.pages, PAGE) {
            self.pages += PAGE;
        }
        if end > self.pages {
            head.links_not_listed.fetch_add(1, Relaxed);
            return None;
        }
        head.used.fetch_max(index + 1, Relaxed);
        self.row(index)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        RANGES.lock().unwrap_or_else(PoisonError::into_inner).retire(self.sheet.mapping());
    }
}

fn number(words: &[AtomicU64; 2], NodeId(id): NodeId) {
    for (word, bytes) in words.iter().zip(id.chunks_exact(8)) {
        word.store(u64::from_le_bytes(std::array::from_fn(|n| bytes[n])), Relaxed);
    }
}
