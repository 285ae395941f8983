//! Counts over the streams of this process, for `--stats`, the log and `motet ps`.

use super::{Engine, Local};
use crate::lock;
use crate::reason::{Reason, counts_tcp};
use motet_sys::thread;
use motet_wire::stream::record::StreamRecord;
use std::sync::atomic::Ordering;

/// Counts over the streams of a process.
#[derive(Debug, Default, Clone, Copy)]
pub struct Totals {
    /// All streams, and those whose wire came up.
    pub streams: (u64, u64),
    /// Bytes sent and received over wires.
    pub fast: (u64, u64),
    /// Bytes sent and received over TCP by the streams of which Motet counts them ([`counts_tcp`]).
    pub tcp: (u64, u64),
    /// Streams whose bytes over TCP the kernel alone counts.
    pub uncounted: u64,
    /// Counts of full rings, of downgrades and of single copies.
    pub events: [u64; 3],
}

impl Totals {
    pub(super) fn add(&mut self, record: &StreamRecord, local: &Local) {
        let load = |n: &motet_wire::sync::AtomicU64| n.load(Ordering::Relaxed);
        let ((fast_out, fast_in), (tcp_out, tcp_in)) = (record.fast_bytes(), record.tcp_bytes());
        self.streams.0 += 1;
        self.streams.1 += u64::from(local.slot.slot().is_some());
        self.fast = (self.fast.0 + fast_out, self.fast.1 + fast_in);
        if counts_tcp(record.state(), Reason(record.lifecycle.reason.load(Ordering::Relaxed))) {
            self.tcp = (self.tcp.0 + tcp_out, self.tcp.1 + tcp_in);
        } else {
            self.uncounted += 1;
        }
        let events = [&record.events.spilled, &record.events.downgraded, &record.events.single_copy];
        self.events.iter_mut().zip(events).for_each(|(sum, n)| *sum += load(n));
    }
}

impl Engine {
    /// Adds the counts of a stream that ends.
    pub fn count_ended(&self, record: &StreamRecord, local: &Local) {
        lock(&self.ended).add(record, local);
    }

    /// Counts over all streams of this process, ended ones included. Does not allocate.
    pub fn totals(&self) -> Totals {
        let mut totals = *lock(&self.ended);
        for (record, local) in self.each_local() {
            if local.handle.load(Ordering::Relaxed) != 0
                && record.lifecycle.owner.load(Ordering::Relaxed) == thread::pid()
            {
                totals.add(record, local);
            }
        }
        totals
    }

    /// Connections that stayed on TCP, by reason code.
    pub fn tcp_only_counts(&self) -> impl Iterator<Item = (u32, u64)> {
        let counts =
            self.stats_file.head().tcp_only_counts.iter().zip(0..).map(|(n, code)| (code, n.load(Ordering::Relaxed)));
        counts.filter(|(_, n)| *n > 0)
    }

    /// Counts a connection that stays on TCP.
    pub fn count_tcp_only(&self, reason: Reason) {
        if let Some(counter) = self.stats_file.head().tcp_only_counts.get(reason.0 as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Updates the stats file: memory that the drivers have mapped, and links that they have opened and closed.
    pub fn count_memory(&self) {
        let head = self.stats_file.head();
        let bytes: usize = self.options.drivers.iter().map(|d| d.memory()).sum();
        head.segment_bytes.store(bytes as u64, Ordering::Relaxed);
        head.descriptors.store(motet_sys::private_fds::private_count() as u64, Ordering::Relaxed);
        // Adds the difference since the last update, because all processes of the fork group count in the same words.
        for ((total, reported_links), shown) in
            self.driver_links().into_iter().zip(&self.reported_links).zip(&head.links)
        {
            shown.fetch_add(total.wrapping_sub(reported_links.swap(total, Ordering::AcqRel)), Ordering::Relaxed);
        }
    }

    /// Links that this process has opened, and closed. Takes no lock.
    pub fn links(&self) -> [u64; 2] {
        self.reported_links.each_ref().map(|reported_links| reported_links.load(Ordering::Relaxed))
    }

    pub(super) fn driver_links(&self) -> [u64; 2] {
        let each = self.options.drivers.iter().map(|driver| driver.links());
        each.fold([0, 0], |sum, links| [sum[0] + links[0], sum[1] + links[1]])
    }
}

impl Engine {
    /// Logs the end of the process.
    pub fn log_exit(&self) {
        if self.options.log.is_some() {
            self.log.exit(&self.totals());
        }
    }
}
