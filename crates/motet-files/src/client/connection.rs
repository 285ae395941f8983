//! The connection of a client: requests in slots, and a new connection when the present one is lost.

mod doubt;
mod owed;
mod queued;
mod reconnect;
mod watch;

pub use owed::Due;
use owed::Owed;
pub use queued::{Body, Queued};

use super::failure::Failure;
use super::locate::Source;
use super::open_files::OpenFiles;
use super::slots::{Slot, Slots};
use super::totals::{Counters, Totals};
use super::waits::{Waits, caller};
use crate::identity::Identity;
use crate::protocol::{
    Answer, Operation, Reply, Request, SessionKey, answer_tag, append, data_tag, inline_data, parse_answer, request_tag,
};
use crate::{Result, engine_error};
use motet::node::{Channel, Error, Mode, Node, Outgoing, RecvFrom, Serve, deadline_in};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long one attempt to connect may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// The pause between two attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

fn deadline_after(limit: Duration) -> u64 {
    deadline_in(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX))
}

/// The connection of a client to a server.
#[derive(Debug)]
pub struct Connection {
    node: Node,
    context: Serve,
    source: Source,
    /// How long a call waits for a server that is away; `None`: until it is back.
    limit: Option<Duration>,
    slots: Slots,
    link: Mutex<Link>,
    /// An attempt to connect has ended.
    connected: Condvar,
    waits: OnceLock<Arc<Waits>>,
    /// What is to be done when the server is back.
    owed: Mutex<VecDeque<Owed>>,
    files: Arc<OpenFiles>,
    closed: AtomicBool,
    counters: Counters,
    began: Instant,
    /// When the last answer came, in milliseconds after `began`.
    answered: AtomicU64,
}

/// How the server is reached.
#[derive(Debug, Default)]
struct Link {
    /// The channel, while it works.
    channel: Option<Channel>,
    session: Session,
    /// Since when the server is away.
    lost: Option<Instant>,
    /// A thread tries to connect.
    connecting: bool,
    /// How many attempts to connect have ended, and when the last one.
    attempts: u64,
    tried: Option<Instant>,
}

/// A session, as the client knows it.
#[derive(Debug, Clone, Copy, Default)]
struct Session {
    key: Option<SessionKey>,
    /// Its number: each session has its own sequence numbers.
    epoch: u64,
    read_only: bool,
    identities: bool,
    /// The start of the server's host.
    boot: [u8; 16],
}

/// Memory of a request.
#[derive(Debug)]
pub struct Memory<'a> {
    /// Data that belong to it.
    pub data: &'a [u8],
    /// Where the body of its answer is written.
    pub into: &'a mut [u8],
}

/// The channel and the session of an attempt.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    channel: Channel,
    epoch: u64,
}

/// What is asked of the server.
#[derive(Debug, Clone, Copy)]
struct Question<'a> {
    /// For whom. `None`: for the client itself.
    identity: Option<&'a Identity>,
    operation: &'a Operation<'a>,
    data: &'a [u8],
}

impl<'a> Question<'a> {
    /// A question of the client itself, without data.
    fn own(operation: &'a Operation<'a>) -> Self {
        Self { identity: None, operation, data: &[] }
    }
}

impl Connection {
    /// Connects to a server. `limit`: as for each call later. `files`: what is opened again at a restarted server.
    pub fn open(source: Source, limit: Option<Duration>, files: Arc<OpenFiles>) -> Result<Self> {
        let node = source.node()?;
        let context = Serve::Tagged(node.context().map_err(engine_error)?);
        let (link, connected, waits, owed) = Default::default();
        let (slots, closed) = (Slots::new(), AtomicBool::new(false));
        let counters = Counters::default();
        let (began, answered) = (Instant::now(), AtomicU64::new(0));
        let connection = Self {
            node,
            context,
            source,
            limit,
            slots,
            link,
            connected,
            waits,
            owed,
            files,
            closed,
            counters,
            began,
            answered,
        };
        // A server that is not there at the beginning is an error, whatever the limit.
        connection.try_to_connect(connection.link()).1?;
        Ok(connection)
    }

    /// Whether the export refuses changes.
    pub fn is_read_only(&self) -> bool {
        self.link().session.read_only
    }

