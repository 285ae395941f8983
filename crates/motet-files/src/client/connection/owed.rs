//! What a client owes a server that is away: closes, and releases of locks, of programs that wait no longer.
//!
//! No program waits for these. What could not be done is done as soon as the session goes on. In another session there is nothing to do: the server has closed
//! the files of the one before, and files that are closed are not opened again. One that may have been done already is sent in its slot with its number, so
//! that it is done once: the number of the file could be another one's by now. The same holds for a slot whose call was ended: its
//! request may have opened a file that no program has.

use super::{Attempt, CONNECT_LIMIT, Connection, Question};
use crate::Result;
use crate::client::failure::Failure;
use crate::client::open_files::OpenState;
use crate::client::slots::{Slot, TakenSlot};
use crate::client::waits::UNATTENDED;
use crate::protocol::{LockKind, LockRange, LockWait, MAX_DATA_BYTES, Operation, Reply};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// More than all files that a client may have open.
const MAX_OWED: usize = 32 << 10;

/// What is to be done with an open file.
#[derive(Debug, Clone, Copy)]
pub enum Due {
    /// It is to be closed.
    Close,
    /// The locks of this owner are to be released.
    Unlock(u64),
}

impl Due {
    /// The request; `file`: the number of the file.
    pub fn operation(self, file: u32) -> Operation<'static> {
        match self {
            Self::Close => Operation::Close { file },
            Self::Unlock(owner) => {
                let range = LockRange { kind: LockKind::Unlocked, start: 0, end: u64::MAX, process: 0 };
                Operation::Lock { file, owner, range, wait: LockWait::No }
            }
        }
    }
}

/// What is owed.
#[derive(Debug)]
pub enum Owed {
    /// Something is to be done with an open file. The slot: that in which it was sent, if it may have been done.
    Done(Arc<OpenState>, Due, Option<Slot>),
    /// The request of an ended call is to be settled.
    Settled(Slot),
}

impl Connection {
    fn owed(&self) -> MutexGuard<'_, VecDeque<Owed>> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what no program waits for: now, or when a server that is away is back.
    pub fn finish(&self, state: &Arc<OpenState>, due: Due) {
        let mut sent = None;
        if let Some(mut slot) = self.slots.take(UNATTENDED, || self.gives_up(UNATTENDED)) {
            match self.finish_in(&mut slot, state, due) {
                Ok(()) => return,
                Err(Failure::Lost) => sent = slot.keep(),
                Err(_) => {}
            }
        }
        if !self.closed.load(Ordering::SeqCst) {
            self.owe(Owed::Done(Arc::clone(state), due, sent));
            self.pay_present();
        }
    }

    /// A call has ended, and what is not known of its request is to be settled. Few slots are kept for that: the next call in the others settles them.
    pub(super) fn end_call(&self, slot: TakenSlot<'_>) {
        if slot.is_uncertain()
            && self.slots.has_many_free()
            && let Some(slot) = slot.keep()
        {
            self.owe(Owed::Settled(slot));
            self.pay_present();
        }
    }

    /// [`Failure::Lost`]: it may have been done. Another failure: it was not.
    fn finish_in(&self, slot: &mut Slot, state: &OpenState, due: Due) -> std::result::Result<(), Failure> {
        if slot.is_uncertain() {
            self.settle(slot).map_err(|_| Failure::NotSent)?;
        }
        let attempt = self.connected(slot).map_err(|_| Failure::NotSent)?;
        // A file that is lost is closed already.
        let Ok(file) = state.number() else { return Ok(()) };
        slot.begin();
        let operation = due.operation(file);
        let question = Question { identity: state.identity(), ..Question::own(&operation) };
        match self.attempt(attempt, slot, question, &mut [], self.limit) {
            Ok(_) | Err(Failure::Final(_)) => Ok(()),
            Err(failure) => {
                self.lose(attempt.channel);
                if matches!(failure, Failure::Broken) { Ok(()) } else { Err(failure) }
            }
        }
    }

    fn owe(&self, owed: Owed) {
        let mut all = self.owed();
        if all.len() < MAX_OWED {
            return all.push_front(owed);
        }
        drop(all);
        if let Owed::Done(.., Some(slot)) | Owed::Settled(slot) = owed {
            self.slots.put(slot);
        }
    }

