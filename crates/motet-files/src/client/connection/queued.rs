//! Requests of completion queues: sent without waiting. Their answers complete in a queue of the node.

use super::{Attempt, Connection};
use crate::client::failure::Failure;
use crate::client::slots::Slot;
use crate::protocol::{
    Answer, Operation, Reply, Request, answer_tag, append, data_tag, inline_data, parse_answer, request_tag,
};
use crate::{Result, engine_error};
use motet::node::{
    Channel, Completion, CompletionOptions, CqId, Error, Mode, OperationMemory, Outgoing, RecvFrom, Status,
};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// How often a request is sent on channels that are lost at once.
const ATTEMPTS: u64 = 3;
/// The operations of a request. The lowest bits of their user data say which, the next ones the attempt to send it, the others the request.
const KIND_BITS: u32 = 1;
const ATTEMPT_BITS: u32 = 2;
const DATA: u64 = 0;
const ANSWER: u64 = 1;

fn user_data(key: u64, attempt: u64, kind: u64) -> u64 {
    key << (ATTEMPT_BITS + KIND_BITS) | attempt << KIND_BITS | kind
}

/// Memory of a request.
#[derive(Debug)]
pub enum Body {
    /// None.
    Empty,
    /// Data that belong to it.
    Data(OperationMemory),
    /// Where the body of its answer is written.
    Into(OperationMemory),
}

/// A request that is under way.
#[derive(Debug)]
pub struct Queued {
    slot: Slot,
    /// The session in which it was sent.
    epoch: u64,
    sequence: u32,
    attempt: u64,
    channel: Channel,
    began: Instant,
    /// Operations of the node that have not completed.
    under_way: u32,
    body: Body,
    /// Whether its memory is where the body of the answer is written.
    fills: bool,
    /// What the receive for the answer has got; `None`: nothing, because the connection was lost.
    answer: Option<std::result::Result<(Reply, usize), Failure>>,
}

impl Queued {
    /// The request whose operation has this user data.
    pub fn key_of(user_data: u64) -> u64 {
        user_data >> (ATTEMPT_BITS + KIND_BITS)
    }

    /// The channel on which it was sent.
    pub fn channel(&self) -> Channel {
        self.channel
    }

    /// When it began.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Takes note of the completion of an operation of it; returns whether that was the last one.
    pub fn note(&mut self, completion: Completion) -> bool {
        let Completion { user_data, status, length, headers, memory, .. } = completion;
        let kind = user_data & ((1 << KIND_BITS) - 1);
        if user_data >> KIND_BITS & ((1 << ATTEMPT_BITS) - 1) != self.attempt {
            return false; // of an attempt that has failed
        }
        self.under_way = self.under_way.saturating_sub(1);
        match (kind, memory) {
            (DATA, Some(bytes)) => self.body = Body::Data(OperationMemory::Owned(bytes)),
            (ANSWER, Some(bytes)) if self.fills => self.body = Body::Into(OperationMemory::Owned(bytes)),
            _ => {}
        }
        if kind == ANSWER {
            self.answer = match status {
                Status::Done => Some(match parse_answer(&headers) {
                    Some(Answer { sequence, result }) if sequence == self.sequence => match result {
                        Ok(reply) => Ok((reply, usize::try_from(length).unwrap_or(usize::MAX))),
                        Err(errno) => Err(Failure::Final(std::io::Error::from_raw_os_error(errno))),
                    },
                    _ => Err(Failure::Broken),
                }),
                Status::Truncated => Some(Err(Failure::Broken)),
                _ => None,
            };
        }
        self.under_way == 0
    }
}

impl Connection {
    /// A completion queue of the node.
    pub fn add_cq(&self) -> Result<CqId> {
        self.node.add_cq().map_err(engine_error)
    }

    /// Removes a queue without outstanding operations.
    pub fn remove_cq(&self, cq: CqId) {
        let _ = self.node.remove_cq(cq);
    }

    /// Waits for the completion of an operation. `None`: there is none in time.
    pub fn next_completion(&self, cq: CqId, limit: Duration) -> Result<Option<Completion>> {
        let ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let deadline = if ns == 0 { 0 } else { motet::node::deadline_in(ns) };
        match self.node.wait_cq(cq, Some(deadline)) {
            Ok(completion) => Ok(Some(completion)),
            Err(Error::TimedOut | Error::WouldBlock | Error::Interrupted) => Ok(None),
            Err(error) => Err(engine_error(error)),
        }
    }

