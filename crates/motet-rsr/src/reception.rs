//! Reception: first packets, the data that come apart, and what is done with both.
//!
//! Everything here is the word of a peer. A first packet is received into a buffer of fixed length. Data that come apart are received only for a handler
//! that is there, into memory for which there is leave; until then they stay in the sender's memory. Requests behind them wait in line, so that all of a
//! channel are handled in order. While a line is full, nothing more is received, and senders wait. A peer that announces more data than a channel may
//! have, that keeps a line full without sending what it has announced, or whose data hold memory that others wait for and do not arrive, is disconnected.

mod apart;

use crate::counters::count;
use crate::endpoint::{Job, Table};
use crate::error::Error;
use crate::format::Format;
use crate::lines::{Content, Lines, Waiting};
use crate::memory::{FIRST, Memory, first_buffer, give_back_first};
use crate::options::Reception;
use crate::request::{Data, Request};
use crate::sender::{ReplyTo, Sender};
use crate::wire::{ENDPOINT_BITS, Head, ReplyStatus};
use crate::workers::Workers;
use motet::node::{
    Channel, Completion, CompletionOptions, Context, CqId, Error as NodeError, OperationId, OperationMemory, Received,
    RecvFrom, Status, deadline_in,
};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// First packets that are received ahead, where a thread receives.
const AHEAD: usize = 8;
/// How often memory is looked for while data wait for it, ns.
const MEMORY_POLL_NS: u64 = 1_000_000;
/// How often a wait looks at full lines, and at operations beside first packets, ns.
const LOOK_NS: u64 = 20_000_000;
/// What a completion is of: the first packet of one of [`AHEAD`] receives, a late reply, or data that no handler gets. Larger numbers: the data of a
/// request.
const LATE: u64 = AHEAD as u64;
const UNWANTED: u64 = LATE + 1;
const FIRST_REQUEST: u64 = LATE + 2;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What all receptions of a process share.
pub struct Shared {
    pub sender: Arc<Sender>,
    pub table: Arc<Table>,
    pub workers: Arc<Workers>,
    pub memory: Arc<Memory>,
    pub ended: AtomicBool,
}

/// Where first packets are received.
#[derive(Debug, Clone, Copy)]
pub enum Source {
    /// By receives that are posted ahead, for a thread that sleeps until one completes.
    Posted(RecvFrom),
    /// By a blocking receive within [`Receiver::step`]: the shortest way from the packet to the handler. Until then packets stay at the engine, which
    /// bounds them.
    Blocking(Context),
    /// Nowhere.
    Nothing,
}

/// The reception of one channel, or of all.
pub struct Receiver {
    shared: Arc<Shared>,
    source: Source,
    pub cq: CqId,
    /// The operations of the receives of first packets.
    posted: [AtomicU32; AHEAD],
    /// Receives that are not posted while a line is full.
    unposted: Mutex<Vec<(u64, Vec<u8>)>>,
    lines: Mutex<Lines>,
    /// Requests in lines.
    in_line: AtomicUsize,
    /// Operations of the queue beside the receives of first packets.
    others: AtomicUsize,
    /// The number of the last receive of data.
    last_number: AtomicU64,
    /// Whether data wait for memory.
    waits: AtomicBool,
    /// Whether a line is full.
    is_full: AtomicBool,
}

impl Receiver {
    /// Receives from now on; the caller then calls [`Receiver::step`].
    pub fn start(shared: &Arc<Shared>, source: Source) -> Result<Self, Error> {
        let cq = shared.sender.node.add_cq()?;
        let receiver = Self {
            shared: shared.clone(),
            source,
            cq,
            posted: Default::default(),
            unposted: Mutex::default(),
            lines: Mutex::default(),
            in_line: AtomicUsize::new(0),
            others: AtomicUsize::new(0),
            last_number: AtomicU64::new(FIRST_REQUEST),
            waits: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
        };
        if let Source::Posted(_) = source {
            for at in 0..AHEAD {
                receiver.post_first(at as u64, first_buffer())?;
            }
        }
        Ok(receiver)
    }

