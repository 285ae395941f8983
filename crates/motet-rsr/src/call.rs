//! Calls: a request, and the wait for its reply.
//!
//! The reply goes to a startpoint in the request, for which the call alone receives. So it takes no thread but the caller's, and wakes no other.

use crate::buffer::{Buffer, Reader};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::memory::{Memory, first_buffer, give_back_first};
use crate::options::Reception;
use crate::reception::{Receiver, Shared};
use crate::request::Data;
use crate::startpoint::{Startpoint, Target};
use crate::wire::{Handler, Head, REPLY_TAG, ReplyPlace, ReplyStatus};
use motet::node::{
    Channel, Completion, CompletionOptions, Error as NodeError, OperationId, OperationMemory, Received, RecvFrom,
    Status, deadline_in,
};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a wait lasts before the peer is looked at, ns.
const LOOK_NS: u64 = 20_000_000;
/// The pauses of a wait in a thread that also receives requests: the first one, and the longest.
const SERVE_NS: [u64; 2] = [50_000, 1_000_000];
/// Most calls whose replies are still expected after their deadlines.
const MAX_LATE: usize = 1024;

/// The reply to a call.
#[derive(Debug)]
pub struct Reply {
    data: Data,
    /// Where the memory of data that came apart goes.
    memory: Option<Arc<Memory>>,
}

impl Reply {
    /// Gets the data, from their beginning.
    pub fn reader(&self) -> Reader<'_> {
        self.data.reader()
    }

    /// The data as they came.
    pub fn bytes(&self) -> &[u8] {
        self.data.bytes()
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.data.memory);
        match &self.memory {
            None => give_back_first(memory),
            Some(to) => to.give_back(memory),
        }
    }
}

/// Calls whose deadline has passed, oldest first.
#[derive(Debug, Default)]
pub struct LateReplies(Mutex<VecDeque<OperationId>>);

/// What a call needs.
pub struct Caller<'a> {
    pub shared: &'a Shared,
    /// Who receives requests: in a process without threads the caller has to, meanwhile.
    pub receiver: &'a Receiver,
    pub late: &'a LateReplies,
}