    /// How long a call waits for a server that is away.
    pub fn limit(&self) -> Option<Duration> {
        self.limit
    }

    /// Ends the connection on this channel: requests on it complete as lost.
    pub fn give_up(&self, channel: Channel) {
        self.lose(channel);
    }

    /// Sends a request; waits only while the server is away. `key`, below 2^60, names it in its completions. `operation` is called for each attempt. EAGAIN:
    /// there is no slot, or no room to send. With an error the memory is returned.
    pub fn start<'a>(
        &self,
        (cq, key): (CqId, u64),
        operation: impl Fn() -> Result<Operation<'a>>,
        mut body: Body,
    ) -> std::result::Result<Queued, (std::io::Error, Body)> {
        let Some(mut slot) = self.slots.take_for_queue() else { return Err((Errno::AGAIN.into(), body)) };
        if slot.is_uncertain()
            && let Err(error) = self.settle(&mut slot)
        {
            self.slots.abandon(slot);
            return Err((error, body));
        }
        slot.begin();
        let mut sent_in: Option<u64> = None;
        let fills = matches!(body, Body::Into(_));
        for number in 0..ATTEMPTS {
            let prepared = self.connected(&slot).and_then(|attempt| Ok((attempt, operation()?)));
            let (attempt, operation) = match prepared {
                Ok(prepared) => prepared,
                Err(error) => {
                    self.slots.end(slot);
                    return Err((error, body));
                }
            };
            if sent_in.is_some_and(|session| session != attempt.epoch) && !operation.is_repeatable() {
                slot.settle();
                self.slots.put(slot);
                self.note_doubt(&operation);
                return Err((Errno::IO.into(), body));
            }
            let began = self.begin(attempt, (cq, key, number), &mut slot, &operation, body);
            match began {
                Ok(Begun { sequence, under_way, body }) => {
                    let (channel, began) = (attempt.channel, Instant::now());
                    return Ok(Queued {
                        slot,
                        epoch: attempt.epoch,
                        sequence,
                        attempt: number,
                        channel,
                        began,
                        under_way,
                        body,
                        fills,
                        answer: None,
                    });
                }
                Err((Failure::Final(error), returned)) => {
                    self.slots.end(slot);
                    return Err((error, returned));
                }
                Err((failure, returned)) => {
                    self.lose(attempt.channel);
                    (sent_in, body) = (failure.sent_in(attempt.epoch).or(sent_in), returned);
                    if fills && matches!(body, Body::Empty) {
                        break; // its memory is lost with the receive
                    }
                }
            }
        }
        self.slots.end(slot);
        Err((Errno::IO.into(), body))
    }

    /// Starts the operations of a request: it is sent, a receive for its answer is posted, long data are sent.
    fn begin(
        &self,
        Attempt { channel, epoch }: Attempt,
        (cq, key, attempt): (CqId, u64, u64),
        slot: &mut Slot,
        operation: &Operation<'_>,
        body: Body,
    ) -> std::result::Result<Begun, (Failure, Body)> {
        let options =
            |kind| CompletionOptions { cq: Some(cq), user_data: user_data(key, attempt, kind), errors_only: false };
        let (number, sequence) = slot.request(epoch);
        let data = match &body {
            Body::Data(data) => data.bytes(0, data.len()),
            Body::Empty | Body::Into(_) => &[],
        };
        let Ok(length) = u32::try_from(data.len()) else { return Err((Failure::Final(Errno::INVAL.into()), body)) };
        slot.message.clear();
        append(
            &Request { slot: number, sequence, data: length, identity: None, operation: operation.clone() },
            &mut slot.message,
        );
        let Some(inline) = inline_data(&slot.message, data) else {
            slot.not_sent();
            return Err((Failure::Final(Errno::NAMETOOLONG.into()), body));
        };
        let is_long = inline.len() < data.len();
        let message = |tag| Outgoing { channel, tag, headers: &[], mode: Mode::Automatic };
        if let Err(error) = self.node.try_inject(&message(request_tag(number)), &[&slot.message, inline]) {
            slot.not_sent();
            if error == Error::WouldBlock {
                let _ = self.node.progress(); // for the next attempt of the caller
                return Err((Failure::Final(Errno::AGAIN.into()), body));
            }
            return Err((Failure::unsent(error), body));
        }
        slot.doubt();
        let (body, into) = match body {
            Body::Into(OperationMemory::User(user)) => {
                (Body::Into(OperationMemory::User(user)), OperationMemory::User(user))
            }
            // It comes back with the completion.
            Body::Into(into) => (Body::Empty, into),
            body => (body, OperationMemory::Owned(Vec::new())),
        };
        let from = RecvFrom::Channel(channel);
        if let Err(error) = self.node.post(from, answer_tag(number), 0, into, options(ANSWER)) {
            return Err((Failure::of(error), body));
        }
        let mut under_way = 1;
        let body = match body {
            Body::Data(data) if is_long => {
                let kept =
                    if let OperationMemory::User(user) = &data { Some(OperationMemory::User(*user)) } else { None };
                match self.send_data(&message(data_tag(number)), data, options(DATA)) {
                    Ok(started) => {
                        under_way += u32::from(started);
                        kept.map_or(Body::Empty, Body::Data)
                    }
                    // The link is lost, so the receive completes as lost, and the request is made again.
                    Err(returned) => Body::Data(returned),
                }
            }
            body => body,
        };
        self.counters.sent(operation, length as usize);
        Ok(Begun { sequence, under_way, body })
    }

    /// Starts to send data. Returns whether a completion follows; an error, with the memory: the link is lost.
    fn send_data(
        &self,
        message: &Outgoing<'_>,
        mut data: OperationMemory,
        options: CompletionOptions,
    ) -> std::result::Result<bool, OperationMemory> {
        loop {
            match self.node.start_send(message, data, Vec::new(), options) {
                Ok(started) => return Ok(started.is_some()),
                Err((Error::WouldBlock, returned, _)) => {
                    data = returned;
                    // The request is sent: its data follow as soon as there is room.
                    if self.node.progress().is_err() {
                        return Err(data);
                    }
                    std::thread::yield_now();
                }
                Err((_, returned, _)) => {
                    self.lose(message.channel);
                    return Err(returned);
                }
            }
        }
    }

    /// Ends a request whose operations have all completed; makes it again, and waits, if the connection was lost. Returns its answer, with the number of
    /// bytes that were read, and its memory.
    pub fn end<'a>(
        &self,
        queued: Queued,
        operation: impl Fn() -> Result<Operation<'a>>,
    ) -> (Result<(Reply, usize)>, Body) {
        let Queued { mut slot, epoch, channel, mut body, answer, .. } = queued;
        let result = match answer {
            Some(Ok((reply, length))) => {
                slot.settle();
                self.counters.answered(&reply, length);
                Ok((reply, length))
            }
            Some(Err(Failure::Final(error))) => {
                slot.settle();
                self.counters.failed();
                Err(error)
            }
            Some(Err(failure)) => {
                self.lose(channel);
                self.slots.abandon(slot);
                return (Err(failure.into_error()), body);
            }
            None => {
                self.lose(channel);
                let mut again =
                    |data: &[u8], into: &mut [u8]| self.call_in(&mut slot, None, &operation, data, into, Some(epoch));
                match &mut body {
                    Body::Empty => again(&[], &mut []),
                    Body::Data(data) => again(data.bytes(0, data.len()), &mut []),
                    Body::Into(into) => {
                        let length = into.len();
                        into.write(0, length, |into| again(&[], into))
                    }
                }
            }
        };
        self.slots.end(slot);
        (result, body)
    }

    /// Ends a request whose queue is closed. Its operations have all completed.
    pub fn drop_request(&self, queued: Queued) {
        let Queued { mut slot, answer, .. } = queued;
        if let Some(Ok(_) | Err(Failure::Final(_))) = answer {
            slot.settle();
        }
        self.slots.end(slot);
    }
}

/// The operations of a request that has begun.
struct Begun {
    sequence: u32,
    under_way: u32,
    body: Body,
}
