//! Requests of a connection, as they arrive. Short ones that have arrived together are taken together.

use crate::stream::Stream;
use crate::wire::{Command, CommandFlags, ExportLimits, REQUEST_HEADER_BYTES, Request};
use std::io::{Error, ErrorKind, IoSliceMut, Read, Result};
use std::ops::Range;

/// Bytes of a connection's receive buffer.
const BUFFER_BYTES: usize = 64 << 10;
/// Longest transfer that is made together with others, bytes.
const SHORT_BYTES: usize = 32 << 10;
/// Transfers that are made together: how many, and bytes of them all.
const MAX_TOGETHER: usize = 32;
const TOGETHER_BYTES: usize = 256 << 10;
/// Longest data that a thread holds at once, bytes. What is longer is done in parts.
pub const PART_BYTES: usize = 1 << 20;

/// A request, checked.
#[derive(Debug)]
pub struct Pending {
    /// As it was received.
    pub request: Request,
    /// What is to be done, or the error number of the reply.
    pub command: std::result::Result<Command, u32>,
    /// Where its data are, or will be, in the batch.
    pub data: Range<usize>,
}

/// Requests that one thread executes: one of any kind, or several short reads and writes.
#[derive(Debug, Default)]
pub struct Batch {
    /// The requests, in their order.
    pub requests: Vec<Pending>,
    /// Data of all of them.
    pub data: Vec<u8>,
    used: usize,
}

impl Batch {
    /// It has short reads and writes only, none of which waits for the disk.
    pub fn is_short(&self) -> bool {
        self.requests.iter().all(|pending| {
            pending.data.len() <= SHORT_BYTES
                && matches!(pending.command, Ok(Command::Read | Command::Write))
                && !pending.request.flags.contains(CommandFlags::FUA)
        })
    }

    fn clear(&mut self) {
        self.requests.clear();
        self.used = 0;
    }

    /// Takes a request in, with room for its data or a part of them.
    fn push(&mut self, request: Request, limits: &ExportLimits) -> &mut [u8] {
        let command = request.check(limits);
        let room = match command {
            Ok(Command::Read | Command::Write | Command::Cache) => request.length as usize,
            _ => request.payload().unwrap_or(0),
        };
        let data = self.used..self.used + room.min(PART_BYTES);
        self.used = data.end;
        if self.data.len() < self.used {
            self.data.resize(self.used.next_power_of_two(), 0);
        }
        self.requests.push(Pending { request, command, data: data.clone() });
        self.data.get_mut(data).unwrap_or(&mut [])
    }

    /// Whether this request, which comes next, is executed with those before.
    fn has_room_for(&self, request: &Request, limits: &ExportLimits) -> bool {
        self.requests.len() < MAX_TOGETHER
            && self.used + request.length as usize <= TOGETHER_BYTES
            && is_short(request, limits)
    }
}

fn is_short(request: &Request, limits: &ExportLimits) -> bool {
    request.length as usize <= SHORT_BYTES && matches!(request.check(limits), Ok(Command::Read | Command::Write))
}

/// What has arrived.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrived {
    /// Requests, with their data.
    Requests,
    /// A write whose data have to be received in parts.
    LongWrite,
    /// Nothing more comes.
    End,
}

/// The receiving end of a connection. The thread that has it receives.
#[derive(Debug)]
pub struct Receiver {
    buffer: Box<[u8]>,
    /// What has been received and not taken.
    held: Range<usize>,
    ended: bool,
}

impl Receiver {
    /// For a connection whose handshake has just ended.
    pub fn new() -> Self {
        Self { buffer: vec![0; BUFFER_BYTES].into_boxed_slice(), held: 0..0, ended: false }
    }

    /// Waits for requests.
    pub fn receive(&mut self, stream: &Stream, limits: &ExportLimits, batch: &mut Batch) -> Result<Arrived> {
        batch.clear();
        if self.ended {
            return Ok(Arrived::End);
        }
        // Whatever fails, nothing of this connection can be understood afterwards.
        self.ended = true;
        let Some(first) = self.wait_for_header(stream)? else { return Ok(Arrived::End) };
        if first.is_disconnect() {
            return Ok(Arrived::End);
        }
        let payload = first.payload().ok_or_else(broken)?;
        let room = batch.push(first, limits);
        if payload > PART_BYTES {
            self.ended = false;
            return Ok(Arrived::LongWrite);
        }
        if payload > 0 {
            self.take(stream, room)?;
        }
        if is_short(&first, limits) {
            while let Some(next) = self.next_that_is_whole().filter(|next| batch.has_room_for(next, limits)) {
                self.held.start += REQUEST_HEADER_BYTES;
                let payload = next.payload().unwrap_or(0);
                let room = batch.push(next, limits);
                if payload > 0 {
                    self.take(stream, room)?;
                }
            }
        }
        self.ended = false;
        Ok(Arrived::Requests)
    }

    /// Nothing more is received.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Fills `into` with data behind a header.
    pub fn take(&mut self, mut stream: &Stream, into: &mut [u8]) -> Result<()> {
        let held = self.held.len().min(into.len());
        into[..held].copy_from_slice(&self.buffer[self.held.start..self.held.start + held]);
        self.held.start += held;
        let mut rest = &mut into[held..];
        while !rest.is_empty() {
            // The buffer is empty here: what follows the data is received with them.
            let received = stream.read_vectored(&mut [IoSliceMut::new(rest), IoSliceMut::new(&mut self.buffer)]);
            match received {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(length) => {
                    self.held = 0..length.saturating_sub(rest.len());
                    let length = length.min(rest.len());
                    rest = &mut rest[length..];
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The next header. `None`: the client has closed the connection between two requests.
    fn wait_for_header(&mut self, mut stream: &Stream) -> Result<Option<Request>> {
        while self.held.len() < REQUEST_HEADER_BYTES {
            self.buffer.copy_within(self.held.clone(), 0);
            self.held = 0..self.held.len();
            match stream.read(&mut self.buffer[self.held.end..]) {
                Ok(0) if self.held.is_empty() => return Ok(None),
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.held.end += length,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let request = self.header().ok_or_else(broken)?;
        self.held.start += REQUEST_HEADER_BYTES;
        Ok(Some(request))
    }

    fn header(&self) -> Option<Request> {
        self.buffer[self.held.clone()].first_chunk().and_then(Request::parse)
    }

    /// The next request, if it has been received with its data. It stays where it is.
    fn next_that_is_whole(&self) -> Option<Request> {
        let request = self.header().filter(|request| !request.is_disconnect())?;
        (self.held.len() - REQUEST_HEADER_BYTES >= request.payload()?).then_some(request)
    }
}

fn broken() -> Error {
    Error::new(ErrorKind::InvalidData, "the client has broken the protocol")
}
