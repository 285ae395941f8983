//! Requests: from the message to the answer.

use super::notices::Changes;
use super::session::{Admitted, Session};
use super::{Buffers, CLIENT_LIMIT, Shared, Turn};
use crate::Result;
use crate::identity::Identity;
use crate::protocol::{
    Answer, Operation, Reply, Request, SessionKey, VERSION, answer_tag, append, data_tag, parse_request, request_tag,
};
use crate::storage::{Body, execute};
use motet::node::{Channel, Error, Mode, Outgoing, RecvFrom};
use rustix::io::Errno;
use std::sync::atomic::Ordering;

impl Shared {
    /// Executes one request and answers it.
    pub(super) fn serve(&self, channel: Channel, tag: u64, message: &[u8], buffers: &mut Buffers, turn: &mut Turn<'_>) {
        let parsed = parse_request(message).filter(|(request, _)| request_tag(request.slot) == tag);
        let Some((request, inline)) = parsed else { return self.refuse(channel) };
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        if let Operation::Attach { version, resume } = request.operation {
            return self.attach(channel, version, resume, turn);
        }
        if let Operation::Subscribe { session } = request.operation {
            return self.subscribe(channel, session, turn);
        }
        let Some(session) = self.sessions.of(channel) else { return self.refuse(channel) };
        // Data come first: a request whose data are lost with the connection is not under way, and may come again.
        let Buffers { data, read, headers } = buffers;
        let Some(data) = self.data(channel, &request, inline, data, turn) else { return self.refuse(channel) };
        match session.admit(&request) {
            Admitted::Execute => {
                let result = match request.operation {
                    Operation::Detach => Ok((Reply::Done, Body::Empty)),
                    ref operation => self.execute(&session, request.identity.as_ref(), operation, data, read, turn),
                };
                self.count(&request.operation, &result);
                self.answer(&session, &request, result, read, headers, turn);
                if request.operation == Operation::Detach {
                    self.end_notices(&session);
                    self.sessions.detach(&session);
                }
            }
            Admitted::Repeat(headers, body) => self.send(channel, request.slot, &headers, &body, turn),
            Admitted::Running => {}
            Admitted::Refused => self.refuse(channel),
        }
    }

    /// Executes an operation of a client, and tells the others what it has changed.
    fn execute(
        &self,
        session: &Session,
        identity: Option<&Identity>,
        operation: &Operation<'_>,
        data: &[u8],
        buffer: &mut [u8],
        turn: &mut Turn<'_>,
    ) -> Result<(Reply, Body)> {
        let mut execute = |turn: &mut Turn<'_>| {
            execute(&self.tree, session.files(), identity, operation, data, buffer, &mut || turn.give())
        };
        if self.leases.is_unused() {
            return execute(turn);
        }
        let file = |number| Some(session.files().get(number).ok()?.identity());
        let changes = Changes::of(&self.tree, operation, file);
        let count = self.leases.changes();
        let (reply, body) = execute(turn)?;
        self.grant(session, operation, (&reply, &body), count);
        self.tell(session, &changes, turn);
        Ok((reply, body))
    }

    /// The data of a request: in its message, or in one that follows.
    fn data<'a>(
        &self,
        channel: Channel,
        request: &Request<'_>,
        inline: &'a [u8],
        buffer: &'a mut [u8],
        turn: &mut Turn<'_>,
    ) -> Option<&'a [u8]> {
        let length = request.data as usize;
        if length == inline.len() {
            return Some(inline);
        }
        if !inline.is_empty() {
            return None;
        }
        let buffer = buffer.get_mut(..length)?;
        turn.give();
        let from = RecvFrom::Channel(channel);
        let received = self.node.receive_tagged(from, data_tag(request.slot), 0, buffer, Some(CLIENT_LIMIT)).ok()?;
        (received.length == length).then_some(&*buffer)
    }

    /// Begins a session on a new channel, or goes on with one. The thread has the turn, so the loss of the channel is seen after this.
    fn attach(&self, channel: Channel, version: u32, resume: Option<SessionKey>, turn: &mut Turn<'_>) {
        if !self.accept(channel) {
            return self.refuse(channel);
        }
        let result =
            if version == VERSION { self.sessions.attach(channel, resume) } else { Err(Errno::PROTONOSUPPORT.into()) };
        let (read_only, identities) = (self.tree.is_read_only(), self.tree.has_identities());
        let result = result
            .map(|(key, resumed)| Reply::Attached { key, read_only, resumed, identities, boot: self.boot })
            .map_err(|error| errno(&error));
        let mut headers = Vec::new();
        append(&Answer { sequence: 0, result }, &mut headers);
        self.send(channel, 0, &headers, &[], turn);
    }

    /// The client of a session gets notices on this channel.
    fn subscribe(&self, channel: Channel, session: SessionKey, turn: &mut Turn<'_>) {
        if !self.accept(channel) {
            return self.refuse(channel);
        }
        let Some((session, before)) = self.sessions.subscribe(session, channel) else { return self.refuse(channel) };
        self.leases.subscribe(session.key());
        if let Some(before) = before {
            self.refuse(before);
        }
        let mut headers = Vec::new();
        append(&Answer { sequence: 0, result: Ok(Reply::Done) }, &mut headers);
        self.send(channel, 0, &headers, &[], turn);
    }

    fn count(&self, operation: &Operation<'_>, result: &Result<(Reply, Body)>) {
        if let Ok((Reply::Count(bytes), _)) = result {
            let counter = match operation {
                Operation::Read { .. } => &self.counters.bytes_read,
                Operation::Write { .. } => &self.counters.bytes_written,
                _ => return,
            };
            counter.fetch_add(*bytes, Ordering::Relaxed);
        }
    }

    fn answer(
        &self,
        session: &Session,
        request: &Request<'_>,
        result: Result<(Reply, Body)>,
        buffer: &[u8],
        headers: &mut Vec<u8>,
        turn: &mut Turn<'_>,
    ) {
        let (result, body) = match result {
            Ok((reply, body)) => (Ok(reply), body),
            Err(error) => (Err(errno(&error)), Body::Empty),
        };
        let body = match &body {
            Body::Empty => &[],
            Body::Buffered(length) => buffer.get(..*length).unwrap_or(&[]),
            Body::Owned(bytes) => &bytes[..],
        };
        headers.clear();
        append(&Answer { sequence: request.sequence, result }, headers);
        session.answered(request, (!request.operation.is_idempotent()).then_some((headers, body)));
        // The client may have come back on another channel meanwhile; if it is away, it asks again.
        if let Some(channel) = session.channel() {
            self.send(channel, request.slot, headers, body, turn);
        }
    }

    /// Sends an answer. The thread keeps the turn if it need not wait for the client.
    fn send(&self, channel: Channel, slot: u16, headers: &[u8], body: &[u8], turn: &mut Turn<'_>) {
        let message = Outgoing { channel, tag: answer_tag(slot), headers, mode: Mode::Automatic };
        let sent = match self.node.try_inject(&message, &[body]) {
            Err(Error::WouldBlock | Error::TooLong) => {
                turn.give();
                self.node.send_with(&message, &[body], Some(CLIENT_LIMIT))
            }
            sent => sent,
        };
        if sent.is_err() {
            self.refuse(channel);
        }
    }
}

/// The error number of an error.
fn errno(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(Errno::IO.raw_os_error())
}
