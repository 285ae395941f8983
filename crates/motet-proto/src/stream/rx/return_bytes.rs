//! Returns ring bytes to TCP in the producer's place, for a descriptor that is handed over.

use crate::Errno;
use crate::stream::Platform;
use crate::stream::gate::{close_if_empty, lock_rx};
use motet_wire::stream::gate::INLINE;
use motet_wire::stream::record::StreamRecord;
use motet_wire::stream::slot::Slot;
use motet_wire::sync::Ordering::Relaxed;
use std::io::IoSliceMut;

/// Bytes returned to TCP in one step.
const RETURN_CHUNK_BYTES: usize = 2048;

/// Returns what the ring holds to TCP in the producer's place. `send` sends on the producer's socket without blocking. The stream stays on TCP, so
/// the gate stays closed. True: the ring is empty.
///
/// The claim excludes the producer, which sends nothing over TCP while bytes are unread (invariant 3). So TCP holds what precedes the ring and
/// nothing else.
pub fn return_for_producer<P: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    platform: &mut P,
    mut send: impl FnMut(&[u8]) -> Result<usize, Errno>,
) -> bool {
    let Some(_held) = lock_rx(record, platform) else { return false };
    let (rx, lines) = (&record.rx, slot.inward());
    if rx.ready.load(Relaxed) == 0 || close_if_empty(record, slot) {
        return true;
    }
    lines.gate.lower();
    let Some(first) = lines.consumer.claim() else { return false }; // the producer is returning them itself
    let tail = lines.gate.tail().0;
    let ring = slot.in_ring(rx.wide.load(Relaxed) != 0);
    if first != rx.head.load(Relaxed) || tail.wrapping_sub(first) > ring.size() {
        lines.consumer.release(first);
        return false;
    }
    let mut head = first;
    let mut piece = [0; RETURN_CHUNK_BYTES];
    while head != tail {
        let mut n = piece.len().min((tail - head) as usize);
        let mut short = [0; INLINE];
        if let Some((from, to)) = lines.gate.read_inline(head, &mut short) {
            n = n.min(to - from);
            piece[..n].copy_from_slice(&short[from..from + n]);
        } else {
            ring.read(head, &mut [IoSliceMut::new(&mut piece[..n])], 0, n);
        }
        let sent = send(&piece[..n]).unwrap_or(0);
        head += sent as u64;
        if sent < n {
            break;
        }
    }
    let mark = lines.mark.mark.load(Relaxed) + (head - first);
    lines.mark.mark.store(mark, Relaxed);
    rx.mark.store(mark, Relaxed);
    rx.mark_known.store(1, Relaxed);
    rx.returned_bytes.fetch_add(head - first, Relaxed);
    rx.head.store(head, Relaxed);
    lines.consumer.release(head); // edge: release -> settled
    head == tail
}
