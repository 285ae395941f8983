//! Streams: what adapters call.
//!
//! Reads top-down: [`Engine::upgrade`], the split calls [`Engine::send_begin`] and [`Engine::recv_begin`] with their ends, readiness, and
//! [`Engine::stay_on_tcp`]. How a wire comes up is in `stream/upgrade.rs`, how a stream ends in `stream/close.rs`.

pub(crate) mod addresses;
pub mod blocking;
mod close;
mod confined;
pub mod engine;
pub mod epoll_set;
mod exchange_pace;
pub mod fork_group;
mod handover;
pub mod kernel_tcp;
pub mod local;
pub mod options;
pub mod peer_process;
mod upgrade;
pub mod wait;

use upgrade::{attach_tx, init_connection_info};

use crate::reason::Reason;
use crate::stream::engine::{Engine, Handle, UpgradedStream};
use crate::stream::kernel_tcp::KernelTcp;
use motet_proto::{
    ECONNRESET, EINTR, Errno,
    stream::{gate, rx, tx},
};
use motet_sys::{socket, thread};
use motet_wire::stream::record::State;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// EBADF.
pub const EBADF: Errno = 9;
/// EMFILE.
pub const EMFILE: Errno = 24;
/// After an interposed wait so many receives may find nothing before the gate closes (invariant 4).
pub const RECEIVES_AFTER_WAIT: u32 = 2;

/// Parameters of [`Engine::upgrade`].
#[derive(Debug, Clone, Copy)]
pub struct UpgradeParams {
    /// This end made the connection (otherwise it accepted it).
    pub connected: bool,
    /// The upgrade begins after the first few messages.
    pub lazy: bool,
}

/// Reasons for which a stream stays on TCP and bytes may be sent past the engine from then on: by other programs, by threads whose calls are not seen, by the
/// kernel.
const SENT_PAST_THE_ENGINE: &[Reason] = &[
    Reason::STDIO,
    Reason::EXEC,
    Reason::PASSED,
    Reason::UNSEEN_WAIT,
    Reason::CONFINED,
    Reason::URGENT,
    Reason::KERNEL_TELLS,
    Reason::OWN_DESCRIPTORS,
];

impl Engine {
    /// Takes a connected TCP descriptor: makes a stream of it, which may be upgraded to a wire.
    pub fn upgrade(&self, fd: i32, UpgradeParams { connected, lazy }: UpgradeParams) -> Result<Handle, Errno> {
        let (local, peer) = socket::addresses(fd)?;
        let cookie = socket::cookie(fd)?;
        let mut owners = self.owners();
        if let Some(&handle) = owners.get(&cookie)
            && let Some((record, own)) = self.look_up(handle)
        {
            own.adapters.fetch_add(1, AcqRel);
            own.fd.store(fd, Relaxed); // a duplicate: the caller may be about to close the first one
            if record.lifecycle.owner.load(Relaxed) == thread::pid() {
                record.lifecycle.fd.store(fd as u32, Relaxed);
            }
            return Ok(handle);
        }
        let Some((handle, record, own)) = self.allocate() else {
            self.count_tcp_only(Reason::TABLE_FULL);
            self.log.refused(fd, (local, peer), Reason::TABLE_FULL);
            return Err(EMFILE);
        };
        own.fd.store(fd, Relaxed);
        own.cookie.store(cookie, Relaxed);
        own.connected.store(connected, Relaxed);
        owners.insert(cookie, handle);
        drop(owners);
        init_connection_info(record, fd, connected, local, peer, cookie);
        match self.route(&self.stream_pair(record, own)) {
            Ok(_) => record.lifecycle.reason.store(Reason::PENDING.0, Relaxed),
            Err(reason) => self.decline_upgrade(record, reason),
        }
        if !lazy {
            self.advance_upgrade(handle);
        }
        Ok(handle)
    }

