//! A connection after the handshake.
//!
//! One thread at a time has the *turn*: it waits for requests and takes one, or several short ones that have arrived together. Then it gives the turn to
//! another thread, executes them, and sends the replies. While the data are in memory it keeps the turn for short ones. Replies come in any order, and a client that sends without reading holds at most the threads of its
//! connection, with [`PART_BYTES`] of data each.

use crate::blocks::{Blocks, Transfer, Zeroing};
use crate::negotiation::Agreed;
use crate::receiver::{Arrived, Batch, PART_BYTES, Pending, Receiver};
use crate::replies::Replies;
use crate::stream::Stream;
use crate::wire::{ALLOCATION_CONTEXT_ID, Command, CommandFlags, MAX_PAYLOAD_BYTES, Request, error_number, errors};
use std::io::Result;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

/// Threads of a connection: requests, or groups of short ones, that are executed at the same time.
const MAX_THREADS: usize = 16;
/// Short transfers that take less time than this do not wait for a device.
const QUICK: Duration = Duration::from_micros(300);
/// Extents in one reply.
const MAX_EXTENTS: usize = 256;
/// The states of an extent: it is a hole, and reads as zeroes.
const HOLE: u32 = 0b11;

/// A connection after the handshake.
pub struct Connection<'a> {
    stream: &'a Stream,
    blocks: &'a dyn Blocks,
    agreed: Agreed,
    turn: Mutex<Receiver>,
    /// Held while replies are sent.
    sending: Mutex<()>,
    threads: AtomicUsize,
    /// Threads that wait for the turn.
    waiting: AtomicUsize,
    /// The last short transfers took little time: the data are in memory.
    is_quick: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Connection<'a> {
    /// Serves a client until it ends the connection.
    pub fn serve(stream: &'a Stream, blocks: &'a dyn Blocks, agreed: Agreed) {
        let connection = Self {
            stream,
            blocks,
            agreed,
            turn: Mutex::new(Receiver::new()),
            sending: Mutex::default(),
            threads: AtomicUsize::new(1),
            waiting: AtomicUsize::new(0),
            is_quick: AtomicBool::new(false),
        };
        std::thread::scope(|scope| connection.work(scope));
    }

    fn work<'s>(&'s self, scope: &'s Scope<'s, '_>) {
        let mut batch = Batch::default();
        let mut replies = Replies::new(self.agreed.structured);
        loop {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let mut receiver = locked(&self.turn);
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            let taken = self.take(&mut receiver, &mut batch, &mut replies);
            let Ok(Some(written)) = taken else {
                receiver.end();
                if taken.is_err() {
                    self.stream.shut_down(Shutdown::Both);
                }
                // At the end of all requests the other threads still send their replies.
                return;
            };
            drop(receiver);
            self.call_another(scope);
            if self.execute(&mut batch, &mut replies, written).is_err() {
                locked(&self.turn).end();
                return self.stream.shut_down(Shutdown::Both);
            }
        }
    }

    /// Receives requests that are to be executed without the turn. Those before them that take little time are executed and answered here: to wake another
    /// thread for each costs more. Returns the error number of a long write. `None`: nothing more comes. An error: the connection is lost.
    fn take(&self, receiver: &mut Receiver, batch: &mut Batch, replies: &mut Replies) -> Result<Option<u32>> {
        loop {
            match receiver.receive(self.stream, &self.agreed.limits, batch)? {
                Arrived::End => return Ok(None),
                Arrived::LongWrite => return self.long_write(receiver, batch).map(Some),
                Arrived::Requests if self.is_quick.load(Ordering::Relaxed) && batch.is_short() => {
                    self.execute(batch, replies, 0)?;
                }
                Arrived::Requests => return Ok(Some(0)),
            }
        }
    }

    /// Sees to it that a thread waits for requests.
    fn call_another<'s>(&'s self, scope: &'s Scope<'s, '_>) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            return;
        }
        let more = |threads| (threads < MAX_THREADS).then_some(threads + 1);
        if self.threads.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok() {
            let started = Builder::new().name("nbd-work".to_owned()).spawn_scoped(scope, move || self.work(scope));
            if started.is_err() {
                // Those that exist do it.
                self.threads.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Receives the data of a write in parts, and writes them. Returns the error number of the reply. An error: the connection is lost.
    fn long_write(&self, receiver: &mut Receiver, batch: &mut Batch) -> Result<u32> {
        let Some(Pending { request, command, .. }) = batch.requests.first() else { return Ok(0) };
        let mut error = command.err().unwrap_or(0);
        let mut done = 0;
        while done < request.length as usize {
            let part = &mut batch.data[..PART_BYTES.min(request.length as usize - done)];
            receiver.take(self.stream, part)?;
            if error == 0 {
                error = number(self.blocks.write_at(part, request.offset + done as u64));
            }
            done += part.len();
        }
        Ok(error)
    }

    /// Executes what one thread has taken, and sends the replies. `written`: the error number of a long write. An error: the connection is lost.
    fn execute(&self, batch: &mut Batch, replies: &mut Replies, written: u32) -> Result<()> {
        let is_short = batch.is_short();
        let began = Instant::now();
        let Batch { requests, data, .. } = batch;
        if let [Pending { request, command, data: range }] = &requests[..] {
            let (request, part) = (*request, range.clone());
            match *command {
                Err(error) => self.refuse(&request, replies, error),
                Ok(Command::Read) if request.length as usize > PART_BYTES => {
                    return self.long_read(&request, &mut data[part], replies);
                }
                Ok(Command::Read) => {
                    let read = self.blocks.read_at(&mut data[part.clone()], request.offset);
                    Self::reply_to_read(&request, data, part, read, replies);
                }
                Ok(Command::BlockStatus) => self.status(&request, replies),
                Ok(command) => {
                    let done = match command {
                        Command::Write if request.length as usize > PART_BYTES => written,
                        command => number(self.change(command, &request, &mut data[part])),
                    };
                    let error = if done == 0 { self.persist(&request) } else { done };
                    replies.finish(&request, error);
                }
            }
        } else {
            let results = self.transfer(requests, data);
            let is_durable = |pending: &Pending| pending.request.flags.contains(CommandFlags::FUA);
            let synced = if requests.iter().any(is_durable) { number(self.blocks.sync()) } else { 0 };
            for (pending, result) in requests.iter().zip(results) {
                let Pending { request, command, data: range } = pending;
                match command {
                    Ok(Command::Read) => Self::reply_to_read(request, data, range.clone(), result, replies),
                    _ if is_durable(pending) && result.is_ok() => replies.finish(request, synced),
                    _ => replies.finish(request, number(result)),
                }
            }
        }
        if is_short {
            self.is_quick.store(began.elapsed() < QUICK, Ordering::Relaxed);
        }
        self.send(replies, data)
    }

    /// Makes several short reads and writes.
    fn transfer(&self, requests: &[Pending], mut data: &mut [u8]) -> Vec<Result<()>> {
        let mut transfers = Vec::with_capacity(requests.len());
        for Pending { request, command, data: range } in requests {
            let (part, rest) = data.split_at_mut(range.len());
            data = rest;
            transfers.push(match command {
                Ok(Command::Read) => Transfer::Read(request.offset, part),
                _ => Transfer::Write(request.offset, part),
            });
        }
        self.blocks.transfer(&mut transfers)
    }

    /// Reads more than a thread holds at once.
    fn long_read(&self, request: &Request, part: &mut [u8], replies: &mut Replies) -> Result<()> {
        if request.flags.contains(CommandFlags::DF) {
            replies.fail(request, errors::EOVERFLOW);
            return self.send(replies, &[]);
        }
        // Nothing may come between the parts of a simple reply.
        let whole = (!self.agreed.structured).then(|| locked(&self.sending));
        let (mut at, end) = (request.offset, request.offset + u64::from(request.length));
        while at < end {
            let length = usize::try_from(end - at).map_or(part.len(), |left| left.min(part.len()));
            let part = &mut part[..length];
            if let Err(error) = self.blocks.read_at(part, at) {
                if whole.is_some() && at > request.offset {
                    return Err(error);
                }
                drop(whole);
                replies.fail(request, error_number(&error));
                return self.send(replies, &[]);
            }
            let next = at + length as u64;
            replies.read(request, at, part, 0..length, next == end);
            match whole {
                Some(_) => replies.send(self.stream, part)?,
                None => self.send(replies, part)?,
            }
            at = next;
        }
        Ok(())
    }

    fn reply_to_read(
        request: &Request,
        data: &[u8],
        range: std::ops::Range<usize>,
        read: Result<()>,
        replies: &mut Replies,
    ) {
        match read {
            Ok(()) => replies.read(request, request.offset, data, range, true),
            Err(error) => replies.fail(request, error_number(&error)),
        }
    }

    fn refuse(&self, request: &Request, replies: &mut Replies, error: u32) {
        if request.returns_data() { replies.fail(request, error) } else { replies.finish(request, error) }
    }

    /// Executes a request that returns no data.
    fn change(&self, command: Command, request: &Request, data: &mut [u8]) -> Result<()> {
        let (offset, length) = (request.offset, u64::from(request.length));
        match command {
            Command::Write => self.blocks.write_at(data, offset),
            Command::Flush => self.blocks.sync(),
            Command::Trim => self.blocks.trim(offset, length),
            Command::WriteZeroes => {
                let may_be_hole = !request.flags.contains(CommandFlags::NO_HOLE);
                let fast_only = request.flags.contains(CommandFlags::FAST_ZERO);
                self.blocks.zero(offset, length, Zeroing { may_be_hole, fast_only })
            }
            Command::Cache => {
                // Reading brings the data into the page cache of the server.
                let end = offset + length.min(u64::from(MAX_PAYLOAD_BYTES));
                let mut at = offset;
                while at < end {
                    let part = usize::try_from(end - at).map_or(data.len(), |left| left.min(data.len()));
                    self.blocks.read_at(&mut data[..part], at)?;
                    at += part as u64;
                }
                Ok(())
            }
            Command::Read | Command::BlockStatus => Ok(()),
        }
    }

    /// Waits for the disk, if the client wants that; returns the error number of the reply.
    fn persist(&self, request: &Request) -> u32 {
        if request.flags.contains(CommandFlags::FUA) && request.is_change() { number(self.blocks.sync()) } else { 0 }
    }

    fn status(&self, request: &Request, replies: &mut Replies) {
        let most = if request.flags.contains(CommandFlags::REQ_ONE) { 1 } else { MAX_EXTENTS };
        match self.blocks.status(request.offset, u64::from(request.length), most) {
            Ok(found) => {
                let state = |is_hole| if is_hole { HOLE } else { 0 };
                let extents = found.iter().map(|e| (u32::try_from(e.length).unwrap_or(u32::MAX), state(e.is_hole)));
                let extents: Vec<_> = extents.filter(|(length, _)| *length > 0).collect();
                if extents.is_empty() {
                    replies.fail(request, errors::EIO);
                } else {
                    replies.status(request, ALLOCATION_CONTEXT_ID, &extents);
                }
            }
            Err(error) => replies.fail(request, error_number(&error)),
        }
    }

    fn send(&self, replies: &mut Replies, data: &[u8]) -> Result<()> {
        let _sending = locked(&self.sending);
        replies.send(self.stream, data)
    }
}

fn number(result: Result<()>) -> u32 {
    result.map_or_else(|error| error_number(&error), |()| 0)
}
