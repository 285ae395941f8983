//! Requests that are sent again after a lost connection, and what is not known of them.
//!
//! In one session the server executes a request once however often it is sent. Under another session it would execute it again: then a request that must not be executed twice
//! fails, if it may have been sent before (decision 60).

use super::{Attempt, Connection, Question};
use crate::Result;
use crate::client::failure::Failure;
use crate::client::slots::Slot;
use crate::identity::Identity;
use crate::protocol::{Operation, Reply};
use motet_session::notes::note;
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// After so long without an answer a server is asked whether it is there, before a request that must not be executed twice.
const QUIET: Duration = Duration::from_millis(20);

impl Connection {
    /// Makes the request that has begun in this slot, as often as the connection is lost. `sent_in`: the session in which it was sent already. EIO: it may have been
    /// executed there, which its server does not know any more, and must not be executed twice.
    pub(super) fn call_in<'a>(
        &self,
        slot: &mut Slot,
        identity: Option<&Identity>,
        operation: impl Fn() -> Result<Operation<'a>>,
        data: &[u8],
        into: &mut [u8],
        mut sent_in: Option<u64>,
    ) -> Result<(Reply, usize)> {
        let mut lost = None;
        loop {
            let attempt = self.connected(slot)?;
            let operation = &operation()?;
            if sent_in.is_some_and(|session| session != attempt.epoch) && !operation.is_repeatable() {
                // In the present session the slot has had no request.
                slot.settle();
                self.note_doubt(operation);
                return Err(Errno::IO.into());
            }
            let asks = sent_in.is_none() && !operation.is_repeatable() && self.is_quiet();
            let answered = if asks { self.ask(attempt, slot) } else { Ok(()) };
            let answered = answered.and_then(|()| {
                let question = Question { identity, operation, data };
                self.attempt(attempt, slot, question, into, self.limit)
            });
            match answered {
                Ok(answered) => return Ok(answered),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Broken) => {
                    self.lose(attempt.channel);
                    return Err(Failure::Broken.into_error());
                }
                Err(failure) => {
                    sent_in = failure.sent_in(attempt.epoch).or(sent_in);
                    self.lose(attempt.channel);
                    // A server that comes and goes does not keep the call for ever.
                    let began = *lost.get_or_insert_with(Instant::now);
                    if self.limit.is_some_and(|limit| began.elapsed() >= limit) {
                        return Err(Errno::IO.into());
                    }
                }
            }
        }
    }

    /// Whether nothing was answered lately, so that the server may have ended unseen.
    fn is_quiet(&self) -> bool {
        let quiet = u64::try_from(QUIET.as_millis()).unwrap_or(u64::MAX);
        self.now().saturating_sub(self.answered.load(Ordering::Relaxed)) >= quiet
    }

    /// Milliseconds since the connection was made first.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Asks whether the server is there. The slot's request has not been sent, and begins anew. An error: the connection is lost, and it is not sent.
    fn ask(&self, attempt: Attempt, slot: &mut Slot) -> std::result::Result<(), Failure> {
        match self.attempt(attempt, slot, Question::own(&Operation::Ping), &mut [], self.limit) {
            Ok(_) | Err(Failure::Final(_)) => {
                slot.begin();
                Ok(())
            }
            Err(Failure::Lost) => Err(Failure::NotSent),
            Err(failure) => Err(failure),
        }
    }

    /// A request of a session that its server does not know any more fails, although it may have been executed.
    pub(super) fn note_doubt(&self, operation: &Operation<'_>) {
        let what = operation.name();
        note(format_args!(
            "{what} in an export: the server has no answer to it since it was away, and it may have been done"
        ));
    }
}