    /// Decides one send: payload goes into the ring, or the caller makes the kernel call. `motet_send_begin` of the C interface.
    #[inline]
    pub fn send_begin(&self, handle: Handle, bufs: &[IoSlice<'_>], kernel_only: bool, nonblocking: bool) -> tx::Step {
        let Some((record, local)) = self.look_up(handle) else { return tx::Step::Failed(EBADF) };
        let slot = match record.state() {
            State::Attached => local.slot.slot(),
            State::Candidate => {
                self.advance_upgrade(handle);
                local.slot.slot()
            }
            State::TcpOnly => return tx::Step::Kernel,
            State::Broken | State::Free => return tx::Step::Failed(self.error_of_ended(record, local)),
        };
        let mut kernel = KernelTcp::new(local, handle).with_peer(&local.peer);
        if let Some(slot) = &slot
            && record.tx.ready.load(Relaxed) == 0
        {
            attach_tx(record, slot, &mut kernel);
        }
        let ask = tx::Request {
            kernel_only,
            nonblocking,
            large: self.options.single_copy,
            large_far: self.options.single_copy_far,
            half: self.options.half_copy,
        };
        let step = tx::begin(record, slot.as_ref(), &mut kernel, bufs, ask);
        match step {
            tx::Step::Done(_) => self.mark_unread(handle, local),
            tx::Step::Failed(ECONNRESET) => self.reset(record, local),
            _ => {}
        }
        step
    }

    /// Ends a send that the kernel made.
    #[inline]
    pub fn send_end(&self, handle: Handle, sent: usize) {
        if let Some((record, local)) = self.look_up(handle)
            && record.state() != State::TcpOnly
        {
            tx::end(record, &mut KernelTcp::new(local, handle), sent);
        }
    }

    /// Decides one receive: bytes are in `bufs`, or the caller makes the kernel call. `motet_recv_begin` of the C interface.
    #[inline]
    pub fn recv_begin(
        &self,
        handle: Handle,
        bufs: &mut [IoSliceMut<'_>],
        blocking: bool,
        peek: bool,
        kernel_only: bool,
    ) -> rx::Step {
        let Some((record, local)) = self.look_up(handle) else { return rx::Step::Failed(EBADF) };
        let slot = match record.state() {
            State::Attached => local.slot.slot(),
            State::Candidate => {
                self.advance_upgrade(handle);
                local.slot.slot()
            }
            State::TcpOnly => return rx::Step::Kernel,
            State::Broken | State::Free => return rx::Step::Failed(self.error_of_ended(record, local)),
        };
        let mut kernel = KernelTcp::new(local, handle).with_peer(&local.peer);
        if let Some(slot) = &slot
            && record.rx.ready.load(Relaxed) == 0
        {
            self.attach_rx(&UpgradedStream { handle, record, local, slot: *slot });
        }
        // If both ends take turns on one CPU the gate stays open, so only this check finds an exchange that has become slow.
        let slow = blocking
            && record.rx.same_cpu.load(Relaxed) != 0
            && !self.options.is_patient()
            && slot.is_some_and(|slot| {
                !local.pace.is_quick(|| UpgradedStream { handle, record, local, slot }.peer_on_this_cpu())
            });
        let spin = if slow || local.in_set.load(Relaxed) && !blocking { 0 } else { self.options.spin };
        // The smaller of the two sizes: the sender knows which one applies.
        let large = self.options.single_copy.min(self.options.single_copy_far);
        let ask = rx::Request { blocking, peek, kernel_only, spin, large };
        if blocking {
            record.rx.evidence_left.store(RECEIVES_AFTER_WAIT, Relaxed);
        }
        let patient = self.options.is_patient();
        let may_raise = || (!blocking || patient || local.pace.is_quick(|| false)) && local.sets_may_raise(handle);
        let step = rx::begin(record, slot.as_ref(), &mut kernel, bufs, ask, may_raise, |_, may_spin| {
            self.may_wait_for_reader(may_spin)
        });
        match step {
            rx::Step::Done(_) if local.in_set.load(Relaxed) => self.note_delivery(handle, record, local),
            rx::Step::Failed(ECONNRESET) => self.reset(record, local),
            rx::Step::Failed(EINTR) if self.look_up(handle).is_none() => return rx::Step::Failed(EBADF), // woken by `close`
            _ => {}
        }
        step
    }

    /// Ends a receive that the kernel made. `received`: bytes; 0 for none, and if they were peeked.
    #[inline]
    pub fn recv_end(&self, handle: Handle, received: usize) {
        if let Some((record, local)) = self.look_up(handle)
            && record.state() != State::TcpOnly
        {
            rx::end(record, &mut KernelTcp::new(local, handle), received);
            if received > 0 && local.in_set.load(Relaxed) {
                self.note_delivery(handle, record, local);
            }
        }
    }

    /// Whether a receive would take bytes from the wire now.
    #[inline]
    pub fn rx_ready(&self, handle: Handle) -> bool {
        self.attached(handle).is_some_and(|up| rx::ready(up.record, &up.slot))
    }

    /// Stream position after the last byte on the wire.
    pub fn rx_position(&self, handle: Handle) -> u64 {
        self.attached(handle).map_or(0, |up| up.slot.inward().gate.tail().0)
    }

    /// Bytes on the wire that a receive could take after TCP's: 0 while TCP bytes that precede them are missing, or while the producer is returning
    /// them. Must be called after the kernel was asked for its bytes: bytes returned in between count there or not at all, so the sum is never too large.
    pub fn rx_bytes(&self, handle: Handle) -> u64 {
        self.attached(handle).map_or(0, |UpgradedStream { record, local, slot, .. }| {
            let lines = slot.inward();
            let (tail, Some(head)) = (lines.gate.tail().0, lines.consumer.settled()) else { return 0 };
            let moved = head != record.rx.head.load(Relaxed);
            let missing = match moved {
                true => lines.mark.mark.load(Relaxed).saturating_sub(record.rx.tcp_bytes.load(Relaxed)),
                false => rx::missing_tcp_bytes(record, &slot),
            };
            if tail <= head || missing > 0 && socket::unread_bytes(local.fd.load(Relaxed)) < missing {
                return 0;
            }
            (tail - head).min(slot.in_ring(record.rx.wide.load(Relaxed) != 0).size())
        })
    }

    /// Returns the stream to TCP for good. True: the ring is empty.
    pub fn stay_on_tcp(&self, handle: Handle, reason: Reason) -> bool {
        let fd = self.look_up(handle).map_or(-1, |(_, local)| local.fd.load(Relaxed));
        self.stay_on_tcp_through(handle, fd, reason)
    }

    /// Returns the stream to TCP for good, using this descriptor of its socket. True: the ring is empty.
    fn stay_on_tcp_through(&self, handle: Handle, fd: i32, reason: Reason) -> bool {
        let Some((record, local)) = self.look_up(handle) else { return true };
        let first = record.lifecycle.tcp_only.swap(1, AcqRel) == 0;
        record.lifecycle.reason.store(reason.0, Relaxed);
        if record.lifecycle.nodelay.swap(0, AcqRel) == 1 {
            socket::set_nodelay(fd, false);
        }
        let Some(slot) = local.slot.slot() else {
            if record.state() == State::Candidate {
                self.decline_upgrade(record, reason);
            }
            return true;
        };
        if first {
            self.log.tcp_only(record, reason);
        }
        let mut kernel = KernelTcp::new(local, handle).on_descriptor(fd);
        tx::take_back(record, &slot, &mut kernel);
        // The mark would be wrong.
        if SENT_PAST_THE_ENGINE.contains(&reason) {
            tx::finish(record, &slot, &mut kernel);
        }
        gate::close_gate_over_bytes(record, &slot, &mut kernel)
    }

    /// TCP_NODELAY as the program sees it, after it has set it to `set`. `None`: the kernel's option is what the program set.
    pub fn nodelay(&self, handle: Handle, set: Option<bool>) -> Option<bool> {
        let (record, _) = self.look_up(handle)?;
        let seen = record.lifecycle.nodelay.load(Acquire).checked_sub(1)? != 0;
        if let Some(on) = set {
            record.lifecycle.nodelay.store(1 + u32::from(on), Release);
        }
        Some(set.unwrap_or(seen))
    }

    /// Half-close: unread ring bytes return to TCP, then the kernel sends FIN.
    pub fn shutdown(&self, handle: Handle, how: i32) -> Result<(), Errno> {
        let (record, local) = self.look_up(handle).ok_or(EBADF)?;
        if let Some(slot) = local.slot.slot()
            && how != 0
        {
            handover::flush_unread(record, &slot, &mut KernelTcp::new(local, handle));
            tx::finish(record, &slot, &mut KernelTcp::new(local, handle));
        }
        socket::shutdown(local.fd.load(Relaxed), how)
    }

    /// Called before this process ends: unread ring bytes of all its streams return to TCP.
    pub fn before_exit(&self) {
        self.sweep_unread(|handle, record, local| {
            if let Some(slot) = local.slot.slot() {
                handover::flush_unread(record, &slot, &mut KernelTcp::new(local, handle));
            }
            false
        });
    }

    /// Called before this thread sleeps: no byte that this process sent stays in a ring whose reader may be waiting elsewhere (invariant 6).
    #[inline]
    pub fn before_sleep(&self) {
        self.take_back_unread(false);
    }

    /// [`before_sleep`](Self::before_sleep) for a thread that could spin instead (`may_spin`). True: it should spin, because a peer is reading what this
    /// process sent.
    #[inline]
    pub(crate) fn may_wait_for_reader(&self, may_spin: bool) -> bool {
        self.take_back_unread(may_spin && self.options.spin > 0)
    }

    #[inline]
    fn take_back_unread(&self, may_wait_for_reader: bool) -> bool {
        let mut reading = false;
        self.sweep_unread(|handle, record, local| match local.slot.slot() {
            Some(slot) if may_wait_for_reader && tx::is_being_read(record, &slot) => {
                reading = true;
                true
            }
            Some(slot) if !tx::take_back(record, &slot, &mut KernelTcp::new(local, handle)) => {
                self.reset(record, local);
                record.state() != State::Broken
            }
            _ => false,
        });
        reading
    }
}
