//! A ring: reads are started by any thread, and completed by its own.

use crate::next::Progress;
use crate::reads::{Completed, Read, Shared, Started};
use crate::reaper::Reaper;
use crate::{BUFFER_BYTES, Unavailable};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle, ThreadId};

/// A ring. Dropping it waits for the reads that are under way.
#[derive(Debug)]
pub struct Ring<T: Read> {
    shared: Arc<Shared<T>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The ring's own thread.
    own: ThreadId,
}

impl<T: Read> Ring<T> {
    /// Makes a ring. Its thread, which has this name, calls `completed` with each read that is completed.
    pub fn start(name: &str, completed: impl FnMut(Completed<T>) + Send + 'static) -> Result<Self, Unavailable> {
        let failed = |error: std::io::Error| Unavailable(format!("io_uring: {error}"));
        let shared = Arc::new(Shared::new().map_err(failed)?);
        let (sender, made) = mpsc::sync_channel(1);
        let of_thread = Arc::clone(&shared);
        let run = move || match Reaper::new(of_thread) {
            Ok(mut reaper) => {
                let _ = sender.send(Ok(()));
                reaper.run(completed);
            }
            Err(error) => {
                let _ = sender.send(Err(error));
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run).map_err(failed)?;
        let own = thread.thread().id();
        let ring = Self { shared, thread: Mutex::new(Some(thread)), own };
        let made = made.recv().unwrap_or_else(|_| Err(Unavailable("io_uring: its thread has ended".to_owned())));
        made.map(|()| ring)
    }

    /// Starts to read `length` bytes at `offset`. Both are multiples of `block`, the unit of direct reads of the file. An error gives `read` back: all buffers are
    /// in use, the ring ends, or these numbers cannot be read.
    pub fn read(&self, read: T, offset: u64, length: usize, block: usize) -> Result<(), T> {
        // The kernel takes the offset -1 for the file's position; so nothing beyond what a file can have gets there.
        let end = offset.checked_add(length as u64).filter(|end| i64::try_from(*end).is_ok());
        let whole = block > 0 && length > 0 && length.is_multiple_of(block) && offset.is_multiple_of(block as u64);
        if end.is_none() || !whole || length > BUFFER_BYTES {
            return Err(read);
        }
        let Some(buffer) = self.shared.pool.take() else { return Err(read) };
        let progress = Progress { done: 0, length, block, attempts: 0 };
        self.shared.add(Started { buffer, offset, progress, read })
    }

    /// Ends the ring: no more reads are started, and those that are under way are waited for. Not from within `completed`.
    pub fn end(&self) {
        self.shared.end();
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread::current().id() != self.own
            && let Some(thread) = thread.take()
        {
            let _ = thread.join();
        }
    }
}

impl<T: Read> Drop for Ring<T> {
    fn drop(&mut self) {
        self.end();
    }
}
