//! What is left in a ring that is closed for good, taken by memory alone.
//!
//! What it is: the receiving half for a process that has confined its system calls. Its gate is closed and never opens again, so
//! the order is simple: TCP bytes up to the mark, what the ring holds, then TCP alone. The caller makes the kernel's calls.
//!
//! What it is not: a wait. RingEmpty here asks the kernel, sleeps or yields, if the caller's [`Platform`] does not.

use crate::stream::gate::hold;
use crate::stream::half_lock::Acquired;
use crate::stream::rx::{Take, missing_tcp_bytes, take};
use crate::{EAGAIN, Errno, stream::Platform};
use motet_wire::stream::record::{State, StreamRecord};
use motet_wire::stream::slot::Slot;
use motet_wire::sync::{Ordering::Relaxed, relax};
use std::io::IoSliceMut;

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remaining {
    /// So many bytes of the ring are in the caller's buffers, or would fit there.
    Bytes(usize),
    /// The next bytes are TCP's: so many of them at most precede what the ring holds. Say so with [`came`].
    TcpFirst(u64),
    /// The ring is empty, for good: all that comes is TCP's.
    RingEmpty,
    /// The operation failed.
    Failed(Errno),
}

/// Looks at a producer that is taking bytes back. What it takes comes over TCP, at least a byte of it, and wakes the kernel's wait.
const LOOKS: u32 = 1 << 16;

/// Takes what the ring holds, if that is what comes next.
pub fn begin<B: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    base: &mut B,
    bufs: &mut [IoSliceMut<'_>],
    peek: bool,
) -> Remaining {
    if record.state() == State::Broken {
        return Remaining::Failed(crate::ECONNRESET);
    }
    if record.rx.ready.load(Relaxed) == 0 {
        return Remaining::RingEmpty;
    }
    for _ in 0..LOOKS {
        match take(record, slot, base, bufs, peek) {
            Take::Done(n) => return Remaining::Bytes(n),
            Take::Empty => return Remaining::RingEmpty,
            Take::InFlight => return Remaining::TcpFirst(missing_tcp_bytes(record, slot).max(1)),
            Take::Failed(errno) => return Remaining::Failed(errno),
            Take::Retry => relax(),
        }
    }
    Remaining::TcpFirst(1)
}

/// The kernel has given the caller so many bytes of those that precede the ring.
pub fn came<B: Platform>(record: &StreamRecord, base: &mut B, received: usize) -> Result<(), Errno> {
    match hold(record, base) {
        Acquired::Stale | Acquired::Reentrant => Err(EAGAIN),
        _held => {
            record.rx.tcp_bytes.store(record.rx.tcp_bytes.load(Relaxed) + received as u64, Relaxed);
            Ok(())
        }
    }
}