    /// The present session.
    pub fn session(&self) -> Option<SessionKey> {
        let link = self.link();
        link.session.key.filter(|_| link.channel.is_some())
    }

    /// Where the server is found.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// What it has asked for.
    pub fn totals(&self) -> Totals {
        let (open_files, locks) = self.files.counts();
        self.counters.totals(open_files, locks)
    }

    /// What became of its opens with O_DIRECT.
    pub fn direct_opens(&self) -> String {
        self.counters.direct_opens().to_string()
    }

    /// Whether requests are executed as the users that they name.
    pub fn has_identities(&self) -> bool {
        self.link().session.identities
    }

    /// Ends the session. Calls that wait for the server fail with ESHUTDOWN.
    pub fn close(&self) {
        if !self.closed.swap(true, Ordering::SeqCst) {
            let link = self.link();
            let attempt = link.channel.map(|channel| Attempt { channel, epoch: link.session.epoch });
            drop(link);
            if let Some(attempt) = attempt {
                let mut slot = self.slots.take_connection_slot();
                slot.begin();
                let _ =
                    self.attempt(attempt, &mut slot, Question::own(&Operation::Detach), &mut [], Some(CONNECT_LIMIT));
            }
            let _ = self.node.shut_down();
            self.slots.wake_watcher();
        }
    }

