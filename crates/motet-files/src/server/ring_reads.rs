//! Reads past the cache by io_uring: whole blocks of files that are open with O_DIRECT.
//!
//! The thread that receives the request starts the read and receives the next request; the ring's thread sends the answer, from the buffer that the device has written. What
//! that thread would have to wait for, a read that failed, it leaves to the threads of the server. There is no ring before the first read that it can make.

use super::patience::Answering;
use super::session::Session;
use super::{Buffers, Shared, Turn};
use crate::Result;
use crate::protocol::{Answer, Operation, Reply, Request, answer_tag, append};
use crate::storage::{Body, Counted, OpenFile, PastCache};
use motet::node::{Error, Mode, Outgoing};
use motet_uring::{Completed, Ring};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// What reads the storage of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Storage {
    /// io_uring where it is permitted, for reads that are not alone; threads elsewhere. A read that is alone costs less by a thread ([decision 52]).
    ///
    /// [decision 52]: ../../../docs/adr/0052-direct-io.md
    #[default]
    Auto,
    /// Threads alone.
    Threads,
    /// io_uring, also for reads that are alone. A server that may not use it does not start.
    IoUring,
}

/// Reads of a server by io_uring.
#[derive(Debug, Default)]
pub struct RingReads {
    storage: Storage,
    /// The ring, since it was first needed; or why there is none.
    ring: OnceLock<std::result::Result<Ring<RingRead>, String>>,
    /// What the kernel said when it was asked before there was a ring.
    probed: OnceLock<std::result::Result<(), String>>,
    /// Reads that have failed, and are made again by another thread for the error that this gives.
    failed: Mutex<VecDeque<RingRead>>,
}

/// A read by the ring.
#[derive(Debug)]
pub struct RingRead {
    file: Arc<OpenFile>,
    session: Arc<Session>,
    request: Request<'static>,
    _counted: Counted,
}

impl motet_uring::Read for RingRead {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.past_cache().map_or(self.file.descriptor(), PastCache::descriptor)
    }
}

impl RingReads {
    /// Reads as `storage` says. An error: io_uring is demanded, and not permitted.
    pub fn new(storage: Storage) -> Result<Self> {
        let reads = Self { storage, ..Self::default() };
        if storage == Storage::IoUring {
            reads.probe().map_err(std::io::Error::other)?;
        }
        Ok(reads)
    }

    /// Whether this process may use io_uring; the kernel is asked once.
    fn probe(&self) -> std::result::Result<(), String> {
        if self.storage == Storage::Threads {
            return Err("--storage threads".to_owned());
        }
        self.probed.get_or_init(|| motet_uring::probe().map_err(|why| why.to_string())).clone()
    }

    /// What makes direct reads, and why, in words.
    pub fn describe(&self) -> String {
        let made = self.ring.get().map(|made| made.as_ref().map(drop).map_err(String::clone));
        match made {
            Some(Ok(())) => "io_uring and threads".to_owned(),
            None if self.probe().is_ok() => "threads (io_uring when several direct reads are under way)".to_owned(),
            none => format!("threads ({})", none.unwrap_or_else(|| self.probe()).err().unwrap_or_default()),
        }
    }

