//! Requests: from the message to the answer.

use super::backlog::{Beginning, Postponed};
use super::notices::Changes;
use super::patience::{Answering, Awaited, Wait};
use super::session::{Admitted, Session};
use super::{Buffers, Shared, Turn};
use crate::Result;
use crate::identity::Identity;
use crate::protocol::{
    Answer, MAX_DATA_BYTES, Operation, Reply, Request, SessionKey, VERSION, answer_tag, append, data_tag,
    parse_request, request_tag,
};
use crate::storage::{Body, execute, range_of_read, waits};
use motet::node::{Channel, CompletionOptions, Error, Mode, OperationMemory, Outgoing, RecvFrom, Status};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How often what an answer shows is looked at, while others change it all the time, before its client forgets all that it has cached.
const MOST_LOOKS: usize = 8;
/// Data of more bytes are written by a thread that has given the turn away: another one receives meanwhile.
const LONG_DATA_BYTES: usize = 64 << 10;

/// How a wait for a client has ended.
pub(super) struct Waited {
    /// The status of its operation.
    pub status: Status,
    /// Bytes that have arrived.
    pub length: u64,
    /// The buffer.
    pub memory: Vec<u8>,
}

impl Shared {
    /// Executes one request and answers it, unless its client must be waited for: then that comes later.
    pub(super) fn serve(
        self: &Arc<Self>,
        channel: Channel,
        tag: u64,
        message: &[u8],
        buffers: &mut Buffers,
        turn: &mut Turn<'_>,
    ) {
        let Some((request, inline)) = parse(message, tag) else { return self.refuse(channel) };
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        match (&request.operation, &self.tickets) {
            (&Operation::Attach { version, resume }, None) => return self.attach(channel, version, resume, None),
            (&Operation::AttachMember { version, resume, ticket }, Some(tickets)) => {
                return match tickets.redeem(&ticket) {
                    Some(member) => self.attach(channel, version, resume, Some(member)),
                    None => self.refuse(channel),
                };
            }
            (&Operation::Subscribe { session }, _) => return self.subscribe(channel, session),
            (Operation::Attach { .. } | Operation::AttachMember { .. }, _) => return self.refuse(channel),
            _ => {}
        }
        let Some(session) = self.sessions.of(channel) else { return self.refuse(channel) };
        self.admit(&session, channel, (tag, message), (&request, inline), buffers, turn);
    }

