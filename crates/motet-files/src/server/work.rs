//! What the threads of a server do: they receive requests in turns, and notice what is lost.

use super::patience::{Due, is_wait};
use super::receives::Expected;
use super::requests::Waited;
use super::session::Session;
use super::{ACKNOWLEDGEMENTS, Buffers, REQUESTS, Shared, Turn};
use crate::protocol::parse_acknowledgement;
use motet::node::{Channel, Completion, Error, Status};
use std::sync::{Arc, PoisonError};

impl Shared {
    /// Ends sessions whose clients do not come back.
    pub(super) fn expire(&self) {
        let ends = |session: &Session| {
            if session.files().lock_owners() > 0 {
                self.lost_locks.note(session.key(), session.member().map(|member| member.user));
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
                let retry = self.post_owed();
                match self.node.wait_cq(self.cq, retry) {
                    Ok(Completion { user_data: REQUESTS, status, channel, length, tag, memory, .. }) => {
                        let memory = memory.unwrap_or_default();
                        let message = memory.get(..length as usize).unwrap_or(&[]);
                        match (status, channel) {
                            (Status::Done, Some(channel)) => self.serve(channel, tag, message, &mut buffers, &mut turn),
                            // Longer than any request.
                            (Status::Truncated, Some(channel)) => self.refuse(channel),
                            _ => {}
                        }
                        self.post_again(Expected::Request, memory);
                        // The wait makes no progress while there are completions: clients beyond the posted receives would starve.
                        let _ = self.node.progress();
                    }
                    Ok(Completion { user_data: ACKNOWLEDGEMENTS, status, channel, length, memory, .. }) => {
                        let memory = memory.unwrap_or_default();
                        if let Some(channel) = channel {
                            let whole = memory.get(..length as usize).filter(|_| status == Status::Done);
                            self.acknowledge(channel, whole.unwrap_or(&[]));
                        }
                        self.post_again(Expected::Acknowledgement, memory);
                    }
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
    pub(super) fn lost(&self, watched: u64) {
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
