//! Reception: first packets, the data that come apart, and what is done with both.
//!
//! Everything here is the word of a peer. A first packet is received into a buffer of fixed length. Data that come apart are received only for a handler
//! that is there, into memory for which there is leave; until then they stay in the sender's memory. A peer that announces more of them than a
//! channel may have loses its channel.

use crate::buffer::Buffer;
use crate::counters::count;
use crate::endpoint::{Entry, Job, Registered, Table};
use crate::error::Error;
use crate::format::Format;
use crate::memory::{Lease, Memory};
use crate::options::{MAX_ONE_PACKET, Reception};
use crate::request::Data;
use crate::sender::Sender;
use crate::wire::{ENDPOINT_BITS, Head, MAX_HEAD, ReplyStatus};
use crate::workers::Workers;
use motet::node::{
    Channel, Completion, CompletionOptions, CqId, Error as NodeError, OperationId, OperationMemory, RecvFrom, Status,
    deadline_in,
};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a buffer for first packets.
pub const FIRST: usize = MAX_ONE_PACKET + MAX_HEAD;
/// First packets that are received ahead.
const AHEAD: usize = 8;
/// Requests of a channel whose data are under way. A sender has at most 64 ([`crate::routes::Turns`]), and some whose deadline has passed.
const MAX_APART: usize = 256;
/// How often memory is looked for while data wait for it, ns.
const MEMORY_POLL_NS: u64 = 1_000_000;
/// What a completion is of: the first packet of one of [`AHEAD`] receives, a late reply, or data that no handler gets. Larger numbers: the data of a
/// request.
const LATE: u64 = AHEAD as u64;
const UNWANTED: u64 = LATE + 1;
const FIRST_REQUEST: u64 = LATE + 2;

/// What all receptions of a process share.
pub struct Shared {
    pub sender: Arc<Sender>,
    pub table: Arc<Table>,
    pub workers: Arc<Workers>,
    pub memory: Arc<Memory>,
    pub ended: AtomicBool,
}

/// The reception of one channel, or of all.
pub struct Receiver {
    shared: Arc<Shared>,
    /// Where first packets are received; `None`: nowhere.
    from: Option<RecvFrom>,
    pub cq: CqId,
    /// The operations of the receives of first packets.
    posted: [AtomicU32; AHEAD],
    apart: Mutex<Apart>,
    /// The channel of the last request: it is known.
    last: Mutex<Option<Channel>>,
    /// Whether data wait for memory.
    waits: AtomicBool,
}

/// Requests whose data come apart.
#[derive(Default)]
struct Apart {
    /// Their data are being received.
    arriving: HashMap<u64, Announced>,
    /// They wait for memory.
    waiting: VecDeque<Announced>,
    /// How many there are of each channel.
    by_channel: HashMap<Channel, usize>,
    last: u64,
}

/// A request whose data come apart.
struct Announced {
    endpoint: Arc<Registered>,
    entry: Arc<Entry>,
    format: Format,
    channel: Channel,
    reply_to: Option<crate::Startpoint>,
    length: usize,
    tag: u64,
    lease: Option<Lease>,
}

impl Receiver {
    /// Receives from now on; the caller then calls [`Receiver::step`].
    pub fn start(shared: &Arc<Shared>, from: Option<RecvFrom>) -> Result<Self, Error> {
        let cq = shared.sender.node.add_cq()?;
        let receiver = Self {
            shared: shared.clone(),
            from,
            cq,
            posted: Default::default(),
            apart: Mutex::default(),
            last: Mutex::default(),
            waits: AtomicBool::new(false),
        };
        for at in 0..AHEAD {
            receiver.post_first(at as u64, shared.memory.first(FIRST))?;
        }
        Ok(receiver)
    }

