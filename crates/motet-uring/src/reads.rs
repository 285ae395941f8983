//! Reads on their way from who starts them through the ring's thread to the handler.

use crate::next::Progress;
use crate::pool::{Buffer, Pool};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a read needs from its caller: the file, which it keeps open until it is completed.
pub trait Read: Send + 'static {
    /// The file, opened with O_DIRECT.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

/// What the ring shares with its thread.
#[derive(Debug)]
pub struct Shared<T> {
    /// The buffers.
    pub pool: Arc<Pool>,
    queue: Mutex<Queue<T>>,
    /// Wakes the thread: a counter of eventfd(2).
    pub wake: OwnedFd,
}

/// Reads that the ring's thread has not taken yet.
#[derive(Debug)]
struct Queue<T> {
    started: VecDeque<Started<T>>,
    /// The thread sleeps, or is about to: who adds a read wakes it.
    asleep: bool,
    /// No more reads are started.
    ending: bool,
}

/// A read that was started.
#[derive(Debug)]
pub struct Started<T> {
    /// Its buffer.
    pub buffer: Buffer,
    /// Where it begins in the file.
    pub offset: u64,
    /// How far it is.
    pub progress: Progress,
    /// What its caller has given.
    pub read: T,
}

/// A completed read. Dropping it gives its buffer back.
#[derive(Debug)]
pub struct Completed<T> {
    /// What its caller has given.
    pub read: T,
    result: Result<(Buffer, usize), i32>,
}

impl<T> Completed<T> {
    /// It was read.
    pub(crate) fn done(Started { buffer, read, .. }: Started<T>, length: usize) -> Self {
        Self { read, result: Ok((buffer, length)) }
    }

    /// It has failed.
    pub(crate) fn failed(read: T, errno: i32) -> Self {
        Self { read, result: Err(errno) }
    }

    /// What was read, fewer bytes than asked for only at the end of the file; or the error number of the system.
    pub fn bytes(&self) -> Result<&[u8], i32> {
        match &self.result {
            // SAFETY: the kernel has completed the read into this buffer, and no other read gets the buffer before it is dropped.
            Ok((buffer, length)) => Ok(unsafe { buffer.bytes(*length) }),
            Err(errno) => Err(*errno),
        }
    }
}

impl<T> Shared<T> {
    /// A pool, and no reads.
    pub fn new() -> std::io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC)?;
        let queue = Mutex::new(Queue { started: VecDeque::new(), asleep: false, ending: false });
        Ok(Self { pool: Pool::new(), queue, wake })
    }

    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // A counter at its limit, the only error, is not 0 either.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Adds a read for the thread. An error gives back what its caller has given: the ring ends.
    pub fn add(&self, started: Started<T>) -> Result<(), T> {
        let mut queue = self.queue();
        if queue.ending {
            return Err(started.read);
        }
        queue.started.push_back(started);
        let asleep = std::mem::take(&mut queue.asleep);
        drop(queue);
        if asleep {
            self.wake();
        }
        Ok(())
    }

    /// Takes what was started. `busy`: the thread has other things to do. Returns whether it shall sleep, for there is nothing to do, and whether the ring ends.
    pub fn take(&self, busy: bool, into: &mut Vec<Started<T>>) -> (bool, bool) {
        let mut queue = self.queue();
        into.extend(queue.started.drain(..));
        queue.asleep = !busy && into.is_empty() && !queue.ending;
        (queue.asleep, queue.ending)
    }

    /// No more reads are started; wakes the thread.
    pub fn end(&self) {
        self.queue().ending = true;
        self.wake();
    }

    /// No more reads are started. Returns those that were not taken.
    pub fn break_off(&self) -> VecDeque<Started<T>> {
        let mut queue = self.queue();
        queue.ending = true;
        std::mem::take(&mut queue.started)
    }
}
