//! The progress thread: it makes progress while the program makes none.
//!
//! A program that computes, or waits for something else, answers no peer. A peer that connects, or that waits for the answer to a long message, then waits as
//! long. The progress thread checks at intervals whether there have been rounds. If there were none, it makes some, arms the doorbells, and sleeps until one
//! rings. This costs a program that makes progress by itself a check every 10 ms, and a program that sleeps a check every 100 ms.
//!
//! The progress thread makes no rounds while another thread runs progress. What arrives for a program that sleeps, in a wait or on the node's descriptor, is
//! left to that program.

use super::node_state::Guard;
use super::{Error, Node};
use motet_sys::socket::{self, READABLE};
use motet_sys::thread;

/// Time without rounds after which the program is taken to be busy elsewhere, ns.
const LOOK: u64 = 10_000_000;
/// Longest time between two checks of a program that sleeps, ns.
const RARELY: u64 = 100_000_000;
/// Time between two turns of rounds while something arrives, ns.
const TURN: u64 = 1_000_000;
/// Longest sleep with armed doorbells, ns.
const SLEEP: u64 = 500_000_000;
/// Most rounds of a turn.
const ROUNDS: u32 = 256;

/// What to do until the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// Sleep for this time, ns.
    For(u64),
    /// The doorbells are armed: wait until the node's descriptor is readable, but no longer than this, ns.
    Armed(u64),
}

impl Node {
    /// Makes progress whenever the program makes none, until [`Node::shut`]. Must have a thread of its own, in which handlers and tasks run.
    pub fn stand_in(&self) {
        let mut rest = Rest::For(LOOK);
        let mut rounds = None;
        loop {
            match rest {
                Rest::For(time) => thread::sleep_ns(time),
                Rest::Armed(most) => drop(socket::poll([(self.descriptor(), READABLE)], Some(most))),
            }
            match self.substitute(&mut rounds, rest) {
                Ok(next) => rest = next,
                Err(_) => return,
            }
        }
    }

    /// Makes a turn of rounds if no other thread has made progress since the last call.
    fn substitute(&self, rounds: &mut Option<u32>, rested: Rest) -> Result<Rest, Error> {
        const EBADF: i32 = 9;
        let mut node = self.lock()?;
        if node.progress.is_closing() {
            return Err(Error::NoNode(EBADF));
        }
        let progress = &node.progress;
        let (now, sleeps) = (progress.rounds(), progress.does_program_sleep());
        let alone = rounds.replace(now) == Some(now) && !progress.is_running() && !sleeps;
        if !alone {
            let asleep = sleeps || (progress.is_running() && progress.is_asleep());
            return Ok(Rest::For(match rested {
                Rest::For(before) if asleep => (2 * before).min(RARELY),
                _ => LOOK,
            }));
        }
        node.progress.read_clock(); // the rounds below must find what is due by now
        let came = self.make_rounds(&mut node);
        *rounds = Some(node.progress.rounds());
        self.trim(&mut node);
        if came || node.progress.is_running() || node.has_waiters() || !self.arm_for_program_sleep(&mut node) {
            return Ok(Rest::For(TURN));
        }
        node.progress.fall_asleep();
        // At least `TURN`: something that is due must not cause the next turn before this one has served it.
        Ok(Rest::Armed(self.sleep_at_most(&node, None).map_or(SLEEP, |most| most.clamp(TURN, SLEEP))))
    }

    /// Makes rounds until there is nothing to do, or another thread runs progress or waits for the lock. True: something has arrived.
    fn make_rounds(&self, node: &mut Guard<'_>) -> bool {
        let mut came = false;
        for _ in 0..ROUNDS {
            let more = self.poll_all(node);
            came |= more;
            if !more || node.progress.is_running() || node.has_waiters() {
                break;
            }
        }
        came
    }
}
