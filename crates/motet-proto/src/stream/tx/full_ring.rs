//! A full ring: how long a sender waits for the consumer before it spills to TCP.
//!
//! A spill is expensive: all unread bytes are copied once more, to TCP, and the stream stays there while TCP has bytes. So a sender waits while that is
//! likely to be shorter. A sender that must not block earns its waiting time by the bytes that it puts ([`Allowance`]).

use super::read_consumer_head;
use crate::stream::Platform;
use motet_wire::stream::gate::{Broken, Mode};
use motet_wire::stream::record::StreamRecord;
use motet_wire::stream::slot::Lines;
use motet_wire::sync::{Ordering::Relaxed, relax};

/// A sender that may block waits this long (ns) for space.
const WAIT_NS: u64 = 20_000;
/// A sender that finds the large ring full waits longer (ns): the consumer may be touching fresh memory (the kernel clears 2 MiB for a huge page).
const WAIT_WIDE_NS: u64 = 500_000;
/// A sender that must not block always waits this long (ns).
const WAIT_NONBLOCKING_NS: u64 = 2_000;
/// It waits no longer than this (ns) for the consumer of a large ring, however much it has put. So long takes a spill of that ring, and about as long a
/// consumer that has to read first what TCP holds.
const MAX_ALLOWANCE_NS: u64 = 2_000_000;
/// A sender that waits for half the ring accepts any space after this time, ns.
const HALF_RING_WAIT_NS: u64 = 2_000;

/// Waits while the consumer reads, until there is space or the wait does not pay any more; returns the head that was read last.
#[cold]
pub(super) fn wait_for_space<P: Platform>(
    record: &StreamRecord,
    lines: &Lines,
    platform: &mut P,
    (tail, size): (u64, u64),
    (wide, nonblocking): (bool, bool),
) -> Result<u64, Broken> {
    let may_be_long = wide && !platform.is_cpu_contended();
    if !nonblocking {
        let most = if may_be_long { WAIT_WIDE_NS } else { WAIT_NS };
        return spin(record, lines, platform, (tail, size), most).map(|(head, _)| head);
    }
    let allowance = Allowance::at(record, tail, if may_be_long { MAX_ALLOWANCE_NS } else { WAIT_NS });
    let (head, waited) = spin(record, lines, platform, (tail, size), allowance.0.max(WAIT_NONBLOCKING_NS))?;
    allowance.spend(record, tail, waited);
    Ok(head)
}

/// The time, ns, that a sender which must not block may wait: one nanosecond for each byte that it has put into the ring and not waited for. TCP takes 0.3 to
/// 0.5 ns for a byte. So an event loop whose consumers are slow waits two to three times as long as its sends over TCP would take, and one whose consumers
/// keep up stays in the ring (ADR 55).
struct Allowance(u64);

impl Allowance {
    fn at(record: &StreamRecord, tail: u64, most: u64) -> Self {
        Self(u64::from((tail as u32).wrapping_sub(record.rx.tx_waits_paid.load(Relaxed))).min(most))
    }

    fn spend(self, record: &StreamRecord, tail: u64, waited: u64) {
        let left = self.0.saturating_sub(waited);
        record.rx.tx_waits_paid.store(tail.wrapping_sub(left) as u32, Relaxed);
    }
}

/// Spins while the consumer reads, at most `most` ns; returns the head that was read last, and the time.
fn spin<P: Platform>(
    record: &StreamRecord,
    lines: &Lines,
    platform: &mut P,
    (tail, size): (u64, u64),
    most: u64,
) -> Result<(u64, u64), Broken> {
    let (wait, some) = (platform.ticks(most), platform.ticks(HALF_RING_WAIT_NS));
    let start = platform.now();
    let there = lines.consumer.cpu.load(Relaxed);
    if there != 0 && there == platform.cpu() + 1 {
        platform.yield_now();
    }
    loop {
        let head = read_consumer_head(record, lines, tail)?;
        // Half the ring at once: fewer and larger transfers than following the consumer line by line.
        let waited = platform.now().wrapping_sub(start);
        let enough = tail - head <= size / 2 || (tail - head < size && waited > some);
        if enough || waited > wait || lines.gate.mode(tail)? == Mode::Tcp {
            return Ok((head, (waited << 10) / platform.ticks_per_1024ns().max(1)));
        }
        for _ in 0..16 {
            relax();
        }
    }
}
