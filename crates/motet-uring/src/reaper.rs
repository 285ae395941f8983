//! The thread of a ring: it submits the reads that others have started, and hands out what is completed.

use crate::BUFFERS;
use crate::available::{Unavailable, check_operations};
use crate::next::Next;
use crate::pool::Pool;
use crate::reads::{Completed, Read, Shared, Started};
use io_uring::{IoUring, opcode, squeue, types};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Entries of the submission queue: every buffer, and the read that wakes the thread.
const ENTRIES: u32 = 128;
const _: () = assert!(BUFFERS < ENTRIES as usize);
/// Completions that are handed out before new reads are submitted.
const BATCH: usize = 8;
/// The user data of the read that wakes the thread. That of other reads are the numbers of their buffers.
const WAKE: u64 = u64::MAX;

/// The ring, in its thread.
pub struct Reaper<T> {
    ring: IoUring,
    shared: Arc<Shared<T>>,
    /// What was taken from the others and not submitted yet.
    taken: Vec<Started<T>>,
    /// What the kernel reads, by the number of the buffer.
    under_way: Vec<Option<Started<T>>>,
    count: usize,
    /// Whether the read that wakes the thread is under way.
    watches: bool,
    /// Present while the kernel may write into the buffers.
    in_use: Option<Arc<Pool>>,
}

impl<T> Drop for Reaper<T> {
    fn drop(&mut self) {
        if let Some(pool) = self.in_use.take() {
            // The kernel may write into it at any time, so nothing else may ever be there. Neither may the buffers be used again.
            std::mem::forget(pool);
            self.under_way.drain(..).for_each(std::mem::forget);
        }
    }
}

impl<T: Read> Reaper<T> {
    /// Makes the ring, in the thread that uses it.
    pub fn new(shared: Arc<Shared<T>>) -> Result<Self, Unavailable> {
        // With these the kernel finishes requests when this thread waits for them, not before (Linux 6.1).
        let deferred = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(ENTRIES);
        let ring = match deferred {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::new(ENTRIES),
            made => made,
        };
        let ring = ring.map_err(|error| Unavailable::setup(&error))?;
        check_operations(&ring)?;
        // SAFETY: the memory stays where it is until the ring has no request any more; see `in_use`.
        let registered = unsafe { ring.submitter().register_buffers(&shared.pool.to_register()) };
        registered.map_err(|error| Unavailable::registration(&error))?;
        let under_way = (0..BUFFERS).map(|_| None).collect();
        Ok(Self { ring, shared, taken: Vec::new(), under_way, count: 0, watches: false, in_use: None })
    }

    /// Serves reads until the ring ends and none is under way.
    pub fn run(&mut self, mut completed: impl FnMut(Completed<T>)) {
        // A handler that panics concerns no other read.
        let mut completed = |read| drop(catch_unwind(AssertUnwindSafe(|| completed(read))));
        let mut busy = false;
        loop {
            let (asleep, ending) = self.shared.take(busy, &mut self.taken);
            if ending && self.count == 0 && self.taken.is_empty() && !self.watches {
                self.in_use = None;
                return;
            }
            self.submit(ending);
            // An ending ring has written to the descriptor that wakes, so there is always something to wait for.
            if !self.enter(usize::from(!busy && (asleep || ending))) {
                return self.give_up(&mut completed);
            }
            busy = self.reap(&mut completed);
        }
    }

    /// Puts what was taken into the submission queue.
    fn submit(&mut self, ending: bool) {
        if !self.watches && !ending {
            let (memory, length) = self.shared.pool.wake_memory();
            let wake = types::Fd(self.shared.wake.as_raw_fd());
            let entry = opcode::Read::new(wake, memory, length).build().user_data(WAKE);
            // SAFETY: the descriptor is open and the memory there as long as the read may be under way; see `in_use`.
            self.watches = unsafe { self.push(&entry) };
        }
        while let Some(started) = self.taken.pop() {
            let (file, offset, progress) = (started.read.descriptor(), started.offset, started.progress);
            let rest = u32::try_from(progress.length - progress.done).unwrap_or(0);
            let (memory, index) = (started.buffer.address(progress.done), started.buffer.index());
            let entry = opcode::ReadFixed::new(types::Fd(file.as_raw_fd()), memory, rest, index)
                .offset(offset + progress.done as u64)
                .build()
                .user_data(u64::from(index));
            // SAFETY: the buffer is this read's alone until it is completed, for `under_way` has both; the file is open until then, too.
            if !unsafe { self.push(&entry) } {
                self.taken.push(started);
                return;
            }
            self.under_way[usize::from(index)] = Some(started);
            self.count += 1;
        }
    }

    /// Puts a request into the submission queue. False: it is full.
    ///
    /// # Safety
    /// What the request names lives until it is completed.
    unsafe fn push(&mut self, entry: &squeue::Entry) -> bool {
        self.in_use.get_or_insert_with(|| Arc::clone(&self.shared.pool));
        // SAFETY: the caller's promise.
        unsafe { self.ring.submission().push(entry) }.is_ok()
    }

    /// Submits, and waits for completions. False: the ring is of no use any more.
    fn enter(&self, completions: usize) -> bool {
        match self.ring.submit_and_wait(completions) {
            Ok(_) => true,
            // Interrupted; or the kernel is short of memory, or wants the completions to be taken first.
            Err(error) if error.kind() == ErrorKind::Interrupted => true,
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM)) => {
                std::thread::yield_now();
                true
            }
            Err(_) => false,
        }
    }

    /// Takes some completions. Returns whether there may be more: reads that were started meanwhile must not wait for all their handlers.
    fn reap(&mut self, completed: &mut impl FnMut(Completed<T>)) -> bool {
        for _ in 0..BATCH {
            let Some(entry) = self.ring.completion().next() else { return false };
            let (index, result) = (entry.user_data(), entry.result());
            if index == WAKE {
                self.watches = false;
                continue;
            }
            let place = usize::try_from(index).ok().and_then(|index| self.under_way.get_mut(index));
            let Some(mut started) = place.and_then(Option::take) else { continue };
            self.count -= 1;
            match started.progress.after(result) {
                Next::Done(length) => completed(Completed::done(started, length)),
                Next::Continue(progress) => {
                    started.progress = progress;
                    self.taken.push(started);
                }
                Next::Failed(errno) => completed(Completed::failed(started.read, errno)),
            }
        }
        true
    }

    /// The kernel does not take requests any more: reads that it may still execute fail, and their buffers are not used again.
    fn give_up(&mut self, completed: &mut impl FnMut(Completed<T>)) {
        let waiting = self.shared.break_off();
        for Started { read, .. } in self.taken.drain(..).chain(waiting) {
            completed(Completed::failed(read, libc::EIO));
        }
        for Started { buffer, read, .. } in self.under_way.drain(..).flatten() {
            std::mem::forget(buffer);
            completed(Completed::failed(read, libc::EIO));
        }
    }
}
