//! Blocking calls of the engine's own interface: the split calls, with a sleep between them.
//!
//! A sleep is a poll of the TCP descriptor and of this thread's eventfd (doorbell), so another thread can wake it.

use crate::stream::EBADF;
use crate::stream::engine::{Engine, Handle, Local};
use crate::stream::wait::{Wait, WaitStep};
use motet_proto::{
    EAGAIN, EINTR, Errno,
    stream::{rx, tx},
};
use motet_sys::{clock, socket};
use motet_wire::stream::record::StreamRecord;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// ETIMEDOUT.
pub const ETIMEDOUT: Errno = 110;
/// Bytes of a large buffer that go to the kernel in one send. Each previous send in a row that found a closed gate doubles the number.
const FIRST_KERNEL_SEND_BYTES: usize = 64 << 10;
/// Most of these doublings.
const MAX_SEND_DOUBLINGS: u32 = 6;
const MSG_DONTWAIT: i32 = 0x40;
const MSG_WAITALL: i32 = 0x100;

thread_local! {
    /// The eventfd on which this thread sleeps.
    static DOORBELL: Option<OwnedFd> = socket::eventfd().ok();
}

impl Local {
    /// Wakes the threads of this process that sleep on the stream.
    pub(crate) fn wake_sleepers(&self) {
        for &doorbell in self.sleepers.lock().iter().filter(|&&doorbell| doorbell >= 0) {
            socket::ring_eventfd(doorbell);
        }
    }
}

