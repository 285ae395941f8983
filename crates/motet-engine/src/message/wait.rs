//! Waiting: one thread runs progress for all. The others sleep until their result is there, or until the running thread leaves.

use super::node_state::{Guard, NodeState};
use super::progress::is_inside;
use super::spin_policy::Next;
use super::{CqId, Error, Node};
use motet_sys::clock;
use std::time::Duration;

/// Longest sleep of a thread that does not run progress. After it the thread checks for its result.
const LOOK: Duration = Duration::from_millis(500);

impl Node {
    /// Makes progress until `ready` returns what it waits for, or CLOCK_MONOTONIC (ns) passes `deadline`.
    #[inline(always)]
    pub(super) fn wait<R>(
        &self,
        mut node: Guard<'_>,
        deadline: Option<u64>,
        mut ready: impl FnMut(&mut NodeState) -> Option<R>,
    ) -> Result<R, Error> {
        loop {
            if let Some(found) = ready(&mut node) {
                return Ok(found);
            }
            if !node.progress.is_running() {
                node.progress.start();
                let result = self.drive(&mut node, deadline, &mut ready);
                node.progress.stop();
                node.progress.wake_one(); // another thread must run progress
                match result {
                    Some(result) => return result,
                    None => continue, // another thread runs progress
                }
            }
            if is_inside() {
                return Err(Error::WouldBlock);
            }
            self.watch_others(&mut node, deadline)?;
        }
    }

    /// Runs progress. `None`: another thread has taken over.
    #[inline(always)]
    fn drive<R>(
        &self,
        node: &mut Guard<'_>,
        deadline: Option<u64>,
        ready: &mut impl FnMut(&mut NodeState) -> Option<R>,
    ) -> Option<Result<R, Error>> {
        let mut spin = node.progress.spin.begin(self.spin());
        node.progress.wake();
        node.progress.program_wakes(); // the thread that slept on the descriptor is this one, or is woken by what is found
        loop {
            let came = self.round(node);
            if let Some(found) = ready(node) {
                node.progress.spin.paid();
                return Some(Ok(found));
            }
            if node.has_waiters() && !node.progress.is_superseded() {
                node.yield_to_waiters();
                node.quiet = CqId::NONE;
            }
            if came {
                if node.progress.is_superseded() {
                    return None;
                }
                // An endless stream of messages, or a long copy, must not extend the wait beyond its deadline.
                if let Err(late) = passed(node, deadline) {
                    return Some(Err(late));
                }
                spin.again();
                continue;
            }
            match spin.next() {
                Next::Look => {}
                Next::Yield => {
                    let mut pace = std::mem::take(&mut node.progress.spin);
                    let hog = node.unlocked(|| pace.lend());
                    node.progress.spin = pace;
                    node.quiet = CqId::NONE;
                    if hog {
                        spin.give_up();
                    }
                    if let Err(late) = passed(node, deadline) {
                        return Some(Err(late));
                    }
                }
                Next::Sleep => {
                    if let Err(late) = passed(node, deadline) {
                        return Some(Err(late));
                    }
                    if let Some(found) = self.sleep(node, deadline, ready) {
                        return Some(Ok(found));
                    }
                    spin = node.progress.spin.begin(self.spin());
                }
            }
        }
    }

    /// Sleeps, unless the result is there once the doorbells of all links are armed.
    #[cold]
    fn sleep<R>(
        &self,
        node: &mut Guard<'_>,
        deadline: Option<u64>,
        ready: &mut impl FnMut(&mut NodeState) -> Option<R>,
    ) -> Option<R> {
        if !self.arm_doorbells(node) {
            return None;
        }
        let found = ready(node);
        if found.is_some() {
            return found;
        }
        node.progress.spin.failed();
        let most = self.sleep_at_most(node, deadline);
        let began = clock::nanoseconds();
        self.ask(node, most);
        let slept = node.progress.now().saturating_sub(began);
        node.progress.spin.slept(slept);
        self.trim(node);
        if node.connections.has_pending() {
            self.step_connects(node);
        }
        None
    }

    /// Sleeps while another thread makes progress, until something has happened.
    #[cold]
    fn watch_others(&self, node: &mut Guard<'_>, deadline: Option<u64>) -> Result<(), Error> {
        passed(node, deadline)?;
        node.progress.add_waiter();
        if node.progress.is_asleep() {
            // The running thread may have to wait for something else from now on: room in a FIFO, for example.
            node.progress.ring_wakeup();
        }
        let left = deadline.map(|until| Duration::from_nanos(until.saturating_sub(clock::nanoseconds())));
        node.unlocked(|| std::thread::park_timeout(left.unwrap_or(LOOK).min(LOOK)));
        node.quiet = CqId::NONE;
        node.progress.remove_waiter();
        Ok(())
    }
}

/// Whether the wait is over: the deadline has passed, or the node is closing.
fn passed(node: &NodeState, deadline: Option<u64>) -> Result<(), Error> {
    const EBADF: i32 = 9;
    if node.progress.is_closing() {
        return Err(Error::NoNode(EBADF));
    }
    if deadline.is_some_and(|until| clock::nanoseconds() >= until) { Err(Error::TimedOut) } else { Ok(()) }
}
