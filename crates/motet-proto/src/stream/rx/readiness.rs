//! Whether a receive would find bytes. Takes no lock.

use motet_wire::stream::record::StreamRecord;
use motet_wire::stream::slot::Slot;
use motet_wire::sync::Ordering::Relaxed;

/// Whether a receive would find bytes that the kernel may not report. Takes no lock.
///
/// Bytes that the producer is returning to TCP count: a program that has just asked the kernel saw none, and a receive waits for them. After one
/// receive that waited for them without success they do not count until the producer has gone on. Otherwise a program that polls would never sleep.
#[inline]
pub fn ready(record: &StreamRecord, slot: &Slot) -> bool {
    let (tail, _) = slot.inward().gate.tail();
    let rx = &record.rx;
    let head = rx.head.load(Relaxed);
    if tail == head {
        return false;
    }
    // Until TCP has delivered what precedes the ring, the kernel's own readiness decides.
    if rx.mark_known.load(Relaxed) != 0 {
        return rx.tcp_bytes.load(Relaxed) >= rx.mark.load(Relaxed);
    }
    let lines = slot.inward();
    match lines.consumer.settled() {
        Some(at) if at == head => lines.mark.mark.load(Relaxed) <= rx.tcp_bytes.load(Relaxed),
        Some(_) => true,
        None => record.connection.producer_stalled.load(Relaxed) == 0,
    }
}

/// Whether the ring holds bytes, which TCP bytes may precede, or has held some that the producer returned to TCP.
pub fn has_bytes(record: &StreamRecord, slot: &Slot) -> bool {
    slot.inward().gate.tail().0 != record.rx.head.load(Relaxed)
}

/// TCP bytes that precede the ring and have not been received.
pub fn missing_tcp_bytes(record: &StreamRecord, slot: &Slot) -> u64 {
    let rx = &record.rx;
    let known = rx.mark_known.load(Relaxed) != 0;
    let mark = if known { rx.mark.load(Relaxed) } else { slot.inward().mark.mark.load(Relaxed) };
    mark.saturating_sub(rx.tcp_bytes.load(Relaxed))
}