impl Engine {
    /// Sends everything, unless the call must not block.
    pub fn send(&self, handle: Handle, bufs: &[IoSlice<'_>], flags: i32) -> Result<usize, Errno> {
        let nonblocking = self.must_not_wait(handle, bufs, flags);
        match (self.send_begin(handle, bufs, false, nonblocking), bufs) {
            (tx::Step::Done(n), [one]) if n == one.len() => Ok(n),
            (step, _) => self.send_on(handle, bufs, flags, step),
        }
    }

    /// Slow path of [`Engine::send`], after its first step.
    #[inline(never)]
    fn send_on(&self, handle: Handle, bufs: &[IoSlice<'_>], flags: i32, mut begun: tx::Step) -> Result<usize, Errno> {
        let (record, local) = self.look_up(handle).ok_or(EBADF)?;
        let fd = local.fd.load(Relaxed);
        let total: usize = bufs.iter().map(|b| b.len()).sum();
        // Whether the send may block is determined only if it does not fit at once.
        let mut done = 0;
        let mut rest: Vec<IoSlice<'_>>;
        let mut left = bufs;
        loop {
            let step = match begun {
                tx::Step::Done(n) => Ok(n),
                tx::Step::Failed(errno) => Err(errno),
                tx::Step::Full => Err(EAGAIN),
                tx::Step::Kernel => {
                    // A peer that this send wakes may open its gate, so that the rest can use the ring.
                    let piece = FIRST_KERNEL_SEND_BYTES
                        << record.events.gate_misses.in_a_row.load(Relaxed).min(MAX_SEND_DOUBLINGS);
                    let sent = match left.first() {
                        Some(first) if first.len() > piece => {
                            socket::send(fd, &[IoSlice::new(&first[..piece])], flags | MSG_DONTWAIT)
                        }
                        _ => socket::send(fd, left, flags | MSG_DONTWAIT),
                    };
                    self.send_end(handle, sent.unwrap_or(0));
                    sent
                }
            };
            let blocks = || flags & MSG_DONTWAIT == 0 && !socket::is_nonblocking(fd);
            match step {
                Ok(n) => {
                    done += n;
                    if done >= total || !blocks() {
                        return Ok(done);
                    }
                    rest = advance(bufs, done);
                    left = &rest;
                }
                Err(EAGAIN) if blocks() => match self.sleep(record, handle, fd, socket::WRITABLE_EVENTS) {
                    Ok(()) => {}
                    Err(_) if done > 0 => return Ok(done),
                    Err(errno) => return Err(errno),
                },
                Err(_) if done > 0 => return Ok(done),
                Err(errno) => return Err(errno),
            }
            begun = self.send_begin(handle, left, false, self.must_not_wait(handle, left, flags));
        }
    }

    /// Whether a step of this send must not wait for the peer. Only a step of a large buffer would wait, so the stream is asked only then.
    fn must_not_wait(&self, handle: Handle, bufs: &[IoSlice<'_>], flags: i32) -> bool {
        let asks = || bufs.first().is_some_and(|first| first.len() > FIRST_KERNEL_SEND_BYTES);
        let by_itself =
            || self.look_up(handle).is_some_and(|(record, _)| record.lifecycle.nonblocking.load(Relaxed) != 0);
        flags & MSG_DONTWAIT != 0 || asks() && by_itself()
    }

    /// Receives the bytes that are available. Waits for the first byte (with MSG_WAITALL for all) unless the call must not block.
    pub fn recv(&self, handle: Handle, bufs: &mut [IoSliceMut<'_>], flags: i32) -> Result<usize, Errno> {
        let (record, local) = self.look_up(handle).ok_or(EBADF)?;
        let fd = local.fd.load(Relaxed);
        if flags & MSG_WAITALL != 0 && flags & motet_proto::stream::MSG_PEEK == 0 {
            return self.recv_all(handle, bufs, flags & !MSG_WAITALL);
        }
        let blocks = flags & MSG_DONTWAIT == 0 && record.lifecycle.nonblocking.load(Relaxed) == 0;
        let peek = flags & motet_proto::stream::MSG_PEEK != 0;
        loop {
            match self.recv_begin(handle, bufs, blocks, peek, false) {
                rx::Step::Done(n) => return Ok(n),
                rx::Step::Failed(errno) => return Err(errno),
                rx::Step::Poll => {
                    let slept = self.sleep(record, handle, fd, socket::READABLE_EVENTS);
                    self.recv_end(handle, 0);
                    slept?;
                }
                rx::Step::Kernel => {
                    let mut received = socket::receive(fd, bufs, flags | MSG_DONTWAIT);
                    if received == Err(EAGAIN) && blocks && !socket::is_nonblocking(fd) {
                        received = self
                            .sleep(record, handle, fd, socket::READABLE_EVENTS)
                            .and_then(|()| socket::receive(fd, bufs, flags | MSG_DONTWAIT));
                    }
                    let count = if peek { 0 } else { *received.as_ref().unwrap_or(&0) };
                    self.recv_end(handle, count);
                    if received == Ok(0) && !peek {
                        self.note_end_of_file(handle);
                        if record.state() == motet_wire::stream::record::State::Broken {
                            return Err(motet_proto::ECONNRESET);
                        }
                    }
                    if received == Err(EAGAIN) && blocks && !socket::is_nonblocking(fd) {
                        continue;
                    }
                    return received;
                }
            }
        }
    }

    fn recv_all(&self, handle: Handle, bufs: &mut [IoSliceMut<'_>], flags: i32) -> Result<usize, Errno> {
        let mut done = 0;
        for buf in bufs {
            let mut at = 0;
            while at < buf.len() {
                match self.recv(handle, &mut [IoSliceMut::new(&mut buf[at..])], flags) {
                    Ok(0) => return Ok(done),
                    Ok(n) => {
                        at += n;
                        done += n;
                    }
                    Err(_) if done > 0 => return Ok(done),
                    Err(errno) => return Err(errno),
                }
            }
        }
        Ok(done)
    }

    /// Whether a receive would return at once.
    pub fn readable(&self, handle: Handle) -> Result<bool, Errno> {
        let (_, local) = self.look_up(handle).ok_or(EBADF)?;
        Ok(self.rx_ready(handle) || socket::readable(local.fd.load(Relaxed)))
    }

    /// Makes the blocked call on the stream, or the next one that would block, return EINTR.
    pub fn wake(&self, handle: Handle) {
        if let Some((record, local)) = self.look_up(handle) {
            record.lifecycle.woken.store(1, SeqCst);
            local.wake_sleepers();
        }
    }

    /// Waits until one of the streams is readable; `deadline` in ns of CLOCK_MONOTONIC.
    pub fn wait_any(&self, handles: &[Handle], deadline: Option<u64>) -> Result<usize, Errno> {
        let mut wait = Wait::on(self, handles);
        let result = loop {
            let found = match wait.step(self, true) {
                WaitStep::Ready => Ok(handles.iter().position(|&h| self.rx_ready(h))),
                WaitStep::Probe => self.poll_all(handles, Some(0), -1),
                WaitStep::Sleep => {
                    let found = self.sleep_any(handles, deadline);
                    wait.end_sleep(self);
                    found
                }
            };
            match found {
                Ok(Some(at)) => break Ok(at),
                Err(errno) => break Err(errno),
                Ok(None) if self.take_wake_up(handles) => break Err(EINTR),
                Ok(None) if deadline.is_some_and(|d| clock::nanoseconds() >= d) => break Err(ETIMEDOUT),
                Ok(None) => {}
            }
        };
        wait.end_sleep(self);
        result
    }

    /// Whether one of the streams was woken; the wake-up is consumed.
    fn take_wake_up(&self, handles: &[Handle]) -> bool {
        let woken = |&h: &Handle| {
            self.look_up(h)
                .is_some_and(|(r, _)| r.lifecycle.woken.load(SeqCst) != 0 && r.lifecycle.woken.swap(0, SeqCst) != 0)
        };
        handles.iter().any(woken)
    }

    /// Sleeps in the kernel on all streams, where [`Engine::wake`] of any of them finds this thread.
    fn sleep_any(&self, handles: &[Handle], deadline: Option<u64>) -> Result<Option<usize>, Errno> {
        DOORBELL.with(|doorbell| {
            let doorbell = doorbell.as_ref().map_or(-1, |b| b.as_raw_fd());
            // The private states are kept: a stream that is closed meanwhile must forget this doorbell, too.
            let locals: Vec<&Local> = handles.iter().filter_map(|&h| self.look_up(h).map(|(_, local)| local)).collect();
            let sleepers = || locals.iter().map(|local| local.sleepers.lock());
            sleepers().for_each(|mut s| s.push(doorbell));
            let found = if self.take_wake_up(handles) {
                Err(EINTR)
            } else {
                remaining(deadline).and_then(|left| self.poll_all(handles, left, doorbell))
            };
            sleepers().for_each(|mut s| {
                if let Some(at) = s.iter().position(|&b| b == doorbell) {
                    s.swap_remove(at);
                }
            });
            found
        })
    }

    fn poll_all(&self, handles: &[Handle], timeout: Option<u64>, doorbell: i32) -> Result<Option<usize>, Errno> {
        use motet_sys::rustix::event::{PollFd, PollFlags, poll};
        let mut fds = Vec::with_capacity(handles.len());
        for &handle in handles {
            let (_, local) = self.look_up(handle).ok_or(EBADF)?;
            fds.push(motet_sys::private_fds::borrow(local.fd.load(Relaxed)));
        }
        if doorbell >= 0 {
            fds.push(motet_sys::private_fds::borrow(doorbell));
        }
        let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN | PollFlags::RDHUP)).collect();
        let timeout = timeout.map(|ns| motet_sys::rustix::time::Timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as _,
        });
        poll(&mut polled, timeout.as_ref()).map_err(|e| e.raw_os_error())?;
        if doorbell >= 0 && polled.last().is_some_and(|p| !p.revents().is_empty()) {
            socket::drain_eventfd(doorbell);
        }
        Ok(polled.iter().take(handles.len()).position(|p| !p.revents().is_empty()))
    }

    /// Sleeps until the descriptor has the event, the deadline passes or another thread wakes the stream.
    fn sleep(&self, record: &StreamRecord, handle: Handle, fd: i32, events: u16) -> Result<(), Errno> {
        self.before_sleep();
        let deadline = Some(record.lifecycle.deadline_ns.load(Relaxed)).filter(|&d| d != 0);
        let Some((_, local)) = self.look_up(handle) else { return Err(EBADF) };
        DOORBELL.with(|doorbell| {
            let doorbell = doorbell.as_ref().map_or(-1, |b| b.as_raw_fd());
            local.sleepers.lock().push(doorbell);
            let result = loop {
                if self.look_up(handle).is_none() {
                    break Err(EBADF); // closed, and the record may belong to another stream
                }
                if record.lifecycle.woken.swap(0, SeqCst) != 0 {
                    break Err(EINTR);
                }
                let left = match remaining(deadline) {
                    Ok(left) => left,
                    Err(errno) => break Err(errno),
                };
                let polled = if doorbell >= 0 {
                    socket::poll([(fd, events), (doorbell, 1)], left).map(|[a, b]| (a, b))
                } else {
                    socket::poll([(fd, events)], left).map(|[a]| (a, 0))
                };
                match polled {
                    Ok((_, rung)) if rung != 0 => socket::drain_eventfd(doorbell),
                    Ok((0, _)) => {}
                    Ok(_) => break Ok(()),
                    Err(errno) => break Err(errno),
                }
            };
            let mut sleepers = local.sleepers.lock();
            if let Some(at) = sleepers.iter().position(|&b| b == doorbell) {
                sleepers.swap_remove(at);
            }
            if self.look_up(handle).is_none() { Err(EBADF) } else { result }
        })
    }
}

/// The time until a deadline, ns; `None` without one.
fn remaining(deadline: Option<u64>) -> Result<Option<u64>, Errno> {
    match deadline {
        None => Ok(None),
        Some(d) => match d.saturating_sub(clock::nanoseconds()) {
            0 => Err(ETIMEDOUT),
            left => Ok(Some(left)),
        },
    }
}

/// The buffers behind the first `skip` bytes.
fn advance<'a>(bufs: &'a [IoSlice<'a>], mut skip: usize) -> Vec<IoSlice<'a>> {
    let mut rest = Vec::with_capacity(bufs.len());
    for buf in bufs {
        if skip >= buf.len() {
            skip -= buf.len();
        } else {
            rest.push(IoSlice::new(&buf[skip..]));
            skip = 0;
        }
    }
    rest
}
