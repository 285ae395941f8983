//! How a stream ends: by close, by an error, or by the kernel's end of file over ring bytes that the peer did not read.

use super::EBADF;
use super::handover::flush_unread;
use crate::reason::Reason;
use crate::stream::engine::{Engine, Handle, Local, UpgradedStream};
use crate::stream::kernel_tcp::KernelTcp;
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
    /// Ends the process's part in a stream after every adapter that took it has closed it. The last process of the fork group that does so ends the
    /// stream. True: bytes in the ring have not been read, which TCP answers with a reset when the last descriptor of the socket is closed. (False if the
    /// descriptor was handed over to another program, which may use it further. The caller must know whether a program has inherited it.)
    ///
    /// The handle becomes stale first. Then both locks are taken once: a holder is done by then, and later calls find the handle stale (invariant 7).
    /// Only then is the wire released, and perhaps its memory.
    pub fn close(&self, handle: Handle) -> Result<bool, Errno> {
        let (record, local) = self.look_up(handle).ok_or(EBADF)?;
        if local.adapters.fetch_sub(1, AcqRel) > 1 {
            return Ok(false);
        }
        self.leave_sets(handle, local);
        // First, so that a thread that is woken below finds the stream closed.
        if !self.retire(handle) {
            return Err(EBADF);
        }
        drop(local.pending.lock().take()); // no wire comes up from here on
        self.count_ended(record, local);
        let mut kernel = KernelTcp::retired(local);
        // A descriptor that was closed where Motet could not see it may belong to another file.
        let same = socket::cookie(kernel.fd()) == Ok(record.connection.cookies[0].load(Relaxed));
        let mut unread = false;
        let slot = local.slot.slot();
        if let Some(slot) = &slot {
            if same {
                flush_unread(record, slot, &mut kernel);
            }
            unread = !gate::close_gate_over_bytes(record, slot, &mut kernel)
                && same
                && record.lifecycle.tcp_only.load(Relaxed) == 0;
        }
        // Under this lock no thread forks.
        let mut owners = self.owners();
        owners.remove(&record.connection.cookies[0].load(Relaxed));
        let last = self.leave_stream(record);
        drop(owners);
        if let Some(slot) = slot {
            self.release_wire(record, local, &slot, last);
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

    /// Releases the wire: after this no thread of this process uses it. `last`: no other process of the fork group uses it either.
    fn release_wire(&self, record: &StreamRecord, local: &Local, slot: &Slot, last: bool) {
        let mut kernel = KernelTcp::retired(local);
        drop(acquire(&record.tx.lock, &mut kernel));
        drop(acquire(&record.rx.lock, &mut kernel));
        local.slot.set(None);
        if motet_proto::stream::bulk::has_large_ring_pages(record)
            && let Some(memory) = slot.bulk_memory()
        {
            crate::stream::kernel_tcp::release_large_ring_budget(memory);
            if last && !gate::is_return_pending(slot) {
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

    /// Resets the connection of a broken stream, so that both ends get an error from the kernel.
    pub(crate) fn reset(&self, record: &StreamRecord, local: &Local) {
        let why = match record.lifecycle.error.load(Relaxed) {
            0 => Reason::BROKEN,
            UNORDERED => Reason::ORDER,
            _ => return,
        };
        let known = record.lifecycle.reason.load(Acquire) == Reason::LEFT_UNREAD.0;
        if record.state() == State::Broken && !known && record.lifecycle.reason.swap(why.0, AcqRel) != why.0 {
            self.reset_connection(record, local, why);
        }
    }

    fn reset_connection(&self, record: &StreamRecord, local: &Local, why: Reason) {
        self.count_tcp_only(why);
        self.log.reset(record, why);
        let _ = socket::shutdown(local.fd.load(Relaxed), 2);
    }

    /// Notes a kernel error that a receive met after it had bytes to deliver. The kernel reports it once, so the next call on the stream must report it.
    #[cold]
    pub fn note_error(&self, handle: Handle, errno: Errno) {
        if let Some((record, _)) = self.look_up(handle)
            && record.state() == State::Attached
        {
            record.lifecycle.error.store(errno as u32, Relaxed);
            record.lifecycle.state.store(State::Broken as u32, Release);
        }
    }

    /// The error of a call on a stream that has ended. An error of the kernel is reported once; after that the kernel answers.
    #[cold]
    pub(super) fn error_of_ended(&self, record: &StreamRecord, local: &Local) -> Errno {
        let errno = record.lifecycle.error.load(Acquire);
        if errno != 0 && errno != UNORDERED {
            record.lifecycle.error.store(0, Release);
            record.lifecycle.state.store(State::TcpOnly as u32, Release);
            return errno as Errno;
        }
        self.reset(record, local);
        ECONNRESET
    }

    /// Notes that the kernel has reported end of file. If the peer was killed and left bytes unread in the ring, the kernel reports an orderly end. Over
    /// TCP the connection would be reset, so such a stream is broken, and later calls fail.
    #[cold]
    pub fn note_end_of_file(&self, handle: Handle) {
        let Some(UpgradedStream { record, local, slot, .. }) = self.attached(handle) else { return };
        let fd = local.fd.load(Relaxed);
        let unread_in_ring = tx::is_unread(record, &slot)
            && socket::unread_bytes(fd) == 0
            && !socket::is_connected(fd)
            && crate::stream::kernel_tcp::other_end_is_gone(fd, record.connection.pid.load(Relaxed));
        // Bytes that were taken back while the peer died arrived at a closed socket, and the kernel has an error for them.
        let taken_back_too_late = !unread_in_ring && tx::has_taken_back(record) && socket::has_error(fd);
        if unread_in_ring || taken_back_too_late {
            // The reason before the state: another thread that sees the state first would set a reason of its own.
            let why = Reason::LEFT_UNREAD;
            let first = record.lifecycle.reason.swap(why.0, AcqRel) != why.0;
            record.lifecycle.state.store(State::Broken as u32, Release);
            if first {
                self.reset_connection(record, local, why);
            }
        }
    }
}
