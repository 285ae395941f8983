//! Exchanges of short messages whose requests find the peer's gate closed: they stay on TCP in both directions.
//!
//! A server that hands each connection between threads and epoll sets (Apache's mpm_event) sleeps in the kernel when a request arrives, so every
//! request goes over TCP. A client that opened its gate all the same would spin for the answer on a CPU that the server's threads need. Measured:
//! 0.75 to 0.95 times the rate of TCP, and 1.4 times the server's CPU time. A receiver of much data opens its gate whatever its own sends find.

use crate::stream::Platform;
use motet_wire::stream::record::StreamRecord;
use motet_wire::sync::Ordering::Relaxed;

/// Sends in a row that found a closed gate before this side's gate stays closed, too.
const MISSES_THAT_CLOSE: u32 = 16;
/// Bytes received since the last such send that justify an open gate.
const MANY_BYTES: u32 = 32 << 10;
/// Once in so many times the gate opens all the same, because each side may be waiting for the other one to open its gate first.
const TRIAL_INTERVAL: u32 = 256;

/// Notes a send that found a closed gate.
pub(crate) fn note_closed_gate(record: &StreamRecord) {
    let (exchange, rx) = (&record.events.gate_misses, &record.rx);
    let put = record.tx.tail.load(Relaxed) as u32;
    let received = rx.head.load(Relaxed).wrapping_add(rx.tcp_bytes.load(Relaxed)) as u32;
    let since = received.wrapping_sub(exchange.received_at_miss.load(Relaxed));
    let again = put == exchange.sent_at_miss.load(Relaxed) && since < MANY_BYTES;
    let unmet = if again { exchange.in_a_row.load(Relaxed).saturating_add(1) } else { 0 };
    exchange.in_a_row.store(unmet, Relaxed);
    exchange.sent_at_miss.store(put, Relaxed);
    exchange.received_at_miss.store(received, Relaxed);
}

/// Whether sends find the peer's gate open often enough that [`keeps_gate_closed`] is false.
#[inline(always)]
pub(crate) fn finds_open_gates(record: &StreamRecord) -> bool {
    record.events.gate_misses.in_a_row.load(Relaxed) < MISSES_THAT_CLOSE
}

/// Whether the last sends found the peer's gate closed, again and again.
fn is_one_sided(record: &StreamRecord) -> bool {
    !finds_open_gates(record)
        && record.events.gate_misses.sent_at_miss.load(Relaxed) == record.tx.tail.load(Relaxed) as u32
}

/// Whether an epoll set leaves the stream to the kernel: it does not poll it, and opens no gate. Not if a trial is due.
pub fn is_left_to_kernel(record: &StreamRecord) -> bool {
    let kept = record.events.gate_misses.gate_kept_closed.load(Relaxed);
    is_one_sided(record) && !kept.wrapping_add(1).is_multiple_of(TRIAL_INTERVAL)
}

/// [`is_left_to_kernel`] after bytes were received. Counts, so that a trial is due after some of them.
pub fn stays_left_to_kernel(record: &StreamRecord) -> bool {
    let left = is_left_to_kernel(record);
    if left {
        record.events.gate_misses.gate_kept_closed.fetch_add(1, Relaxed);
    }
    left
}

/// Whether this side's gate stays closed, because what it sends goes over TCP anyway.
pub(crate) fn keeps_gate_closed<P: Platform>(record: &StreamRecord, platform: &P) -> bool {
    let exchange = &record.events.gate_misses;
    if finds_open_gates(record) {
        return false;
    }
    if !is_one_sided(record) || platform.patience(record).ns > 0 {
        exchange.in_a_row.store(0, Relaxed); // the last send found an open gate
        return false;
    }
    let kept = exchange.gate_kept_closed.load(Relaxed).wrapping_add(1);
    exchange.gate_kept_closed.store(kept, Relaxed);
    !kept.is_multiple_of(TRIAL_INTERVAL)
}
