//! What the threads of a server do: they receive requests in turns, and notice what is lost.

use super::patience::{Due, is_wait};
use super::requests::Waited;
use super::session::Session;
use super::{ACKNOWLEDGEMENTS, Buffers, REQUESTS, Shared, Turn};
use crate::Result;
use crate::engine_error as failed;
use crate::protocol::{NEVER, SERVICE, SLOT_MASK, acknowledgement_tag, parse_acknowledgement, request_tag};
use motet::node::{Channel, Completion, CompletionOptions, Error, OperationMemory, RecvFrom, Status};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

impl Shared {
    /// Posts a receive for a request.
    pub(super) fn post(&self, memory: Vec<u8>) -> Result<()> {
        let options = CompletionOptions { cq: Some(self.cq), user_data: REQUESTS, errors_only: false };
        let memory = OperationMemory::Owned(memory);
        self.node
            .post(RecvFrom::Any(self.context), request_tag(0), SLOT_MASK, memory, options)
            .map(drop)
            .map_err(failed)
    }

    /// Posts a receive for an acknowledgement.
    pub(super) fn post_acknowledgement(&self, memory: Vec<u8>) -> Result<()> {
        let options = CompletionOptions { cq: Some(self.cq), user_data: ACKNOWLEDGEMENTS, errors_only: false };
        let memory = OperationMemory::Owned(memory);
        self.node.post(RecvFrom::Any(self.context), acknowledgement_tag(), 0, memory, options).map(drop).map_err(failed)
    }

    /// Accepts channels up to this one, and watches each for its loss. False: this one is lost already.
    ///
    /// The first request of a client calls this. A thread that waited for channels would run the node's progress in turns with the one that waits for
    /// requests, which costs two switches of threads for each request.
    pub(super) fn accept(&self, channel: Channel) -> bool {
        while let Ok(accepted) = self.node.accept(SERVICE, Some(Duration::ZERO)) {
            let user_data = self.sessions.watch(accepted);
            let options = CompletionOptions { cq: Some(self.cq), user_data, errors_only: false };
            let memory = OperationMemory::Owned(Vec::new());
            if self.node.post(RecvFrom::Channel(accepted), NEVER, 0, memory, options).is_err() {
                self.lost(user_data);
            }
            if accepted == channel {
                break;
            }
        }
        self.sessions.is_watched(channel)
    }

    /// Ends sessions whose clients do not come back.
    pub(super) fn expire(&self) {
        let ends = |session: &Session| {
            if session.files().lock_owners() > 0 {
                self.lost_locks.note(session.key());
            }
            session.end_files()
        };
        while self.sessions.expire(ends) {}
    }

    /// Executes requests until the node is shut down.
    pub(super) fn work(self: &Arc<Self>) {
        let mut buffers = Buffers { read: Vec::new(), headers: Vec::new() };
        loop {
            let mut turn = Turn::new(self.turn.lock().unwrap_or_else(PoisonError::into_inner));
            while turn.held.is_some() {
                if let Some(session) = self.resumable.next() {
                    self.resume(&session, &mut buffers, &mut turn);
                    continue;
                }
                match self.node.wait_cq(self.cq, None) {
                    Ok(Completion {
                        user_data: REQUESTS, status, channel, length, tag, memory: Some(memory), ..
                    }) => {
                        let message = memory.get(..length as usize).unwrap_or(&[]);
                        match (status, channel) {
                            (Status::Done, Some(channel)) => self.serve(channel, tag, message, &mut buffers, &mut turn),
                            // Longer than any request.
                            (Status::Truncated, Some(channel)) => self.refuse(channel),
                            _ => {}
                        }
                        if self.post(memory).is_err() {
                            return;
                        }
                        // The wait makes no progress while there are completions: clients beyond the posted receives would starve.
                        let _ = self.node.progress();
                    }
                    Ok(Completion {
                        user_data: ACKNOWLEDGEMENTS,
                        status,
                        channel,
                        length,
                        memory: Some(memory),
                        ..
                    }) => {
                        if let Some(channel) = channel {
                            let whole = memory.get(..length as usize).filter(|_| status == Status::Done);
                            self.acknowledge(channel, whole.unwrap_or(&[]));
                        }
                        if self.post_acknowledgement(memory).is_err() {
                            return;
                        }
                    }
                    Ok(Completion { user_data: REQUESTS | ACKNOWLEDGEMENTS, .. }) => {}
                    Ok(Completion { user_data, status, length, memory, .. }) if is_wait(user_data) => {
                        let waited = Waited { status, length, memory: memory.unwrap_or_default() };
                        self.waited(user_data, waited, &mut buffers, &mut turn);
                    }
                    Ok(Completion { user_data, .. }) => self.lost(user_data),
                    Err(Error::NoNode(_)) => return,
                    Err(Error::Interrupted) => self.repeat_failed_read(&mut buffers, &mut turn),
                    Err(_) => {}
                }
            }
            self.leave(turn);
        }
    }

    /// A request is over for which the thread has given the turn away. The client's next one may be executed.
    fn leave(&self, turn: Turn<'_>) {
        let Some(session) = turn.given_for else { return };
        let mut continued = Vec::new();
        if session.threads().end() {
            continued.push(Arc::clone(&session));
        }
        if session.member().is_some() {
            continued.extend(self.without_threads.take(&session));
        }
        if !continued.is_empty() {
            continued.iter().for_each(|session| self.resumable.add(session));
            let _ = self.node.signal_cq(self.cq);
        }
    }

    /// Gives up clients that are waited for too long, and tries answers again for which there was no room.
    pub(super) fn look_after_clients(&self) {
        while let Some(Due { given_up, answers }) = self.patience.look() {
            for channel in given_up {
                self.refuse(channel);
            }
            for wait in answers {
                self.begin_answer(wait);
            }
            if self.resumable.is_used() {
                // The thread that waits for requests goes on with them.
                let _ = self.node.signal_cq(self.cq);
            }
        }
    }

    /// The channel is gone, or its client has sent what no client sends.
    fn lost(&self, watched: u64) {
        if let Some(channel) = self.sessions.lose(watched) {
            for wait in self.patience.end_room(channel) {
                self.wait_ended(&wait.session);
            }
            if let Some(session) = self.sessions.lose_notices(channel)
                && session.loses_notices(channel)
            {
                self.leases.unsubscribe(session.key());
            }
            let _ = self.node.close_channel(channel);
        }
    }

    /// A client uses nothing any more of what it was told.
    fn acknowledge(&self, channel: Channel, message: &[u8]) {
        let known = match (self.sessions.of_notices(channel), parse_acknowledgement(message)) {
            (Some(session), Some(number)) => session.acknowledge(channel, number),
            _ => false,
        };
        if !known {
            self.refuse(channel);
        }
    }

    /// Ends the connection of a client that has broken the protocol.
    pub(super) fn refuse(&self, channel: Channel) {
        let _ = self.node.disconnect(channel.link);
    }
}
