//! How a stream ends: by close, by an error, by the kernel's end of file over bytes that will not be read any more.

use super::EBADF;
use super::handover::leave_nothing;
use crate::reason::Reason;
use crate::stream::engine::{Engine, Handle, Local, Up};
use crate::stream::kernel_tcp::Kernel;
use motet_proto::stream::half_lock::acquire;
use motet_proto::{
    ECONNRESET, Errno,
    stream::{gate, tx},
};
use motet_sys::socket;
use motet_wire::stream::record::{State, StreamRecord, UNORDERED};
use motet_wire::stream::slot::Slot;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

impl Engine {
    /// Ends the process's part in a stream, once every adapter that took it has closed it; the last process of the family that does so
    /// ends the stream. True when bytes that came over the wire have not been read then: TCP answers a close of the socket's last
    /// descriptor with a reset. (False where the descriptor was given to another program, which may go on with it. Whether one
    /// has inherited it is the caller's to know.)
    ///
    /// The handle becomes stale first; then both locks are taken: a holder is done by then, and later calls see
    /// that it means another stream (invariant 7). Only then is the wire let go of, and its memory perhaps with it.
    pub fn close(&self, handle: Handle) -> Result<bool, Errno> {
        let (record, local) = self.look_up(handle).ok_or(EBADF)?;
        if local.adapters.fetch_sub(1, AcqRel) > 1 {
            return Ok(false);
        }
        self.leave_sets(handle, local);
        // First: a thread that is woken below finds the stream closed.
        if !self.retire(handle) {
            return Err(EBADF);
        }
        drop(local.pending.lock().take()); // from now on no wire comes up
        self.count_ended(record, local);
        let mut base = Kernel::retired(local);
        // A descriptor that was closed behind our back may belong to another file by now.
        let same = socket::cookie(base.fd()) == Ok(record.connection.cookies[0].load(Relaxed));
        let mut unread = false;
        let slot = local.slot.slot();
        if let Some(slot) = &slot {
            if same {
                leave_nothing(record, slot, &mut base);
            }
            unread = !gate::close_gate_over_bytes(record, slot, &mut base)
                && same
                && record.lifecycle.tcp_only.load(Relaxed) == 0;
        }
        // Under this lock no thread forks.
        let mut owners = self.owners();
        owners.remove(&record.connection.cookies[0].load(Relaxed));
        let last = self.lets_go(record);
        drop(owners);
        if let Some(slot) = slot {
            self.let_go_of_wire(record, local, &slot, last);
            if same && last {
                self.reset(record, local);
            }
            self.log.closed(record);
        }
        local.peer.forget();
        local.wake_sleepers();
        if last {
            self.free(handle);
        }
        Ok(unread && last)
    }

    /// After this no thread of this process looks at the wire. `last`: nor does any other of the family.
    fn let_go_of_wire(&self, record: &StreamRecord, local: &Local, slot: &Slot, last: bool) {
        let mut base = Kernel::retired(local);
        drop(acquire(&record.tx.lock, &mut base));
        drop(acquire(&record.rx.lock, &mut base));
        local.slot.set(None);
        if motet_proto::stream::bulk::is_populated(record)
            && let Some(memory) = slot.bulk_memory()
        {
            crate::stream::kernel_tcp::forget(memory);
            if last && !gate::is_awaited_elsewhere(slot) {
                motet_sys::memory::release_pages(memory);
            }
        }
        let driver = (local.driver.load(Relaxed) as usize).checked_sub(1).and_then(|at| self.options.drivers.get(at));
        match driver.and_then(|driver| driver.streams()) {
            Some(driver) if last => driver.close(slot),
            Some(driver) => driver.abandon(slot),
            None => {}
        }
        self.count_memory();
    }

    /// If the connection is beyond repair, both ends learn it from the kernel.
    pub(crate) fn reset(&self, record: &StreamRecord, local: &Local) {
        let why = match record.lifecycle.error.load(Relaxed) {
            0 => Reason::BROKEN,
            UNORDERED => Reason::ORDER,
            _ => return,
        };
        let known = record.lifecycle.reason.load(Acquire) == Reason::LEFT_UNREAD.0;
        if record.state() == State::Broken && !known && record.lifecycle.reason.swap(why.0, AcqRel) != why.0 {
            self.is_reset(record, local, why);
        }
    }

    fn is_reset(&self, record: &StreamRecord, local: &Local, why: Reason) {
        self.count_tcp_only(why);
        self.log.reset(record, why);
        let _ = socket::shutdown(local.fd.load(Relaxed), 2);
    }

    /// A receive that has bytes to deliver met an error in the kernel, which tells it once: the next call tells it.
    #[cold]
    pub fn note_error(&self, handle: Handle, errno: Errno) {
        if let Some((record, _)) = self.look_up(handle)
            && record.state() == State::Attached
        {
            record.lifecycle.error.store(errno as u32, Relaxed);
            record.lifecycle.state.store(State::Broken as u32, Release);
        }
    }

    /// What a call on a stream that is over says. An error of the kernel is reported once; then the kernel answers.
    #[cold]
    pub(super) fn over(&self, record: &StreamRecord, local: &Local) -> Errno {
        let errno = record.lifecycle.error.load(Acquire);
        if errno != 0 && errno != UNORDERED {
            record.lifecycle.error.store(0, Release);
            record.lifecycle.state.store(State::TcpOnly as u32, Release);
            return errno as Errno;
        }
        self.reset(record, local);
        ECONNRESET
    }

    /// The kernel has reported the end of the stream. A peer that was killed cannot tell that it left bytes unread in the ring, so
    /// the kernel calls it an orderly end: such a stream is broken, and from now on its calls say so, as TCP's would.
    #[cold]
    pub fn note_end_of_file(&self, handle: Handle) {
        let Some(Up { record, local, slot, .. }) = self.attached(handle) else { return };
        let fd = local.fd.load(Relaxed);
        let unread_in_ring = tx::is_unread(record, &slot)
            && socket::unread_bytes(fd) == 0
            && !socket::is_connected(fd)
            && crate::stream::kernel_tcp::other_end_is_gone(fd, record.connection.pid.load(Relaxed));
        // Taken back in the very moment the peer died: they met a socket that was closed, and the kernel's answer is an error.
        let taken_back_too_late = !unread_in_ring && tx::has_taken_back(record) && socket::has_error(fd);
        if unread_in_ring || taken_back_too_late {
            // The reason before the state, or another thread that sees the state would find a reason of its own.
            let why = Reason::LEFT_UNREAD;
            let first = record.lifecycle.reason.swap(why.0, AcqRel) != why.0;
            record.lifecycle.state.store(State::Broken as u32, Release);
            if first {
                self.is_reset(record, local, why);
            }
        }
    }
}