    /// Waits for something to arrive, and handles it. False: nothing has, until CLOCK_MONOTONIC passes `deadline`, or the end has come.
    #[inline]
    pub fn step(&self, deadline: Option<u64>) -> Result<bool, Error> {
        let mut deadline = deadline;
        if self.waits.load(Ordering::Relaxed) {
            self.receive_waiting();
            let soon = deadline_in(MEMORY_POLL_NS);
            deadline = Some(deadline.map_or(soon, |deadline| deadline.min(soon)));
        }
        match self.shared.sender.node.wait_cq(self.cq, deadline) {
            Ok(completion) => self.completed(completion).map(|()| true),
            Err(NodeError::TimedOut | NodeError::Interrupted) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Handles one of those that have arrived, without waiting and without progress. False: there is none.
    #[inline]
    pub fn next(&self) -> Result<bool, Error> {
        match self.shared.sender.node.test_cq(self.cq)? {
            Some(completion) => self.completed(completion).map(|()| true),
            None => Ok(false),
        }
    }

    /// Makes progress once, and handles all that has arrived.
    pub fn serve(&self) -> Result<usize, Error> {
        if self.waits.load(Ordering::Relaxed) {
            self.receive_waiting();
        }
        self.shared.sender.node.progress()?;
        let mut came = 0;
        while self.next()? {
            came += 1;
        }
        Ok(came)
    }

    /// Receives until the end, or until the channel is gone.
    pub fn run(&self) {
        while !self.shared.ended.load(Ordering::Relaxed) {
            if self.step(None).is_err() {
                return;
            }
        }
    }

    #[inline]
    fn completed(&self, completion: Completion) -> Result<(), Error> {
        match completion.user_data {
            ..LATE => self.first_packet(completion),
            LATE => {
                count(&self.shared.sender.counters.late_replies);
                self.drop_late(&completion);
                Ok(())
            }
            UNWANTED => Ok(()),
            number => {
                self.data(number, completion);
                Ok(())
            }
        }
    }

    #[inline]
    fn post_first(&self, at: u64, memory: Vec<u8>) -> Result<(), Error> {
        let Some(from) = self.from else { return Ok(()) };
        let options = CompletionOptions { cq: Some(self.cq), user_data: at, errors_only: false };
        let node = &self.shared.sender.node;
        let OperationId(posted) = node.post(from, 0, ENDPOINT_BITS, OperationMemory::Owned(memory), options)?;
        self.posted[at as usize].store(posted, Ordering::Relaxed);
        Ok(())
    }

    /// Ends all receives. No thread is in [`Receiver::step`].
    pub fn end(&self) {
        let node = &self.shared.sender.node;
        for posted in self.posted.iter().filter(|_| self.from.is_some()) {
            let _ = node.cancel(OperationId(posted.load(Ordering::Relaxed)));
        }
        while let Ok(Some(_)) = node.test_cq(self.cq) {}
        let _ = node.remove_cq(self.cq); // data or late replies may be under way: then it stays until the node closes
    }

    /// Handles a first packet, and receives the next one in its place.
    #[inline]
    fn first_packet(&self, completion: Completion) -> Result<(), Error> {
        let Completion { status, length, tag, channel, memory, user_data: at, .. } = completion;
        let mut memory =
            memory.filter(|memory| memory.len() == FIRST).unwrap_or_else(|| self.shared.memory.first(FIRST));
        match (status, channel) {
            (Status::Done, Some(channel)) => {
                let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
                if *last != Some(channel) {
                    *last = Some(channel);
                    self.shared.sender.routes.learn(&self.shared.sender.node, channel);
                }
                drop(last);
                match self.handle(memory, length as usize, tag, channel) {
                    Some(back) => memory = back,
                    None => memory = self.shared.memory.first(FIRST),
                }
            }
            (Status::Truncated, _) => count(&self.shared.sender.counters.malformed),
            _ if self.shared.ended.load(Ordering::Relaxed) => return Err(Error::PeerGone),
            _ if matches!(self.from, Some(RecvFrom::Channel(_))) => return Err(Error::PeerGone),
            _ => {} // one of many peers
        }
        self.post_first(at, memory)
    }

    /// Handles a request. Returns the buffer, if it is free.
    #[inline]
    fn handle(&self, memory: Vec<u8>, length: usize, tag: u64, channel: Channel) -> Option<Vec<u8>> {
        let Shared { sender, table, .. } = &*self.shared;
        let counters = &sender.counters;
        let Ok((head, data)) = Head::parse(&memory[..length]) else {
            count(&counters.malformed);
            return Some(memory);
        };
        let reply_to = match head.reply_to.map(|bytes| sender.reply_to(bytes)) {
            None => None,
            Some(Some(start)) => Some(start),
            Some(None) => {
                count(&counters.malformed);
                self.refuse(&head, channel, None, ReplyStatus::NotAnswered);
                return Some(memory);
            }
        };
        let Some(endpoint) = table.find(tag) else {
            count(&counters.no_endpoint);
            self.refuse(&head, channel, reply_to, ReplyStatus::NoEndpoint);
            return Some(memory);
        };
        let Some(entry) = endpoint.find(head.handler).filter(|_| !head.is_reply).cloned() else {
            count(&counters.no_handler);
            self.refuse(&head, channel, reply_to, ReplyStatus::NoHandler);
            return Some(memory);
        };
        if head.format != Format::HERE {
            count(&counters.foreign);
        }
        let format = head.format;
        if let Some((bytes, tag)) = head.apart {
            match usize::try_from(bytes).ok().filter(|bytes| *bytes <= sender.options.max_request) {
                Some(length) => {
                    self.announce(Announced { endpoint, entry, format, channel, reply_to, length, tag, lease: None });
                }
                None => {
                    count(&counters.too_long);
                    self.refuse(&head, channel, reply_to, ReplyStatus::TooLong);
                }
            }
            return Some(memory);
        }
        let range = length - data.len()..length;
        let data = Data { memory, range, format, is_first: true, lease: None };
        self.dispatch(Job { endpoint, entry, data, channel, reply_to })
    }

    /// Runs a handler, or gives it to a thread. Returns a buffer for first packets, if there is one.
    #[inline]
    fn dispatch(&self, job: Job) -> Option<Vec<u8>> {
        let Shared { sender, workers, memory, .. } = &*self.shared;
        let job = if job.entry.threaded && sender.options.reception != Reception::Caller {
            workers.submit(job, (sender, memory))?
        } else {
            job
        };
        let data = job.run(sender);
        if data.is_first {
            return Some(data.memory);
        }
        memory.give_back(data.memory, false);
        None
    }

    /// Drops a request: its data, too, so that its sender does not wait; and says so to who has called.
    #[cold]
    fn refuse(&self, head: &Head<'_>, channel: Channel, reply_to: Option<crate::Startpoint>, status: ReplyStatus) {
        if let Some((_, tag)) = head.apart {
            self.receive_unwanted(channel, tag);
        }
        if let Some(to) = reply_to {
            let _ = self.shared.sender.reply(&to, status, &Buffer::new()); // who called may be gone
        }
    }

    /// Receives data into no memory: their send succeeds.
    #[cold]
    pub fn receive_unwanted(&self, channel: Channel, tag: u64) {
        let options = CompletionOptions { cq: Some(self.cq), user_data: UNWANTED, errors_only: false };
        let memory = OperationMemory::Owned(Vec::new());
        let _ = self.shared.sender.node.post(RecvFrom::Channel(channel), tag, 0, memory, options);
    }

    // ---- data that come apart ----------------------------------------------------------------------------------------

    fn apart(&self) -> MutexGuard<'_, Apart> {
        self.apart.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self, announced: Announced) {
        let mut apart = self.apart();
        let own = apart.by_channel.entry(announced.channel).or_default();
        *own += 1;
        if *own > MAX_APART {
            drop(apart);
            count(&self.shared.sender.counters.malformed);
            let _ = self.shared.sender.node.close_channel(announced.channel); // its receives end as closed
            self.count_less(announced.channel);
            return;
        }
        self.receive_data(apart, announced);
    }

    /// Begins to receive the data, or keeps the request until there is memory.
    fn receive_data(&self, mut apart: MutexGuard<'_, Apart>, mut announced: Announced) {
        let Announced { channel, length, tag, .. } = announced;
        let Some(lease) = self.shared.memory.lease(channel, length) else {
            apart.waiting.push_back(announced);
            self.waits.store(true, Ordering::Relaxed);
            return;
        };
        announced.lease = Some(lease);
        apart.last = apart.last.wrapping_add(1).max(FIRST_REQUEST);
        let number = apart.last;
        apart.arriving.insert(number, announced);
        drop(apart);
        let memory = OperationMemory::Owned(self.shared.memory.long(length));
        let options = CompletionOptions { cq: Some(self.cq), user_data: number, errors_only: false };
        if self.shared.sender.node.post(RecvFrom::Channel(channel), tag, 0, memory, options).is_err() {
            self.apart().arriving.remove(&number);
            self.count_less(channel);
            count(&self.shared.sender.counters.incomplete);
        }
    }

    /// Looks for memory again for those that wait.
    #[cold]
    fn receive_waiting(&self) {
        let mut apart = self.apart();
        let waiting = std::mem::take(&mut apart.waiting);
        self.waits.store(false, Ordering::Relaxed);
        drop(apart);
        for announced in waiting {
            self.receive_data(self.apart(), announced);
        }
    }

    /// The data of a request are here, or will not come.
    fn data(&self, number: u64, completion: Completion) {
        let Some(announced) = self.apart().arriving.remove(&number) else { return };
        let Announced { endpoint, entry, format, channel, reply_to, length, lease, .. } = announced;
        self.count_less(channel);
        let memory = completion.memory.unwrap_or_default();
        let is_whole = completion.status == Status::Done && completion.message_length == length as u64;
        if !is_whole || memory.len() < length {
            count(&self.shared.sender.counters.incomplete);
            self.shared.memory.give_back(memory, false);
            return;
        }
        let data = Data { memory, range: 0..length, format, is_first: false, lease };
        if let Some(first) = self.dispatch(Job { endpoint, entry, data, channel, reply_to }) {
            self.shared.memory.give_back(first, true);
        }
    }

    fn count_less(&self, channel: Channel) {
        let mut apart = self.apart();
        if let Some(own) = apart.by_channel.get_mut(&channel) {
            *own -= 1;
            if *own == 0 {
                apart.by_channel.remove(&channel);
            }
        }
    }

    // ---- replies that come late --------------------------------------------------------------------------------------

    /// Receives the reply to a call that no longer waits for it, so that it does not stay at the engine.
    pub fn expect_late(&self, tag: u64) -> Option<motet::node::OperationId> {
        let options = CompletionOptions { cq: Some(self.cq), user_data: LATE, errors_only: false };
        let (from, memory) = (RecvFrom::Any(self.shared.sender.context), OperationMemory::Owned(vec![0; 64]));
        self.shared.sender.node.post(from, tag, 0, memory, options).ok()
    }

    fn drop_late(&self, completion: &Completion) {
        let bytes = completion.memory.as_deref().unwrap_or(&[]);
        let bytes = &bytes[..bytes.len().min(completion.length as usize)];
        if let (Some(channel), Ok((Head { apart: Some((_, tag)), .. }, _))) = (completion.channel, Head::parse(bytes)) {
            self.receive_unwanted(channel, tag);
        }
    }
}