    /// Does what is owed on the present channel, if there is one. A thread that has made a channel calls this, and one that owes something, so nothing is left.
    pub(super) fn pay_present(&self) {
        if self.owed().is_empty() {
            return;
        }
        let link = self.link();
        let attempt = link.channel.map(|channel| Attempt { channel, epoch: link.session.epoch });
        drop(link);
        if let Some(attempt) = attempt
            && self.pay(attempt).is_err()
        {
            self.lose(attempt.channel);
        }
    }

    /// Does what is owed. An error: the connection is lost.
    pub(super) fn pay(&self, attempt: Attempt) -> std::result::Result<(), Failure> {
        loop {
            let Some(owed) = self.owed().pop_front() else { return Ok(()) };
            let paid = match owed {
                Owed::Settled(slot) => self.pay_settled(attempt, slot),
                Owed::Done(state, due, Some(slot)) => self.pay_in(attempt, (slot, true), state, due),
                Owed::Done(state, due, None) => match self.slots.take_free(UNATTENDED).and_then(TakenSlot::keep) {
                    Some(slot) => self.pay_in(attempt, (slot, false), state, due),
                    None => {
                        self.owe(Owed::Done(state, due, None));
                        return Ok(());
                    }
                },
            };
            paid?;
        }
    }

    fn pay_settled(&self, attempt: Attempt, mut slot: Slot) -> std::result::Result<(), Failure> {
        let settled = self.settle_at(attempt, &mut slot, Some(CONNECT_LIMIT));
        match settled {
            Ok(()) => self.slots.put(slot),
            Err(_) => self.owe(Owed::Settled(slot)),
        }
        settled
    }

    /// Does it in this slot. `is_sent`: it was sent there, and may have been done.
    fn pay_in(
        &self,
        attempt: Attempt,
        (mut slot, is_sent): (Slot, bool),
        state: Arc<OpenState>,
        due: Due,
    ) -> std::result::Result<(), Failure> {
        let Ok(file) = state.number() else {
            // It is closed, with its session.
            self.slots.put(slot);
            return Ok(());
        };
        if !is_sent {
            if slot.is_uncertain()
                && let Err(failure) = self.settle_at(attempt, &mut slot, Some(CONNECT_LIMIT))
            {
                self.slots.put(slot);
                self.owe(Owed::Done(state, due, None));
                return Err(failure);
            }
            slot.begin();
        }
        let operation = due.operation(file);
        let question = Question { identity: state.identity(), ..Question::own(&operation) };
        match self.attempt(attempt, &mut slot, question, &mut [], Some(CONNECT_LIMIT)) {
            Ok(_) | Err(Failure::Final(_)) => {
                self.slots.put(slot);
                Ok(())
            }
            Err(failure) if is_sent || matches!(failure, Failure::Lost) => {
                self.owe(Owed::Done(state, due, Some(slot)));
                Err(failure)
            }
            Err(failure) => {
                self.slots.put(slot);
                self.owe(Owed::Done(state, due, None));
                Err(failure)
            }
        }
    }

    /// Settles what is not known of the last request in a slot: sends one with its number, which the server may have executed or not. Its answer is of the one
    /// or of the other.
    pub(super) fn settle(&self, slot: &mut Slot) -> Result<()> {
        let began = Instant::now();
        loop {
            let attempt = self.connected(slot)?;
            match self.settle_at(attempt, slot, self.limit) {
                Ok(()) => return Ok(()),
                Err(Failure::Final(error)) => return Err(error),
                Err(failure) => {
                    self.lose(attempt.channel);
                    if matches!(failure, Failure::Broken) {
                        return Err(failure.into_error());
                    }
                    if self.limit.is_some_and(|limit| began.elapsed() >= limit) {
                        return Err(Errno::IO.into());
                    }
                }
            }
        }
    }

    fn settle_at(
        &self,
        attempt: Attempt,
        slot: &mut Slot,
        limit: Option<Duration>,
    ) -> std::result::Result<(), Failure> {
        let mut body = vec![0; MAX_DATA_BYTES];
        let mut answered = self.attempt(attempt, slot, Question::own(&Operation::Ping), &mut body, limit);
        if let Ok((Reply::Opened { file, .. }, _)) = answered {
            // Of a call that was ended: no program has this file.
            slot.begin();
            answered = self.attempt(attempt, slot, Question::own(&Operation::Close { file }), &mut body, limit);
        }
        match answered {
            Err(failure) if slot.is_uncertain() => Err(failure),
            // An answer, whatever it says, has settled it.
            _ => Ok(()),
        }
    }
}
