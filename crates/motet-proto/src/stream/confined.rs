//! The receiving half of a confined process: takes what is left in the ring, with loads and stores alone.
//!
//! The gate is closed and never opens again, so the order is simple: TCP bytes up to the mark, what the ring holds, then TCP alone. The caller
//! makes the kernel's calls. Nothing here asks the kernel, sleeps or yields, provided that the caller's [`Platform`] does not.

use crate::stream::gate::lock_rx_always;
use crate::stream::half_lock::Acquired;
use crate::stream::rx::{Take, missing_tcp_bytes, take};
use crate::{EAGAIN, Errno, stream::Platform};
use motet_wire::stream::record::{State, StreamRecord};
use motet_wire::stream::slot::Slot;
use motet_wire::sync::{Ordering::Relaxed, relax};
use std::io::IoSliceMut;

/// What the next bytes of the stream are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remaining {
    /// So many bytes of the ring are in the caller's buffers.
    Bytes(usize),
    /// The next bytes are TCP's. At most so many of them precede what the ring holds. The caller reports them with [`note_received`].
    TcpFirst(u64),
    /// The ring is empty for good: all further bytes are TCP's.
    RingEmpty,
    /// The operation failed.
    Failed(Errno),
}

/// Attempts to take bytes from a producer that is returning them to TCP. At least one of these bytes arrives over TCP and wakes the kernel's wait.
const MAX_TAKE_ATTEMPTS: u32 = 1 << 16;

/// Takes what the ring holds, unless TCP bytes come first.
pub fn drain<P: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    platform: &mut P,
    bufs: &mut [IoSliceMut<'_>],
    peek: bool,
) -> Remaining {
    if record.state() == State::Broken {
        return Remaining::Failed(crate::ECONNRESET);
    }
    if record.rx.ready.load(Relaxed) == 0 {
        return Remaining::RingEmpty;
    }
    for _ in 0..MAX_TAKE_ATTEMPTS {
        match take(record, slot, platform, bufs, peek) {
            Take::Done(n) => return Remaining::Bytes(n),
            Take::Empty => return Remaining::RingEmpty,
            Take::InFlight => return Remaining::TcpFirst(missing_tcp_bytes(record, slot).max(1)),
            Take::Failed(errno) => return Remaining::Failed(errno),
            Take::Retry => relax(),
        }
    }
    Remaining::TcpFirst(1)
}

/// Notes that the caller has received so many of the TCP bytes that precede the ring.
pub fn note_received<P: Platform>(record: &StreamRecord, platform: &mut P, received: usize) -> Result<(), Errno> {
    match lock_rx_always(record, platform) {
        Acquired::Stale | Acquired::Reentrant => Err(EAGAIN),
        _held => {
            record.rx.tcp_bytes.store(record.rx.tcp_bytes.load(Relaxed) + received as u64, Relaxed);
            Ok(())
        }
    }
}