impl Caller<'_> {
    /// Sends a request with a startpoint for the reply, and waits for that.
    pub fn call(
        &self,
        start: &Startpoint,
        handler: Handler<'_>,
        buffer: &Buffer<'_>,
        limit: Option<Duration>,
    ) -> Result<Reply, Error> {
        let sender = &self.shared.sender;
        let tag = sender.next_number() | REPLY_TAG;
        let Some(channel) = sender.try_call(start, handler, tag, buffer) else {
            return self.first_call(start, handler, (tag, buffer), Deadline::within(limit));
        };
        let deadline = Deadline::within(limit);
        sender.prepare_number();
        self.wait_for(tag, channel, deadline)
    }

    /// Makes a call with the startpoint of this node, for a receiver that may not know it, and waits for room.
    #[inline(never)]
    fn first_call(
        &self,
        start: &Startpoint,
        handler: Handler<'_>,
        (tag, buffer): (u64, &Buffer<'_>),
        deadline: Deadline,
    ) -> Result<Reply, Error> {
        let sender = &self.shared.sender;
        let [target] = &start.targets[..] else {
            return Err(Error::Invalid("a call is to one endpoint"));
        };
        let (node, version) = sender.last_own_address();
        let reply_to = Startpoint::to(Target { node, endpoint: tag }).to_bytes();
        let reply_to = Some(ReplyPlace::Startpoint(&reply_to));
        let head = Head { handler, reply_to, is_reply: false, ..Head::reply(ReplyStatus::Done) };
        let sent = sender.send(target, start.chosen(), &head, buffer, deadline);
        let channel = sent.inspect_err(|_| self.give_up(tag))?.channel;
        let reply = self.wait_for(tag, channel, deadline);
        if matches!(reply, Ok(_) | Err(Error::NotDone(_))) {
            sender.routes.note_told(target.node.id, channel, version); // the receiver has read the head
        }
        reply
    }

    /// Waits for the reply with this tag to a request that was sent by the channel `to`.
    #[inline]
    fn wait_for(&self, tag: u64, to: Channel, deadline: Deadline) -> Result<Reply, Error> {
        let mut first = first_buffer();
        match self.wait(tag, &mut first, to, deadline) {
            Ok(received) => self.reply(received, first, deadline),
            Err(error) => {
                give_back_first(first);
                self.give_up(tag);
                Err(error)
            }
        }
    }

    /// Waits for the first packet of the reply, as long as the peer is there.
    fn wait(&self, tag: u64, first: &mut [u8], to: Channel, deadline: Deadline) -> Result<Received, Error> {
        let sender = &self.shared.sender;
        let serves = sender.options.reception == Reception::Caller;
        let mut slice = if serves { SERVE_NS[0] } else { LOOK_NS };
        let mut is_gone = false;
        loop {
            let limit = if is_gone { Duration::ZERO } else { deadline.at_most(Duration::from_nanos(slice)) };
            match sender.node.receive_tagged(RecvFrom::Any(sender.context), tag, 0, first, Some(limit)) {
                Ok(received) => return Ok(received),
                Err(NodeError::TimedOut) => {}
                Err(NodeError::Truncated) => return Err(malformed("a reply that is too long")),
                Err(NodeError::Lost(_) | NodeError::Closed | NodeError::Cancelled) => return Err(Error::PeerGone),
                Err(error) => return Err(error.into()),
            }
            if is_gone {
                return Err(Error::PeerGone);
            }
            is_gone = sender.is_gone(to); // the reply may be here all the same
            if !is_gone && deadline.has_passed() {
                return Err(Error::TimedOut);
            }
            if serves {
                self.receiver.serve()?;
                slice = (slice * 2).min(SERVE_NS[1]);
            }
        }
    }

    /// Reads the first packet of a reply, and receives its data if they come apart.
    fn reply(&self, received: Received, first: Vec<u8>, deadline: Deadline) -> Result<Reply, Error> {
        let Shared { sender, memory, .. } = self.shared;
        let Received { length, channel, .. } = received;
        sender.routes.learn(&sender.node, channel);
        let (head, data) = Head::parse(&first[..length])?;
        let status = head.status().ok_or(malformed("a request where a reply has to be"))?;
        let (format, apart, range) = (head.format, head.apart, length - data.len()..length);
        let (data, memory) = match apart {
            None => (Data { memory: first, range, format, is_first: true, lease: None }, None),
            Some((bytes, tag)) => {
                give_back_first(first);
                let Some(bytes) = usize::try_from(bytes).ok().filter(|bytes| *bytes <= sender.options.max_request)
                else {
                    self.receiver.receive_unwanted(channel, tag);
                    return Err(Error::NotDone(ReplyStatus::TooLong));
                };
                let data = self.data(channel, tag, bytes, deadline)?;
                let data = Data { memory: data, range: 0..bytes, format, is_first: false, lease: None };
                (data, Some(memory.clone()))
            }
        };
        let reply = Reply { data, memory };
        if status == ReplyStatus::Done { Ok(reply) } else { Err(Error::NotDone(status)) }
    }

    /// Receives the data of a reply.
    fn data(&self, channel: Channel, tag: u64, bytes: usize, deadline: Deadline) -> Result<Vec<u8>, Error> {
        let node = &self.shared.sender.node;
        let memory = OperationMemory::Owned(self.shared.memory.long(bytes));
        let operation = node.post(RecvFrom::Channel(channel), tag, 0, memory, CompletionOptions::default())?;
        let until = deadline.left().map(|left| deadline_in(left.as_nanos() as u64));
        match node.wait_for(operation, until) {
            Ok(Completion { status: Status::Done, message_length, memory: Some(memory), .. })
                if message_length == bytes as u64 =>
            {
                Ok(memory)
            }
            Ok(_) => Err(Error::PeerGone),
            Err(error) => {
                let _ = node.detach(operation); // what still arrives is dropped
                Err(error.into())
            }
        }
    }

    /// Ends a call that has no reply; one that comes later is dropped.
    #[cold]
    fn give_up(&self, tag: u64) {
        let expected = self.receiver.expect_late(tag);
        let mut late = self.late.0.lock().unwrap_or_else(PoisonError::into_inner);
        late.extend(expected);
        if late.len() > MAX_LATE {
            let oldest = late.pop_front();
            drop(late);
            let _ = oldest.map(|oldest| self.shared.sender.node.cancel(oldest)); // it may have completed
        }
    }
}

fn malformed(what: &'static str) -> Error {
    Error::Malformed(crate::format::Malformed(what))
}
