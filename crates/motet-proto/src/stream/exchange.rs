//! Exchanges of short messages whose requests find the peer's gate closed.
//!
//! A server that hands each connection between threads and epoll sets (Apache's mpm_event) sleeps in the kernel when a request comes, so every
//! request goes over TCP. If the client opens its gate all the same, it spins for the answer on a CPU that the server's threads need: measured
//! 0.75-0.95 x the rate and 1.4 x the server's CPU time of plain TCP. Such an exchange stays on TCP in both directions. Only a receiver of
//! much data opens its gate whatever happens to its own sends.

use crate::stream::Platform;
use motet_wire::stream::record::StreamRecord;
use motet_wire::sync::Ordering::Relaxed;

/// Sends in a row that met a closed gate before the own gate stays closed, too.
const ENOUGH: u32 = 16;
/// Bytes received since the last such send that are worth an open gate.
const MUCH: u32 = 32 << 10;
/// Once in so many times the gate opens all the same: the peer may have begun to look, and both may be waiting for the other to begin.
const TRIAL: u32 = 256;

/// Notes a send that met a closed gate.
pub(crate) fn met_closed_gate(record: &StreamRecord) {
    let (exchange, rx) = (&record.events.gate_misses, &record.rx);
    let put = record.tx.tail.load(Relaxed) as u32;
    let received = rx.head.load(Relaxed).wrapping_add(rx.tcp_bytes.load(Relaxed)) as u32;
    let since = received.wrapping_sub(exchange.received_at_miss.load(Relaxed));
    let again = put == exchange.sent_at_miss.load(Relaxed) && since < MUCH;
    let unmet = if again { exchange.in_a_row.load(Relaxed).saturating_add(1) } else { 0 };
    exchange.in_a_row.store(unmet, Relaxed);
    exchange.sent_at_miss.store(put, Relaxed);
    exchange.received_at_miss.store(received, Relaxed);
}

/// Whether nothing speaks for [`keeps_gate_closed`].
#[inline(always)]
pub(crate) fn is_mutual(record: &StreamRecord) -> bool {
    record.events.gate_misses.in_a_row.load(Relaxed) < ENOUGH
}

/// Whether the gate stays closed now, because what this side sends goes over TCP anyway.
pub(crate) fn keeps_gate_closed<B: Platform>(record: &StreamRecord, base: &B) -> bool {
    let exchange = &record.events.gate_misses;
    if is_mutual(record) {
        return false;
    }
    if exchange.sent_at_miss.load(Relaxed) != record.tx.tail.load(Relaxed) as u32 || base.patience(record).ns > 0 {
        exchange.in_a_row.store(0, Relaxed); // the last send met an open gate
        return false;
    }
    let kept = exchange.gate_kept_closed.load(Relaxed).wrapping_add(1);
    exchange.gate_kept_closed.store(kept, Relaxed);
    !kept.is_multiple_of(TRIAL)
}
