//! The stand-in: a thread that makes progress while the program makes none.
//!
//! Whoever computes, or waits for something that is not the node's, answers nobody: who would like to meet it, or to have its answer
//! to a long message, waits as long. The stand-in looks now and then whether there have been rounds. Where there were none it makes
//! some, has the peers ring, and sleeps until one does. So it costs a program that makes progress by itself a look in [`LOOK`], and one
//! that does nothing at all no more than a look in [`SLEEP`].
//!
//! It stays out of the way: it drives only while it finds something, never while it sleeps, and a program that sleeps itself is
//! given [`LOOK`] to wake up first.

use super::{Error, Node};
use motet_sys::socket::{self, READABLE};
use motet_sys::thread;

/// Without rounds for so long (ns), the program is taken to be elsewhere.
const LOOK: u64 = 10_000_000;
/// Between two turns of rounds while something comes, ns.
const TURN: u64 = 1_000_000;
/// Longest sleep (ns): an end of the node is noticed by then in any case.
const SLEEP: u64 = 500_000_000;
/// Rounds of a turn.
const ROUNDS: u32 = 256;

/// What to do until the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// Wait so long, ns.
    For(u64),
    /// Wait until the node's descriptor is readable. Ours: it was the stand-in that had peers ring.
    Rung { ours: bool },
}

impl Node {
    /// Makes progress whenever the program makes none, until [`Node::shut`]: for a thread of its own. Handlers and tasks run in it.
    pub fn stand_in(&self) {
        let mut rounds = None;
        let mut rest = Rest::For(LOOK);
        loop {
            let rung = match rest {
                Rest::For(time) => {
                    thread::nap(time);
                    false
                }
                Rest::Rung { ours } => {
                    let events = socket::poll([(self.descriptor(), READABLE)], Some(SLEEP));
                    let rung = events.is_ok_and(|[events]| events != 0);
                    if rung && !ours {
                        thread::nap(LOOK); // for whoever sleeps there, too
                    }
                    rung
                }
            };
            match self.substitute(&mut rounds, rung) {
                Ok(next) => rest = next,
                Err(_) => return,
            }
        }
    }

    /// A turn, where nobody has made progress since the last one. `rung`: there is something to do.
    fn substitute(&self, rounds: &mut Option<u32>, rung: bool) -> Result<Rest, Error> {
        const EBADF: i32 = 9;
        let mut core = self.core()?;
        if core.shut {
            return Err(Error::NoNode(EBADF));
        }
        let alone = rounds.replace(core.rounds) == Some(core.rounds) && !core.driving;
        if !alone || (core.asleep && !rung) {
            let others = Rest::Rung { ours: false };
            return Ok(if core.asleep { others } else { Rest::For(LOOK) });
        }
        let came = (0..ROUNDS).take_while(|_| self.look_everywhere(&mut core)).count() > 0;
        let sleeps = !came && !core.driving && self.arm(&mut core);
        core.asleep |= sleeps;
        *rounds = Some(core.rounds);
        Ok(if sleeps { Rest::Rung { ours: true } } else { Rest::For(TURN) })
    }
}
