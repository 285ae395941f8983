//! Reception: first packets, the data that come apart, and what is done with both.
//!
//! Everything here is the word of a peer. A first packet is received into a buffer of fixed length. Data that come apart are received only for a handler
//! that is there, into memory for which there is leave; until then they stay in the sender's memory. Requests behind them wait in line, so that all of a
//! channel are handled in order. While a link has as many requests in lines as it may, nothing more is received from it, and its sender waits; others are
//! served. A peer that announces more data than it may, or whose data hold memory that others wait for and do not arrive, is disconnected. Nothing that a peer
//! does ends reception, and neither does a node without operations: it ends with the node. A peer that stops within a first packet holds up a program that
//! polls, because the engine's blocking receive waits for the rest; where threads receive, they go on.

mod apart;
mod paused;
mod unwanted;

use crate::counters::count;
use crate::endpoint::{Job, Table};
use crate::error::Error;
use crate::format::Format;
use crate::lines::{Content, Lines, Waiting};
use crate::memory::{FIRST, Memory, first_buffer, give_back_first};
use crate::options::Reception;
use crate::request::{Data, Request};
use crate::sender::Sender;
use crate::wire::{ENDPOINT_BITS, Head, ReplyStatus};
use crate::workers::Workers;
use motet::node::{
    Channel, Completion, Context, CqId, Error as NodeError, LinkId, OperationId, Received, RecvFrom, Status,
    deadline_in,
};
use paused::Pause;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use unwanted::Unwanted;

/// First packets that are received ahead, where a thread receives.
const AHEAD: usize = 8;
/// How often memory is looked for while data wait for it, and first packets while none are received ahead, ns.
const MEMORY_POLL_NS: u64 = 1_000_000;
/// How often a wait looks at lines of a channel that are full, and at operations beside first packets, ns.
const LOOK_NS: u64 = 20_000_000;
/// After such a time without completions a thread looks whether its receives of first packets are all held up, ns.
const STOPPED_LOOK_NS: u64 = 100_000_000;
/// What a completion is of: the first packet of one of [`AHEAD`] receives, a late reply, data that no handler gets, or a first packet that was held. Larger
/// numbers: the data of a request.
const LATE: u64 = AHEAD as u64;
const UNWANTED: u64 = LATE + 1;
const HELD: u64 = LATE + 2;
const FIRST_REQUEST: u64 = LATE + 3;

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
    lines: Mutex<Lines>,
    /// Locked after the lines.
    pause: Mutex<Pause>,
    unwanted: Mutex<Unwanted>,
    /// Requests in lines.
    in_line: AtomicUsize,
    /// Operations of the queue beside the receives of first packets.
    others: AtomicUsize,
    /// The number of the last receive of data.
    last_number: AtomicU64,
    /// Whether data wait for memory.
    waits: AtomicBool,
    /// Whether receives of first packets are not posted, because a link is full or the node has no operations left.
    is_paused: AtomicBool,
    /// Whether the thread that receives from a channel handles something, and takes no data meanwhile.
    is_busy: Arc<AtomicBool>,
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
            lines: Mutex::default(),
            pause: Mutex::default(),
            unwanted: Mutex::default(),
            in_line: AtomicUsize::new(0),
            others: AtomicUsize::new(0),
            last_number: AtomicU64::new(FIRST_REQUEST),
            waits: AtomicBool::new(false),
            is_paused: AtomicBool::new(false),
            is_busy: Arc::default(),
        };
        let posted = (0..AHEAD as u64).try_for_each(|at| receiver.post_first(at, first_buffer()));
        match posted {
            Ok(()) => Ok(receiver),
            Err(error) => {
                receiver.end();
                Err(error)
            }
        }
    }

    /// Waits for something to arrive, and handles it. False: nothing has, until CLOCK_MONOTONIC passes `deadline`, or the end has come.
    #[inline]
    pub fn step(&self, deadline: Option<u64>) -> Result<bool, Error> {
        let mut deadline = deadline;
        if self.has_to_look() {
            self.look_at_lines()?;
            if self.is_paused.load(Ordering::Relaxed) && !self.is_of_a_channel() {
                return self.step_in_pause(deadline);
            }
            let soon = deadline_in(if self.waits.load(Ordering::Relaxed) { MEMORY_POLL_NS } else { LOOK_NS });
            deadline = Some(deadline.map_or(soon, |deadline| deadline.min(soon)));
        }
        if let Source::Blocking(context) = self.source {
            return self.receive_first(context, deadline);
        }
        match self.shared.sender.node.wait_cq(self.cq, deadline) {
            Ok(completion) => self.completed(completion).map(|()| true),
            Err(NodeError::TimedOut | NodeError::Interrupted) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    #[inline]
    fn has_to_look(&self) -> bool {
        self.waits.load(Ordering::Relaxed) || self.is_paused.load(Ordering::Relaxed)
    }

    /// The link of the one channel from which this receives.
    pub fn link(&self) -> Option<LinkId> {
        if let Source::Posted(RecvFrom::Channel(channel)) = self.source { Some(channel.link) } else { None }
    }

    /// Whether this receives from one channel alone.
    #[inline]
    fn is_of_a_channel(&self) -> bool {
        matches!(self.source, Source::Posted(RecvFrom::Channel(_)))
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
            Err(NodeError::Full) => came = self.step_in_pause(deadline)?,
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
        if self.is_paused.load(Ordering::Relaxed) {
            return self.take_first();
        }
        match self.shared.sender.node.peek(RecvFrom::Any(context), 0, ENDPOINT_BITS)? {
            Some(_) => self.receive_first(context, Some(0)),
            None => Ok(false),
        }
    }

    /// Makes progress once, and handles all that has arrived.
    pub fn serve(&self) -> Result<usize, Error> {
        if self.has_to_look() {
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
            let look = (!self.is_of_a_channel()).then(|| deadline_in(STOPPED_LOOK_NS));
            if self.step(look).and_then(|came| if came { Ok(()) } else { self.look_at_receives() }).is_err() {
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
        self.drop_held();
    }

    #[inline]
    fn completed(&self, completion: Completion) -> Result<(), Error> {
        if !self.is_of_a_channel() {
            return self.handle_completion(completion);
        }
        self.is_busy.store(true, Ordering::Relaxed);
        let handled = self.handle_completion(completion);
        self.is_busy.store(false, Ordering::Relaxed);
        handled
    }

    #[inline]
    fn handle_completion(&self, completion: Completion) -> Result<(), Error> {
        if completion.user_data < LATE {
            return self.first_packet(completion);
        }
        self.others.fetch_sub(1, Ordering::Relaxed);
        match completion.user_data {
            LATE => {
                count(&self.shared.sender.counters.late_replies);
                self.drop_late(&completion);
            }
            UNWANTED => self.unwanted_ended(completion.operation),
            HELD => self.held_arrived(completion),
            number => self.data(number, completion),
        }
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
        self.drop_held();
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
            (Status::Truncated, channel) => self.too_long(channel),
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
                self.note(&lines, channel);
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
}
