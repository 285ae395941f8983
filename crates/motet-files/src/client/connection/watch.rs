//! Calls that wait for long, which their front end may end ([`super::super::waits`]).
//!
//! A thread looks at the calls, so calls that do not wait cost hardly anything. To end a call it takes the channel down: that ends each kind of wait. Other
//! calls on the channel are sent again on the next one, and executed once. A call that is ended may have been executed.

use super::Connection;
use crate::Result;
use crate::client::waits::{LOOK, PATIENCE, UNATTENDED, Waits};
use crate::protocol::SLOTS;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread;

/// A server that has answered nothing during so many looks, while it is asked, is silent.
const SILENCE: u32 = 30;
/// After so many looks without calls the thread sleeps.
const CALM: u32 = 10;

/// What was seen of the call in a slot.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    turn: Option<u64>,
    /// How often it was seen since.
    looks: u32,
}

impl Connection {
    /// Its calls wait as these say.
    pub fn share_waits(self: &Arc<Self>, waits: &Arc<Waits>) -> Result<()> {
        if self.waits.set(Arc::clone(waits)).is_ok() {
            let connection = Arc::downgrade(self);
            let watcher = thread::Builder::new().name("files-waits".to_owned()).spawn(move || watch(&connection))?;
            self.slots.is_watched_by(watcher.thread().clone());
        }
        Ok(())
    }

    /// Whether what this caller waits for is to end.
    pub(super) fn has_ended(&self, caller: u32) -> bool {
        self.waits.get().is_some_and(|waits| waits.has_ended(caller))
    }

    /// Whether calls do not wait for a server that is away.
    pub(super) fn has_stopped(&self) -> bool {
        self.waits.get().is_some_and(|waits| waits.have_stopped())
    }

    /// Looks at all calls once; returns whether there are any.
    fn look(&self, seen: &mut [Seen]) -> bool {
        let mut calls = false;
        for (watch, seen) in self.slots.watches().iter().zip(seen) {
            let Some(turn) = watch.turn() else {
                calls |= seen.turn.take().is_some();
                continue;
            };
            calls = true;
            if seen.turn != Some(turn) {
                *seen = Seen { turn: Some(turn), looks: 0 };
                continue;
            }
            seen.looks = seen.looks.saturating_add(1);
            if seen.looks < PATIENCE {
                continue;
            }
            let caller = watch.caller();
            let is_silent = seen.looks >= SILENCE && self.is_silent();
            let ends = self.has_ended(caller) || is_silent && caller == UNATTENDED;
            if ends {
                watch.end_call(turn);
            }
            if ends || is_silent && self.has_stopped() {
                let channel = self.link().channel;
                channel.into_iter().for_each(|channel| self.lose(channel));
            }
        }
        calls
    }

    fn is_silent(&self) -> bool {
        let silence = u64::try_from((LOOK * SILENCE).as_millis()).unwrap_or(u64::MAX);
        self.now().saturating_sub(self.answered.load(Ordering::Relaxed)) >= silence
    }
}

/// Looks at the calls of a connection until it is closed.
fn watch(connection: &Weak<Connection>) {
    let mut seen = vec![Seen::default(); usize::from(SLOTS)];
    let mut calm = 0;
    while let Some(present) = connection.upgrade()
        && !present.closed.load(Ordering::SeqCst)
    {
        calm = if present.look(&mut seen) { 0 } else { calm + 1 };
        if calm >= CALM && present.slots.watcher_may_sleep() {
            drop(present);
            thread::park();
            calm = 0;
        } else {
            drop(present);
            thread::park_timeout(LOOK);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.slots.wake_watcher();
    }
}