    /// Decides when a request of a session is executed: at once, when the client occupies fewer threads, or when it has taken what it is sent.
    fn admit(
        self: &Arc<Self>,
        session: &Arc<Session>,
        channel: Channel,
        (tag, message): (u64, &[u8]),
        (request, inline): (&Request<'_>, &[u8]),
        buffers: &mut Buffers,
        turn: &mut Turn<'_>,
    ) {
        let postponed = || Postponed { channel, tag, message: message.to_vec() };
        let operation = &request.operation;
        if session.threads().is_full(operation) {
            let is_read = matches!(operation, Operation::Read { .. }) && !self.tree.is_in_memory();
            if is_read || waits(&self.tree, session.files(), operation) {
                if !session.threads().hold(postponed()) {
                    return self.refuse(channel);
                }
                self.wait_for_thread(session);
                if !session.threads().is_full(operation) {
                    // A thread has become free before the request was held.
                    self.resumable.add(session);
                }
                return;
            }
        }
        match session.backlog().admit(|| self.patience.is_strained(), postponed) {
            Beginning::Now => self.begin((session, channel), request, (message, inline), buffers, turn),
            Beginning::Later => {}
            Beginning::Never => self.refuse(channel),
        }
    }

    /// Executes the next request of a session that was held or postponed, if it may be executed now.
    pub(super) fn resume(self: &Arc<Self>, session: &Arc<Session>, buffers: &mut Buffers, turn: &mut Turn<'_>) {
        if session.threads().holds() {
            // Before the question whether a thread is free, so that one that becomes free finds the session.
            self.wait_for_thread(session);
        }
        if let Some(Postponed { channel, tag, message }) = session.threads().next() {
            // There may be more of both kinds.
            self.resumable.add(session);
            if session.channel() == Some(channel)
                && let Some((request, inline)) = parse(&message, tag)
            {
                self.admit(session, channel, (tag, &message), (&request, inline), buffers, turn);
            }
            return;
        }
        let Some((postponed, more)) = session.backlog().next(|| self.patience.is_strained()) else { return };
        if more {
            // Before this thread gives the turn away, so that the next one finds it.
            self.resumable.add(session);
        }
        let Postponed { channel, tag, message } = postponed;
        // What came on a lost channel comes again.
        if session.channel() == Some(channel)
            && let Some((request, inline)) = parse(&message, tag)
        {
            self.begin((session, channel), &request, (&message, inline), buffers, turn);
        }
    }

    /// The requests of a session are held until one of its threads is free, or one that another client of its user occupies.
    fn wait_for_thread(&self, session: &Arc<Session>) {
        if session.member().is_some() {
            self.without_threads.add(session);
        }
    }

    /// Begins with a request: executes it, or waits for its data.
    fn begin(
        self: &Arc<Self>,
        (session, channel): (&Arc<Session>, Channel),
        request: &Request<'_>,
        (message, inline): (&[u8], &[u8]),
        buffers: &mut Buffers,
        turn: &mut Turn<'_>,
    ) {
        let length = request.data as usize;
        if length == inline.len() {
            return self.run(session, channel, request, inline, buffers, turn);
        }
        if !inline.is_empty() || length > MAX_DATA_BYTES || !request.operation.takes_data() {
            return self.refuse(channel);
        }
        session.backlog().begin_wait();
        let wait = Wait::new(session, channel, Awaited::Data(message.to_vec()), length);
        let number = self.patience.begin(wait);
        let options = CompletionOptions { cq: Some(self.cq), user_data: number, errors_only: false };
        let memory = OperationMemory::Owned(self.patience.buffer(length));
        if self.node.post(RecvFrom::Channel(channel), data_tag(request.slot), 0, memory, options).is_err() {
            self.give_up(number);
            self.refuse(channel);
        }
    }

    /// What was waited for is here, or will not come: data of a request, or the word that an answer was taken.
    pub(super) fn waited(
        self: &Arc<Self>,
        number: u64,
        completion: Waited,
        buffers: &mut Buffers,
        turn: &mut Turn<'_>,
    ) {
        let Waited { status, length, memory } = completion;
        if let Some(Wait { session, channel, awaited, .. }) = self.give_up(number) {
            match (awaited, status) {
                // What came on a lost channel comes again.
                (Awaited::Data(_), _) if session.channel() != Some(channel) => {}
                (Awaited::Data(message), Status::Done) if length == memory.len() as u64 => {
                    if memory.len() > LONG_DATA_BYTES {
                        turn.give(&session);
                    }
                    if let Some((request, _)) = parse_request(&message) {
                        self.run(&session, channel, &request, &memory, buffers, turn);
                    }
                }
                (Awaited::Taken, Status::Done) | (_, Status::LinkDown) => {}
                _ => self.refuse(channel),
            }
        }
        self.patience.put_buffer(memory);
    }

    /// Executes a request with its data, and answers it.
    fn run(
        self: &Arc<Self>,
        session: &Arc<Session>,
        channel: Channel,
        request: &Request<'_>,
        data: &[u8],
        buffers: &mut Buffers,
        turn: &mut Turn<'_>,
    ) {
        // The data were waited for before: a request whose data are lost with the connection is not under way, and may come again.
        match session.admit(request) {
            Admitted::Execute if self.starts_ring_read(session, request) || self.answer_from_file(session, request) => {
            }
            Admitted::Execute => {
                let result = match request.operation {
                    Operation::Detach => Ok((Reply::Done, Body::Empty)),
                    ref operation => {
                        let buffer = self.buffer_for(operation, &mut buffers.read);
                        let identity = session.member().or(request.identity.as_ref());
                        self.execute(session, identity, operation, data, buffer, turn)
                    }
                };
                self.count(&request.operation, &result);
                self.answer(session, request, result, buffers);
                if request.operation == Operation::Detach {
                    self.end_notices(session);
                    self.sessions.detach(session);
                }
            }
            Admitted::Repeat(headers, body) => {
                self.send(session, channel, request.slot, &headers, Body::Owned(body), buffers);
            }
            Admitted::Running => {}
            Admitted::Refused => self.refuse(channel),
        }
    }

    /// The thread's buffer, long enough for what an operation reads.
    pub(super) fn buffer_for<'a>(&self, operation: &Operation<'_>, buffer: &'a mut Vec<u8>) -> &'a mut [u8] {
        if let Operation::Read { length, .. } = *operation {
            let length = (length as usize).min(MAX_DATA_BYTES);
            if buffer.capacity() == 0 {
                *buffer = self.patience.buffer(length);
            } else if buffer.len() < length {
                buffer.resize(length, 0);
            }
        }
        buffer
    }

    /// Executes an operation of a client, and tells the others what it has changed.
    fn execute(
        &self,
        session: &Arc<Session>,
        identity: Option<&Identity>,
        operation: &Operation<'_>,
        data: &[u8],
        buffer: &mut [u8],
        turn: &mut Turn<'_>,
    ) -> Result<(Reply, Body)> {
        let mut execute = |turn: &mut Turn<'_>| {
            execute(&self.tree, session.files(), identity, operation, data, buffer, &mut || turn.give(session))
        };
        let other = self.other_part();
        if self.leases.is_unused() && other.as_ref().is_none_or(|other| other.leases.is_unused()) {
            return execute(turn);
        }
        let file = |number| Some(session.files().get(number).ok()?.identity());
        if operation.is_change() && waits(&self.tree, session.files(), operation) {
            // What changes is looked at first.
            turn.give(session);
        }
        let changes = Changes::of(&self.tree, operation, file);
        let (reply, body) = self.execute_leased(session, operation, || execute(turn))?;
        self.tell(session, &changes, other.as_deref(), turn);
        Ok((reply, body))
    }