    /// Sends a request of a user and returns its answer, with the number of bytes in `into`. `operation` is called for each attempt: the numbers of open files
    /// change when a server has been restarted.
    pub fn call<'a>(
        &self,
        identity: Option<&Identity>,
        operation: impl Fn() -> Result<Operation<'a>>,
        data: &[u8],
        into: &mut [u8],
    ) -> Result<(Reply, usize)> {
        let caller = caller();
        let mut slot = self.slots.take(caller, || self.gives_up(caller)).ok_or(Errno::INTR)?;
        let settled = if slot.is_uncertain() { self.settle(&mut slot) } else { Ok(()) };
        let answered = settled.and_then(|()| {
            slot.begin();
            self.call_in(&mut slot, identity, operation, data, into, None)
        });
        self.end_call(slot);
        answered
    }

    /// Sends several requests before it waits for an answer; returns the answers, each as [`Connection::call`] does. `operation` is called with the position
    /// of a request in `memory`.
    pub fn call_together<'a>(
        &self,
        operation: impl Fn(usize) -> Result<Operation<'a>>,
        memory: &mut [Memory<'_>],
    ) -> Vec<Result<(Reply, usize)>> {
        let mut results = Vec::with_capacity(memory.len());
        let caller = caller();
        while let Some(rest @ [_, ..]) = memory.get_mut(results.len()..) {
            let first = results.len();
            let Some(mut slots) = self.slots.take_several(rest.len(), caller, || self.gives_up(caller)) else {
                results.extend(rest.iter().map(|_| Err(Errno::INTR.into())));
                break;
            };
            let unsettled: Vec<_> =
                slots.iter_mut().map(|slot| if slot.is_uncertain() { self.settle(slot).err() } else { None }).collect();
            let attempt = slots.first().map_or_else(|| Err(Errno::IO.into()), |slot| self.connected(slot));
            let mut sent = Vec::with_capacity(slots.len());
            for (at, ((slot, Memory { data, .. }), unsettled)) in
                slots.iter_mut().zip(rest.iter()).zip(unsettled).enumerate()
            {
                if let Some(error) = unsettled {
                    sent.push(Err(Failure::Final(error)));
                    continue;
                }
                slot.begin();
                sent.push(match (&attempt, operation(first + at)) {
                    (Ok(attempt), Ok(operation)) => {
                        let question = Question { identity: None, operation: &operation, data };
                        self.send(*attempt, slot, question, self.limit)
                    }
                    (_, Err(error)) => Err(Failure::Final(error)),
                    (Err(_), _) => Err(Failure::NotSent),
                });
            }
            for (at, ((mut slot, Memory { data, into }), sent)) in slots.into_iter().zip(rest).zip(sent).enumerate() {
                let answered = match (sent, &attempt) {
                    (Ok(sequence), Ok(attempt)) => self.receive(*attempt, &mut slot, sequence, into, self.limit),
                    (Err(failure), _) => Err(failure),
                    (_, Err(_)) => Err(Failure::NotSent),
                };
                results.push(match answered {
                    Ok(answered) => Ok(answered),
                    Err(Failure::Final(error)) => Err(error),
                    Err(Failure::Broken) => {
                        if let Ok(attempt) = &attempt {
                            self.lose(attempt.channel);
                        }
                        Err(Failure::Broken.into_error())
                    }
                    Err(failure) => {
                        let sent_in = attempt.as_ref().ok().and_then(|attempt| failure.sent_in(attempt.epoch));
                        if let Ok(attempt) = &attempt {
                            self.lose(attempt.channel);
                        }
                        self.call_in(&mut slot, None, || operation(first + at), data, into, sent_in)
                    }
                });
            }
        }
        results
    }

    fn link(&self) -> std::sync::MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The channel is lost: the next call connects again.
    fn lose(&self, channel: Channel) {
        let mut link = self.link();
        if link.channel == Some(channel) {
            link.channel = None;
            let _ = self.node.disconnect(channel.link);
        }
    }

    /// Sends a request once, and receives its answer.
    fn attempt(
        &self,
        attempt: Attempt,
        slot: &mut Slot,
        question: Question<'_>,
        into: &mut [u8],
        limit: Option<Duration>,
    ) -> std::result::Result<(Reply, usize), Failure> {
        let sequence = self.send(attempt, slot, question, limit)?;
        self.receive(attempt, slot, sequence, into, limit)
    }

    /// Sends a request; returns its number in its slot.
    fn send(
        &self,
        attempt: Attempt,
        slot: &mut Slot,
        question: Question<'_>,
        limit: Option<Duration>,
    ) -> std::result::Result<u32, Failure> {
        let Attempt { channel, epoch } = attempt;
        let Question { identity, operation, data } = question;
        let (number, sequence) = slot.request(epoch);
        let data_bytes = u32::try_from(data.len()).map_err(|_| Failure::Final(Errno::INVAL.into()))?;
        slot.message.clear();
        let owned = (identity.cloned(), operation.clone());
        append(
            &Request { slot: number, sequence, data: data_bytes, identity: owned.0, operation: owned.1 },
            &mut slot.message,
        );
        self.counters.sent(operation, data.len());
        let Some(inline) = inline_data(&slot.message, data) else {
            slot.not_sent();
            return Err(Failure::Final(Errno::NAMETOOLONG.into()));
        };
        let message = |tag| Outgoing { channel, tag, headers: &[], mode: Mode::Automatic };
        let request = message(request_tag(number));
        let parts: &[&[u8]] = if inline.is_empty() { &[&slot.message] } else { &[&slot.message, inline] };
        let sent = match self.node.try_inject(&request, parts) {
            Err(Error::WouldBlock) => self.node.inject(&request, parts, limit.map(deadline_after)),
            sent => sent,
        };
        // One packet is sent or not.
        if let Err(error) = sent {
            slot.not_sent();
            return Err(Failure::unsent(error));
        }
        slot.doubt();
        if inline.len() < data.len() {
            self.node.send_with(&message(data_tag(number)), &[data], limit).map_err(Failure::of)?;
        }
        Ok(sequence)
    }

    /// Receives the answer to the request with this number in its slot.
    fn receive(
        &self,
        attempt: Attempt,
        slot: &mut Slot,
        sequence: u32,
        into: &mut [u8],
        limit: Option<Duration>,
    ) -> std::result::Result<(Reply, usize), Failure> {
        let (from, tag) = (RecvFrom::Channel(attempt.channel), answer_tag(slot.number()));
        let received = self.node.receive_with(from, tag, 0, &mut slot.headers, into, limit).map_err(Failure::of)?;
        let result = match parse_answer(&slot.headers) {
            Some(Answer { sequence: answered, result }) if answered == sequence => result,
            _ => return Err(Failure::Broken),
        };
        slot.settle();
        self.answered.store(self.now(), Ordering::Relaxed);
        match result {
            Ok(reply) => {
                self.counters.answered(&reply, received.length);
                Ok((reply, received.length))
            }
            Err(errno) => {
                self.counters.failed();
                Err(Failure::Final(std::io::Error::from_raw_os_error(errno)))
            }
        }
    }
}