    /// Waits for the reads that are under way, and makes no more.
    pub fn end(&self) {
        // One that was not needed is not made any more.
        if let Ok(ring) = self.ring.get_or_init(|| Err("the server ends".to_owned())) {
            ring.end();
        }
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Shared {
    /// Starts a read by the ring, if this is one for it. False: a thread is to execute the request.
    pub(super) fn starts_ring_read(self: &Arc<Self>, session: &Arc<Session>, request: &Request<'_>) -> bool {
        let Operation::Read { file: number, offset, length } = request.operation else { return false };
        if self.ring_reads.storage == Storage::Threads {
            return false;
        }
        let Ok(file) = session.files().get(number) else { return false };
        let Some(past_cache) = file.past_cache() else { return false };
        let (length, block) = (length as usize, past_cache.block());
        if length > motet_uring::BUFFER_BYTES || !past_cache.is_whole(offset, length) {
            return false;
        }
        if self.ring_reads.storage == Storage::Auto && !past_cache.under_way().any() {
            return false;
        }
        let Ok(ring) = self.ring_reads.ring.get_or_init(|| self.start_ring()) else { return false };
        let operation = Operation::Read { file: number, offset, length: length as u32 };
        let Request { slot, sequence, data, .. } = *request;
        let request = Request { slot, sequence, data, identity: None, operation };
        let counted = past_cache.under_way().begin();
        let read = RingRead { file: Arc::clone(&file), session: Arc::clone(session), request, _counted: counted };
        ring.read(read, offset, length, block).is_ok()
    }

    fn start_ring(self: &Arc<Self>) -> std::result::Result<Ring<RingRead>, String> {
        self.ring_reads.probe()?;
        // The server ends the ring before it goes, so there is always one while the ring has reads.
        let server: Weak<Self> = Arc::downgrade(self);
        let mut headers = Vec::new();
        let completed = move |completed| {
            if let Some(server) = server.upgrade() {
                server.completed(completed, &mut headers);
            }
        };
        Ring::start("files-ring", completed).map_err(|why| why.to_string())
    }

    /// The ring has completed a read. Called in its thread, which waits for no client.
    fn completed(&self, completed: Completed<RingRead>, headers: &mut Vec<u8>) {
        let Ok(bytes) = completed.bytes() else { return self.keep_failed(completed.read) };
        let RingRead { session, request, .. } = &completed.read;
        let (result, body) = read_result(bytes.len());
        self.count(&request.operation, &Ok((result.clone(), body)));
        headers.clear();
        append(&Answer { sequence: request.sequence, result: Ok(result) }, headers);
        session.answered(request, None);
        // The client may have come back on another channel meanwhile; if it is away, it asks again.
        let Some(channel) = session.channel() else { return };
        let message = Outgoing { channel, tag: answer_tag(request.slot), headers, mode: Mode::Automatic };
        match self.node.try_inject(&message, &[bytes]) {
            Ok(()) => {}
            Err(Error::WouldBlock | Error::TooLong) => {
                let answering = Answering { slot: request.slot, headers: headers.clone(), body: bytes.to_vec() };
                self.answer_later(session, channel, answering);
                if self.resumable.is_used() {
                    // The thread that waits for requests goes on with them.
                    let _ = self.node.signal_cq(self.cq);
                }
            }
            Err(_) => self.refuse(channel),
        }
    }

    fn keep_failed(&self, failed: RingRead) {
        self.ring_reads.failed.lock().unwrap_or_else(PoisonError::into_inner).push_back(failed);
        let _ = self.node.signal_cq(self.cq);
    }

    /// Makes a read again that has failed by the ring. Called by the thread that has the turn, whose wait was interrupted.
    pub(super) fn repeat_failed_read(&self, buffers: &mut Buffers, turn: &mut Turn<'_>) {
        let mut queue = self.ring_reads.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(RingRead { file, session, request, .. }) = queue.pop_front() else { return };
        if !queue.is_empty() {
            // For the thread that gets the turn.
            let _ = self.node.signal_cq(self.cq);
        }
        drop(queue);
        turn.give(&session);
        let Operation::Read { offset, length, .. } = request.operation else { return };
        let buffer = self.buffer_for(&request.operation, &mut buffers.read);
        let into = buffer.get_mut(..length as usize).ok_or_else(|| Errno::INVAL.into());
        let result = into.and_then(|into| file.read(into, offset)).map(read_result);
        self.count(&request.operation, &result);
        self.answer(&session, &request, result, buffers);
    }
}

/// The result of a read of so many bytes.
fn read_result(read: usize) -> (Reply, Body) {
    (Reply::Count(read as u64), Body::Buffered(read))
}