    /// Executes an operation, and gives the client leases on what the answer shows. A change before they began brings no notice, so what only looks is
    /// executed again then.
    fn execute_leased(
        &self,
        session: &Session,
        operation: &Operation<'_>,
        mut execute: impl FnMut() -> Result<(Reply, Body)>,
    ) -> Result<(Reply, Body)> {
        let (mut before, mut looks) = (Vec::new(), 0);
        loop {
            looks += 1;
            let changes = self.leases.changes();
            let (reply, body) = execute()?;
            let granted = self.grant(session, operation, (&reply, &body));
            // With these leases from before, the client learns of everything since then.
            let learns = before == granted || changes == self.leases.changes();
            if learns {
                return Ok((reply, body));
            }
            if !operation.is_idempotent() {
                self.recall(session, operation, &reply);
                return Ok((reply, body));
            }
            if looks == MOST_LOOKS {
                self.end_notices(session);
                return Ok((reply, body));
            }
            before = granted;
        }
    }

    /// Begins a session on a new channel, or goes on with one. The thread has the turn, so the loss of the channel is seen after this.
    fn attach(&self, channel: Channel, version: u32, resume: Option<SessionKey>, member: Option<Identity>) {
        if !self.watch(channel) {
            return self.refuse(channel);
        }
        let (read_only, identities) = (self.tree.is_read_only(), self.tree.has_identities() && member.is_none());
        let result = match version {
            VERSION => self.sessions.attach(channel, resume, member, |key| self.lost_locks.has(key)),
            _ => Err(Errno::PROTONOSUPPORT.into()),
        };
        let result = result
            .map(|(key, resumed)| Reply::Attached { key, read_only, resumed, identities, boot: self.boot })
            .map_err(|error| errno(&error));
        let mut headers = Vec::new();
        append(&Answer { sequence: 0, result }, &mut headers);
        self.send_first(channel, &headers);
    }

    /// The client of a session gets notices on this channel.
    fn subscribe(&self, channel: Channel, session: SessionKey) {
        if !self.watch(channel) {
            return self.refuse(channel);
        }
        let Some((session, before)) = self.sessions.subscribe(session, channel) else { return self.refuse(channel) };
        self.leases.subscribe(session.key());
        if let Some(before) = before {
            self.refuse(before);
        }
        let mut headers = Vec::new();
        append(&Answer { sequence: 0, result: Ok(Reply::Done) }, &mut headers);
        self.send_first(channel, &headers);
    }

    pub(super) fn count(&self, operation: &Operation<'_>, result: &Result<(Reply, Body)>) {
        if let Ok((Reply::Count(bytes), _)) = result {
            let counter = match operation {
                Operation::Read { .. } => &self.counters.bytes_read,
                Operation::Write { .. } | Operation::Append { .. } => &self.counters.bytes_written,
                _ => return,
            };
            counter.fetch_add(*bytes, Ordering::Relaxed);
        }
    }

    pub(super) fn answer(
        &self,
        session: &Arc<Session>,
        request: &Request<'_>,
        result: Result<(Reply, Body)>,
        buffers: &mut Buffers,
    ) {
        let (result, body) = match result {
            Ok((reply, body)) => (Ok(reply), body),
            Err(error) => (Err(errno(&error)), Body::Empty),
        };
        let mut headers = std::mem::take(&mut buffers.headers);
        headers.clear();
        append(&Answer { sequence: request.sequence, result }, &mut headers);
        let keep = (!request.operation.is_idempotent()).then(|| (&headers[..], body.bytes(&buffers.read)));
        let body = if session.answered(request, keep) {
            body
        } else {
            // It is about a file that the end of the session's files has closed.
            headers.clear();
            append(&Answer { sequence: request.sequence, result: Err(Errno::STALE.raw_os_error()) }, &mut headers);
            Body::Empty
        };
        // The client may have come back on another channel meanwhile; if it is away, it asks again.
        if let Some(channel) = session.channel() {
            self.send(session, channel, request.slot, &headers, body, buffers);
        }
        buffers.headers = headers;
    }

