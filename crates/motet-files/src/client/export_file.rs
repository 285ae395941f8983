//! An open file in one export.

use super::Shared;
use super::connection::{Due, Memory};
use super::open_files::OpenState;
use super::transport::Transport;
use super::{attributes, count, done, unexpected};
use crate::Result;
use crate::identity::Assumed;
use crate::protocol::{Attributes, Change, LockKind, LockRange, LockWait, MAX_DATA_BYTES, Operation, Reply, Target};
use rustix::io::Errno;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Bytes of a piece of a long read or write through the server.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces of a read or write that are under way at once.
const PIECES_TOGETHER: usize = 16;

/// A file or directory that is open at one export. Dropping it closes it.
#[derive(Debug)]
pub struct ExportFile {
    client: Arc<Shared>,
    state: Arc<OpenState>,
}

/// A read or a write, one of several at once.
#[derive(Debug)]
pub enum Transfer<'a> {
    /// Reads into memory from an offset on, fewer bytes only at the end of the file.
    Read(u64, &'a mut [u8]),
    /// Writes memory at an offset.
    Write(u64, &'a [u8]),
}

impl Transfer<'_> {
    fn length(&self) -> usize {
        match self {
            Self::Read(_, into) => into.len(),
            Self::Write(_, data) => data.len(),
        }
    }
}

impl ExportFile {
    /// A file that the server has opened.
    pub fn new(client: Arc<Shared>, state: Arc<OpenState>) -> Self {
        Self { client, state }
    }

    /// Its client.
    pub fn client(&self) -> &Shared {
        &self.client
    }