    /// Waits for something to arrive, and handles it. False: nothing has, until CLOCK_MONOTONIC passes `deadline`, or the end has come.
    #[inline]
    pub fn step(&self, deadline: Option<u64>) -> Result<bool, Error> {
        let mut deadline = deadline;
        let mut is_full = false;
        if self.waits.load(Ordering::Relaxed) || self.is_full.load(Ordering::Relaxed) {
            self.look_at_lines()?;
            is_full = self.is_full.load(Ordering::Relaxed);
            let soon = deadline_in(if self.waits.load(Ordering::Relaxed) { MEMORY_POLL_NS } else { LOOK_NS });
            deadline = Some(deadline.map_or(soon, |deadline| deadline.min(soon)));
        }
        if let (Source::Blocking(context), false) = (self.source, is_full) {
            return self.receive_first(context, deadline);
        }
        match self.shared.sender.node.wait_cq(self.cq, deadline) {
            Ok(completion) => self.completed(completion).map(|()| true),
            Err(NodeError::TimedOut | NodeError::Interrupted) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for a first packet or a completion, by a blocking receive.
    #[inline]
    fn receive_first(&self, context: Context, mut deadline: Option<u64>) -> Result<bool, Error> {
        let node = &self.shared.sender.node;
        if self.others.load(Ordering::Relaxed) > 0 {
            if self.complete_other()? {
                return Ok(true);
            }
            let soon = deadline_in(LOOK_NS); // another thread may have the receive that notices completions
            deadline = Some(deadline.map_or(soon, |deadline| deadline.min(soon)));
        }
        let mut memory = first_buffer();
        let selector = (RecvFrom::Any(context), 0, ENDPOINT_BITS);
        let mut came = true;
        match node.receive_or_complete(selector, self.cq, &mut memory, deadline) {
            Ok(Received { tag, length, channel }) => self.arrived(&mut memory, length, tag, channel),
            Err(NodeError::Truncated) => count(&self.shared.sender.counters.malformed),
            Err(NodeError::TimedOut | NodeError::Interrupted) => came = self.complete_other()?,
            Err(NodeError::Lost(_) | NodeError::Closed | NodeError::Cancelled) => {} // one of many peers
            Err(error) => {
                give_back_first(memory);
                return Err(error.into());
            }
        }
        give_back_first(memory);
        Ok(came)
    }

    /// Handles a completion, if there is one.
    fn complete_other(&self) -> Result<bool, Error> {
        match self.shared.sender.node.test_cq(self.cq)? {
            Some(completion) => self.completed(completion).map(|()| true),
            None => Ok(false),
        }
    }

    /// Handles one of those that have arrived, without waiting and without progress. False: there is none.
    #[inline]
    pub fn next(&self) -> Result<bool, Error> {
        let Source::Blocking(context) = self.source else { return self.complete_other() };
        if self.others.load(Ordering::Relaxed) > 0 && self.complete_other()? {
            return Ok(true);
        }
        if self.is_full.load(Ordering::Relaxed) {
            return Ok(false);
        }
        match self.shared.sender.node.peek(RecvFrom::Any(context), 0, ENDPOINT_BITS)? {
            Some(_) => self.receive_first(context, Some(0)),
            None => Ok(false),
        }
    }

    /// Makes progress once, and handles all that has arrived.
    pub fn serve(&self) -> Result<usize, Error> {
        if self.waits.load(Ordering::Relaxed) || self.is_full.load(Ordering::Relaxed) {
            self.look_at_lines()?;
        }
        self.shared.sender.node.progress()?;
        let mut came = 0;
        while self.next()? {
            came += 1;
        }
        Ok(came)
    }

    /// Receives until the end, or until the channel is gone. Then all that has arrived is handled, and no memory is held.
    pub fn run(&self) {
        let is_over = || self.shared.ended.load(Ordering::Relaxed);
        while !is_over() {
            if self.step(None).is_err() {
                break;
            }
        }
        // The receives of data end with their channel.
        while self.others.load(Ordering::Relaxed) > 0 && !is_over() {
            match self.shared.sender.node.wait_cq(self.cq, Some(deadline_in(LOOK_NS))) {
                Ok(completion) => drop(self.completed(completion)),
                Err(NodeError::TimedOut | NodeError::Interrupted) => {}
                Err(_) => break,
            }
        }
        *self.lines() = Lines::default();
    }

    #[inline]
    fn completed(&self, completion: Completion) -> Result<(), Error> {
        if completion.user_data < LATE {
            return self.first_packet(completion);
        }
        self.others.fetch_sub(1, Ordering::Relaxed);
        match completion.user_data {
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
        let Source::Posted(from) = self.source else { return Ok(()) };
        if self.is_full.load(Ordering::Relaxed) {
            lock(&self.unposted).push((at, memory));
            return Ok(());
        }
        let options = CompletionOptions { cq: Some(self.cq), user_data: at, errors_only: false };
        let node = &self.shared.sender.node;
        let OperationId(posted) = node.post(from, 0, ENDPOINT_BITS, OperationMemory::Owned(memory), options)?;
        self.posted[at as usize].store(posted, Ordering::Relaxed);
        Ok(())
    }

    /// Ends all receives. No thread is in [`Receiver::step`].
    pub fn end(&self) {
        let node = &self.shared.sender.node;
        if let Source::Posted(_) = self.source {
            for posted in &self.posted {
                let _ = node.cancel(OperationId(posted.load(Ordering::Relaxed)));
            }
        }
        while let Ok(Some(_)) = node.test_cq(self.cq) {}
        let _ = node.remove_cq(self.cq); // data or late replies may be under way: then it stays until the node closes
    }

    /// Handles a first packet, and receives the next one in its place.
    #[inline]
    fn first_packet(&self, completion: Completion) -> Result<(), Error> {
        let Completion { status, length, tag, channel, memory, user_data: at, .. } = completion;
        let mut memory = memory.filter(|memory| memory.len() == FIRST).unwrap_or_else(first_buffer);
        match (status, channel) {
            (Status::Done, Some(channel)) => {
                self.arrived(&mut memory, length as usize, tag, channel);
                if memory.is_empty() {
                    memory = first_buffer();
                }
            }
            (Status::Truncated, _) => count(&self.shared.sender.counters.malformed),
            _ if self.shared.ended.load(Ordering::Relaxed) => return Err(Error::PeerGone),
            _ if matches!(self.source, Source::Posted(RecvFrom::Channel(_))) => return Err(Error::PeerGone),
            _ => {} // one of many peers
        }
        self.post_first(at, memory)
    }

    /// Takes a first packet. The buffer is empty afterwards if the request still needs it.
    #[inline]
    fn arrived(&self, memory: &mut Vec<u8>, length: usize, tag: u64, channel: Channel) {
        self.shared.sender.routes.learn(&self.shared.sender.node, channel);
        self.handle(memory, length, tag, channel);
    }

    /// Handles a request. The buffer is empty afterwards if the request still needs it.
    #[inline]
    fn handle(&self, memory: &mut Vec<u8>, length: usize, tag: u64, channel: Channel) {
        let Shared { sender, table, .. } = &*self.shared;
        let counters = &sender.counters;
        let Ok((head, data)) = Head::parse(&memory[..length]) else {
            count(&counters.malformed);
            return;
        };
        let reply_to = match head.reply_to.map(|place| sender.reply_to(place, channel)) {
            None => None,
            Some(Some(to)) => Some(to),
            Some(None) => {
                count(&counters.malformed);
                self.refuse(&head, channel, None, ReplyStatus::NotAnswered);
                return;
            }
        };
        let Some(running) = table.find(tag) else {
            count(&counters.no_endpoint);
            self.refuse(&head, channel, reply_to, ReplyStatus::NoEndpoint);
            return;
        };
        let Some(entry) = running.find(head.handler).filter(|_| !head.is_reply) else {
            drop(running);
            count(&counters.no_handler);
            self.refuse(&head, channel, reply_to, ReplyStatus::NoHandler);
            return;
        };
        if head.format != Format::HERE {
            count(&counters.foreign);
        }
        let format = head.format;
        // What waits from here on does not keep the endpoint from being closed: it is no longer in `running` then.
        let keep = || (entry.clone(), Arc::clone(&running));
        if let Some((bytes, tag)) = head.apart {
            let (entry, endpoint) = keep();
            drop(running);
            match usize::try_from(bytes).ok().filter(|bytes| *bytes <= sender.options.max_request) {
                Some(length) => {
                    let content = Content::Announced { length, tag };
                    self.announce(channel, Waiting { endpoint, entry, format, reply_to, content });
                }
                None => {
                    count(&counters.too_long);
                    self.refuse(&head, channel, reply_to, ReplyStatus::TooLong);
                }
            }
            return;
        }
        if self.in_line.load(Ordering::Relaxed) > 0 {
            let mut lines = self.lines();
            if lines.has(channel) {
                let data = Data { memory: data.to_vec(), range: 0..data.len(), format, is_first: false, lease: None };
                let ((entry, endpoint), content) = (keep(), Content::Here(data));
                drop(running);
                lines.push(channel, Waiting { endpoint, entry, format, reply_to, content });
                self.note(&lines);
                return;
            }
        }
        if entry.threaded && sender.options.reception != Reception::Caller {
            let ((entry, endpoint), range) = (keep(), length - data.len()..length);
            drop(running);
            let data = Data { memory: std::mem::take(memory), range, format, is_first: true, lease: None };
            if let Some(back) = self.dispatch(Job { endpoint, entry, data, channel, reply_to }) {
                *memory = back;
            }
            return;
        }
        let mut request = Request { sender, user: None, data, format, channel, reply_to };
        let status = running.run(entry, &mut request);
        let unanswered = request.reply_to;
        drop(running);
        sender.answer(unanswered, status);
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
        memory.give_back(data.memory);
        None
    }

    /// Drops a request: its data, too, so that its sender does not wait; and says so to who has called.
    #[cold]
    fn refuse(&self, head: &Head<'_>, channel: Channel, reply_to: Option<ReplyTo>, status: ReplyStatus) {
        if let Some((_, tag)) = head.apart {
            self.receive_unwanted(channel, tag);
        }
        self.shared.sender.answer(reply_to, status);
    }

    /// Receives data into no memory: their send succeeds.
    #[cold]
    pub fn receive_unwanted(&self, channel: Channel, tag: u64) {
        let options = CompletionOptions { cq: Some(self.cq), user_data: UNWANTED, errors_only: false };
        let memory = OperationMemory::Owned(Vec::new());
        if self.shared.sender.node.post(RecvFrom::Channel(channel), tag, 0, memory, options).is_ok() {
            self.others.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Receives the reply to a call that no longer waits for it, so that it does not stay at the engine.
    pub fn expect_late(&self, tag: u64) -> Option<motet::node::OperationId> {
        let options = CompletionOptions { cq: Some(self.cq), user_data: LATE, errors_only: false };
        let (from, memory) = (RecvFrom::Any(self.shared.sender.context), OperationMemory::Owned(vec![0; 64]));
        let posted = self.shared.sender.node.post(from, tag, 0, memory, options).ok()?;
        self.others.fetch_add(1, Ordering::Relaxed);
        Some(posted)
    }

    fn drop_late(&self, completion: &Completion) {
        let bytes = completion.memory.as_deref().unwrap_or(&[]);
        let bytes = &bytes[..bytes.len().min(completion.length as usize)];
        if let (Some(channel), Ok((Head { apart: Some((_, tag)), .. }, _))) = (completion.channel, Head::parse(bytes)) {
            self.receive_unwanted(channel, tag);
        }
    }
}