    /// Answers a long read with what is in the file, if the way to the client sends from files. False: it is not answered.
    fn answer_from_file(&self, session: &Arc<Session>, request: &Request<'_>) -> bool {
        let Operation::Read { file, offset, length } = request.operation else { return false };
        let Some(channel) = session.channel().filter(|&channel| self.node.sends_files(channel)) else { return false };
        let Some(range) = range_of_read(&self.tree, session.files(), file, offset, length) else { return false };
        let count = range.len();
        let mut headers = Vec::new();
        append(&Answer { sequence: request.sequence, result: Ok(Reply::Count(count)) }, &mut headers);
        // Before the client can have the answer. It may be read once more if it is not sent.
        session.answered(request, None);
        session.backlog().begin_wait();
        let number = self.patience.begin(Wait::new(session, channel, Awaited::Taken, 0));
        let message = Outgoing { channel, tag: answer_tag(request.slot), headers: &headers, mode: Mode::Automatic };
        let options = CompletionOptions { cq: Some(self.cq), user_data: number, errors_only: false };
        let sent = self.node.start_send_file(&message, range, options);
        if !matches!(sent, Ok(Some(_))) {
            self.give_up(number);
        }
        if sent.is_ok() {
            self.counters.bytes_read.fetch_add(count, Ordering::Relaxed);
        }
        sent.is_ok()
    }

    /// Sends an answer. No thread waits until the client takes it.
    fn send(
        &self,
        session: &Arc<Session>,
        channel: Channel,
        slot: u16,
        headers: &[u8],
        body: Body,
        buffers: &mut Buffers,
    ) {
        let message = Outgoing { channel, tag: answer_tag(slot), headers, mode: Mode::Automatic };
        match self.node.try_inject(&message, &[body.bytes(&buffers.read)]) {
            Ok(()) => {}
            Err(Error::WouldBlock | Error::TooLong) => {
                let answering = Answering { slot, headers: headers.to_vec(), body: body.into_bytes(&mut buffers.read) };
                self.answer_later(session, channel, answering);
            }
            Err(_) => self.refuse(channel),
        }
    }

    /// Sends an answer that the client has to take first, or has no room for.
    pub(super) fn answer_later(&self, session: &Arc<Session>, channel: Channel, answering: Answering) {
        let bytes = answering.body.len();
        session.backlog().begin_wait();
        self.begin_answer(Wait::new(session, channel, Awaited::Room(answering), bytes));
    }

    /// Begins to send an answer that waits for room. If there is none, it goes on waiting.
    pub(super) fn begin_answer(&self, mut wait: Wait) {
        let Awaited::Room(answering) = std::mem::replace(&mut wait.awaited, Awaited::Taken) else { return };
        let Answering { slot, headers, body } = answering;
        let channel = wait.channel;
        let message = Outgoing { channel, tag: answer_tag(slot), headers: &headers, mode: Mode::Automatic };
        let number = self.patience.begin(wait);
        let options = CompletionOptions { cq: Some(self.cq), user_data: number, errors_only: false };
        match self.node.start_send(&message, OperationMemory::Owned(body), Vec::new(), options) {
            Ok(Some(_)) => {}
            Err((Error::WouldBlock, OperationMemory::Owned(body), _)) => {
                if let Some(mut wait) = self.patience.end(number) {
                    wait.awaited = Awaited::Room(Answering { slot, headers, body });
                    self.patience.begin(wait);
                }
            }
            failed => {
                self.give_up(number);
                if failed.is_err() {
                    self.refuse(channel);
                }
            }
        }
    }

    /// Answers the first request of a channel, on which there is room unless its client has broken the protocol.
    fn send_first(&self, channel: Channel, headers: &[u8]) {
        let message = Outgoing { channel, tag: answer_tag(0), headers, mode: Mode::Automatic };
        if self.node.try_inject(&message, &[]).is_err() {
            self.refuse(channel);
        }
    }

    /// Nothing is waited for any more under this number. Postponed requests of the client may be executed.
    fn give_up(&self, number: u64) -> Option<Wait> {
        let wait = self.patience.end(number)?;
        self.wait_ended(&wait.session);
        Some(wait)
    }

    /// A client is not waited for any more.
    pub(super) fn wait_ended(&self, session: &Arc<Session>) {
        if session.backlog().end_wait() {
            self.resumable.add(session);
        }
    }
}

/// The request in a message, and the data behind it. `None`: it is no request, or its slot is not that of the message.
fn parse(message: &[u8], tag: u64) -> Option<(Request<'_>, &[u8])> {
    parse_request(message).filter(|(request, _)| request_tag(request.slot) == tag)
}

/// The error number of an error.
fn errno(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(Errno::IO.raw_os_error())
}