    /// Reads into `buffer` from `offset` on; returns how many bytes, fewer only at the end of the file.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let piece_bytes = self.piece_bytes();
        if buffer.len() <= piece_bytes {
            let (length, into_bytes) = (u32::try_from(buffer.len()).map_err(|_| Errno::INVAL)?, buffer.len());
            let (reply, read) = self.call(|file| Operation::Read { file, offset, length }, &[], buffer)?;
            return if count(reply)? == read as u64 && read <= into_bytes { Ok(read) } else { Err(unexpected()) };
        }
        let mut pieces: Vec<Transfer<'_>> = buffer
            .chunks_mut(piece_bytes)
            .zip((offset..).step_by(piece_bytes))
            .map(|(piece, at)| Transfer::Read(at, piece))
            .collect();
        self.in_order(&mut pieces)
    }

    /// Writes `data` at `offset`, or at the end of a file that is open for appending; returns how many bytes.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        let piece_bytes = self.piece_bytes();
        if data.len() <= piece_bytes {
            let _changing = self.state.changing();
            let (reply, _) = self.call(|file| self.state.write(file, offset), data, &mut [])?;
            return Ok(usize::try_from(count(reply)?).unwrap_or(0).min(data.len()));
        }
        let pieces = data.chunks(piece_bytes).zip((offset..).step_by(piece_bytes));
        let mut pieces: Vec<Transfer<'_>> = pieces.map(|(piece, at)| Transfer::Write(at, piece)).collect();
        self.in_order(&mut pieces)
    }

    /// Writes `data`, 1 MiB at most, at `offset`, also into a file that is open for appending; returns how many bytes.
    pub fn write_back(&self, data: &[u8], offset: u64) -> Result<usize> {
        let _changing = self.state.changing();
        let (reply, _) = self.call(|file| Operation::Write { file, offset }, data, &mut [])?;
        Ok(usize::try_from(count(reply)?).unwrap_or(0).min(data.len()))
    }

    /// The length of the pieces of a long read or write. Through the server, short pieces overlap: it reads the next one from its disk while the last one is
    /// on the way. What is appended stays whole as long as one request can carry it.
    fn piece_bytes(&self) -> usize {
        match self.client.transport {
            Transport::Messages(_) if !self.state.appends() => PIECE_BYTES,
            _ => MAX_DATA_BYTES,
        }
    }

    /// Makes reads or writes of ranges that follow each other; returns how many bytes, up to the first that was not complete.
    fn in_order(&self, pieces: &mut [Transfer<'_>]) -> Result<usize> {
        // Appended pieces are placed by the server in the order in which they arrive.
        let together = if self.state.appends() { 1 } else { PIECES_TOGETHER };
        let mut done = 0;
        for pieces in pieces.chunks_mut(together) {
            let results = self.transfer(pieces);
            for (piece, result) in pieces.iter().zip(results) {
                match result {
                    Ok(count) if count == piece.length() => done += count,
                    Ok(count) => return Ok(done + count),
                    Err(_) if done > 0 => return Ok(done),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(done)
    }

    /// Makes several reads and writes at once, in any order; returns how many bytes of each. Longer ones than 1 MiB are made one after the other.
    pub fn transfer(&self, transfers: &mut [Transfer<'_>]) -> Vec<Result<usize>> {
        if transfers.iter().any(|transfer| transfer.length() > MAX_DATA_BYTES) {
            let alone = |transfer: &mut Transfer<'_>| match transfer {
                Transfer::Read(offset, into) => self.read_at(into, *offset),
                Transfer::Write(offset, data) => self.write_at(data, *offset),
            };
            return transfers.iter_mut().map(alone).collect();
        }
        let writes = transfers.iter().any(|transfer| matches!(transfer, Transfer::Write(..)));
        let _changing = writes.then(|| self.state.changing());
        let operations: Vec<_> = transfers
            .iter()
            .map(|transfer| match transfer {
                Transfer::Read(offset, into) => (*offset, Some(u32::try_from(into.len()).unwrap_or(0))),
                Transfer::Write(offset, _) => (*offset, None),
            })
            .collect();
        let mut memory: Vec<Memory<'_>> = transfers
            .iter_mut()
            .map(|transfer| match transfer {
                Transfer::Read(_, into) => Memory { data: &[], into },
                Transfer::Write(_, data) => Memory { data, into: &mut [] },
            })
            .collect();
        let operation = |at: usize| {
            let file = self.state.number()?;
            Ok(match operations[at] {
                (offset, Some(length)) => Operation::Read { file, offset, length },
                (offset, None) => self.state.write(file, offset),
            })
        };
        let answers = self.client.transport.call_together(operation, &mut memory);
        let finish = |(answer, Memory { data, into }): (Result<(Reply, usize)>, &Memory<'_>)| {
            let (reply, read) = answer?;
            let count = usize::try_from(count(reply)?).unwrap_or(usize::MAX);
            // Nothing is read for a write, and no more is written than was sent.
            let is_read = data.is_empty() && count == read && count <= into.len();
            if is_read || !data.is_empty() && count <= data.len() { Ok(count) } else { Err(unexpected()) }
        };
        answers.into_iter().zip(&memory).map(finish).collect()
    }

    /// What the client knows of it.
    pub fn state(&self) -> &Arc<OpenState> {
        &self.state
    }

    /// Whether it is one of this client.
    pub fn is_of(&self, client: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.client, client)
    }

    /// Waits until what was written is on the server's disk; with `data_only` without times.
    pub fn sync(&self, data_only: bool) -> Result<()> {
        let changes = self.state.changes();
        self.finish(|file| Operation::Fsync { file, data_only })?;
        self.state.synced(changes);
        Ok(())
    }

    /// Its attributes.
    pub fn attributes(&self) -> Result<Attributes> {
        attributes(self.call(|file| Operation::GetAttributes(Target::File(file)), &[], &mut [])?.0)
    }

    /// Changes attributes, and returns the new ones.
    pub fn set_attributes(&self, change: &Change) -> Result<Attributes> {
        let _changing = self.state.changing();
        attributes(self.call(|file| Operation::SetAttributes(Target::File(file), *change), &[], &mut [])?.0)
    }

    /// Lists the directory from `cookie` on (0: from the beginning) into `buffer`; returns how many bytes, 0 at the end. [`crate::protocol::entries`] reads them.
    pub fn readdir(&self, cookie: u64, with_attributes: bool, buffer: &mut [u8]) -> Result<usize> {
        let length = u32::try_from(buffer.len().min(MAX_DATA_BYTES)).unwrap_or(0);
        let operation = |file| Operation::Readdir { file, cookie, length, attributes: with_attributes };
        Ok(self.call(operation, &[], buffer)?.1)
    }

    /// Sets or releases a lock without waiting. EAGAIN: another owner has it.
    pub fn lock(&self, owner: u64, range: LockRange, wait: LockWait) -> Result<()> {
        let locked = self.finish(|file| Operation::Lock { file, owner, range, wait });
        // A call that was ended may have locked it, which is released then with the owner's other locks.
        let was_ended = locked.as_ref().is_err_and(|error| error.kind() == ErrorKind::Interrupted);
        if locked.is_ok() || was_ended && range.kind != LockKind::Unlocked {
            self.state.note_lock(owner, &range);
        }
        locked
    }

    /// A program that waits for a lock gives up.
    pub fn stop_waiting(&self, owner: u64, range: LockRange) -> Result<()> {
        self.finish(|file| Operation::StopWaiting { file, owner, range })
    }

    /// The owners that have locked through this open file last.
    pub fn lock_owners(&self) -> Vec<u64> {
        self.state.lock_owners()
    }

    /// Releases all locks of an owner. Without any the server is not asked. If the call is ended, or does not wait, the server releases them when it is back.
    pub fn release_locks(&self, owner: u64) -> Result<()> {
        if !self.state.has_locks(owner) {
            return Ok(());
        }
        let all = LockRange { kind: LockKind::Unlocked, start: 0, end: u64::MAX, process: 0 };
        let released = self.lock(owner, all, LockWait::No);
        if let Err(error) = &released
            && matches!(error.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::INTR | Errno::IO))
        {
            self.state.note_lock(owner, &all);
            self.client.transport.finish(&self.state, Due::Unlock(owner));
        }
        released
    }

    /// The lock that keeps `owner` from this one, or an unlocked range.
    pub fn test_lock(&self, owner: u64, range: LockRange) -> Result<LockRange> {
        match self.call(|file| Operation::TestLock { file, owner, range }, &[], &mut [])?.0 {
            Reply::Lock(range) => Ok(range),
            _ => Err(unexpected()),
        }
    }

    /// Allocates or frees space, as fallocate(2) does with this mode.
    pub fn fallocate(&self, mode: u32, offset: u64, length: u64) -> Result<()> {
        let _changing = self.state.changing();
        self.finish(|file| Operation::Fallocate { file, mode, offset, length })
    }

    /// The next data, or the next hole, from `offset` on. ENXIO: there is none.
    pub fn seek(&self, offset: u64, data: bool) -> Result<u64> {
        count(self.call(|file| Operation::Seek { file, offset, data }, &[], &mut [])?.0)
    }

    /// Copies to another open file of the same client, on the server; returns how many bytes.
    pub fn copy_to(&self, offset: u64, to: &ExportFile, to_offset: u64, length: u64) -> Result<u64> {
        let _changing = to.state.changing();
        let operation = || {
            let (from, to) = (self.state.number()?, to.state.number()?);
            Ok(Operation::CopyFileRange { from, from_offset: offset, to, to_offset, length })
        };
        count(self.client.transport.call(self.state.identity(), operation, &[], &mut [])?.0)
    }

    /// Makes the file longer, and returns its length before. No other client gets the same bytes.
    pub fn reserve(&self, length: u64) -> Result<u64> {
        let _changing = self.state.changing();
        count(self.call(|file| Operation::Reserve { file, length }, &[], &mut [])?.0)
    }

    /// A descriptor of the file, if the client uses the directory itself.
    pub fn descriptor(&self) -> Option<OwnedFd> {
        match &self.client.transport {
            Transport::Direct(direct) => direct.descriptor(self.state.number().ok()?).ok(),
            Transport::Messages(_) => None,
        }
    }

    /// Gives this thread the identity with which the file was opened, if the client uses the directory itself and that is another one than its own.
    pub fn assume_opener(&self) -> Result<Option<Assumed<'_>>> {
        match &self.client.transport {
            Transport::Direct(direct) => direct.assume_opener(self.state.identity()),
            Transport::Messages(_) => Ok(None),
        }
    }

    /// The file has another path now, for the case that it has to be opened again.
    pub fn renamed(&self, path: &[u8]) {
        self.state.renamed(path);
    }

    fn finish(&self, operation: impl Fn(u32) -> Operation<'static>) -> Result<()> {
        done(self.call(operation, &[], &mut [])?.0)
    }

    fn call(
        &self,
        operation: impl Fn(u32) -> Operation<'static>,
        data: &[u8],
        into: &mut [u8],
    ) -> Result<(Reply, usize)> {
        self.client.transport.call(self.state.identity(), || Ok(operation(self.state.number()?)), data, into)
    }
}

impl Drop for ExportFile {
    fn drop(&mut self) {
        self.state.forget();
        self.client.transport.finish(&self.state, Due::Close);
        self.state.closed();
    }
}
