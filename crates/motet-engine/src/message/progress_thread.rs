//! The progress thread: it makes progress while the program makes none.
//!
//! A program that computes, or waits for something else, answers no peer. A peer that connects, or that waits for the answer to a long message, then waits as
//! long. The progress thread checks at intervals whether there have been rounds. If there were none, it makes some, arms the doorbells, and sleeps until one
//! rings. This costs a program that makes progress by itself a check every 10 ms, and a program that sleeps a check every 100 ms.
//!
//! The progress thread makes no rounds while another thread runs progress. What arrives for a program that sleeps, in a wait or on the node's descriptor, is
//! left to that program.

use super::node_state::NodeGuard;
use super::{Error, Node};
use motet_sys::socket::{self, READABLE_EVENTS};
use motet_sys::thread;

/// Time without rounds after which the program is taken to be busy elsewhere, ns.
const CHECK_INTERVAL_NS: u64 = 10_000_000;
/// Longest time between two checks of a program that sleeps, ns.
const MAX_CHECK_INTERVAL_NS: u64 = 100_000_000;
/// Time between two turns of rounds while something arrives, ns.
const TURN_INTERVAL_NS: u64 = 1_000_000;
/// Longest sleep with armed doorbells, ns.
const MAX_SLEEP_NS: u64 = 500_000_000;
/// Most rounds of a turn.
const MAX_ROUNDS_PER_TURN: u32 = 256;

/// What to do until the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pause {
    /// Sleep for this time, ns.
    Sleep(u64),
    /// The doorbells are armed: wait until the node's descriptor is readable, but no longer than this, ns.
    Armed(u64),
}

impl Node {
    /// Makes progress whenever the program makes none, until [`Node::shut_down`]. Must have a thread of its own, in which handlers and tasks run.
    pub fn run_progress_thread(&self) {
        let mut pause = Pause::Sleep(CHECK_INTERVAL_NS);
        let mut rounds = None;
        loop {
            match pause {
                Pause::Sleep(time) => thread::sleep_ns(time),
                Pause::Armed(max) => drop(socket::poll([(self.descriptor(), READABLE_EVENTS)], Some(max))),
            }
            match self.take_turn(&mut rounds, pause) {
                Ok(next) => pause = next,
                Err(_) => return,
            }
        }
    }

    /// Makes a turn of rounds if no other thread has made progress since the last call.
    fn take_turn(&self, rounds: &mut Option<u32>, last_pause: Pause) -> Result<Pause, Error> {
        const EBADF: i32 = 9;
        let mut node = self.lock()?;
        if node.progress.is_closing() {
            return Err(Error::NoNode(EBADF));
        }
        let progress = &node.progress;
        let (now, sleeps) = (progress.rounds(), progress.is_program_asleep());
        let alone = rounds.replace(now) == Some(now) && !progress.is_running() && !sleeps;
        if !alone {
            let asleep = sleeps || (progress.is_running() && progress.is_asleep());
            return Ok(Pause::Sleep(match last_pause {
                Pause::Sleep(before) if asleep => (2 * before).min(MAX_CHECK_INTERVAL_NS),
                _ => CHECK_INTERVAL_NS,
            }));
        }
        node.progress.read_clock(); // the rounds below must find what is due by now
        let did_work = self.make_rounds(&mut node);
        *rounds = Some(node.progress.rounds());
        self.trim_payload_rings(&mut node);
        if did_work || node.progress.is_running() || node.has_waiters() || !self.arm_for_program_sleep(&mut node) {
            return Ok(Pause::Sleep(TURN_INTERVAL_NS));
        }
        node.progress.begin_sleep();
        // At least `TURN_INTERVAL_NS`: something that is due must not cause the next turn before this one has served it.
        Ok(Pause::Armed(
            self.max_sleep(&node, None).map_or(MAX_SLEEP_NS, |max| max.clamp(TURN_INTERVAL_NS, MAX_SLEEP_NS)),
        ))
    }

    /// Makes rounds until there is nothing to do, or another thread runs progress or waits for the lock. True: something has arrived.
    fn make_rounds(&self, node: &mut NodeGuard<'_>) -> bool {
        let mut did_work = false;
        for _ in 0..MAX_ROUNDS_PER_TURN {
            let more = self.poll_all(node);
            did_work |= more;
            if !more || node.progress.is_running() || node.has_waiters() {
                break;
            }
        }
        did_work
    }
}
