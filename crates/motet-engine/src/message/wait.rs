//! Waiting: one thread runs progress for all. The others sleep until their result is there, or until the running thread leaves.

use super::node_state::{NodeGuard, NodeState};
use super::progress::is_in_handler;
use super::spin_policy::SpinStep;
use super::{CqId, Error, Node};
use motet_sys::{clock, cpu_contention};
use std::time::Duration;

/// Longest sleep of a thread that does not run progress. After it the thread checks for its result.
const WAITER_CHECK_INTERVAL: Duration = Duration::from_millis(500);

impl Node {
    /// Makes progress until `ready` returns what it waits for, or CLOCK_MONOTONIC (ns) passes `deadline`.
    #[inline(always)]
    pub(super) fn wait<R>(
        &self,
        mut node: NodeGuard<'_>,
        deadline: Option<u64>,
        mut ready: impl FnMut(&mut NodeState) -> Option<R>,
    ) -> Result<R, Error> {
        loop {
            if let Some(found) = ready(&mut node) {
                return Ok(found);
            }
            if !node.progress.is_running() {
                node.progress.start();
                let result = self.run_until(&mut node, deadline, &mut ready);
                node.progress.stop();
                node.progress.wake_one(); // another thread must run progress
                match result {
                    Some(result) => return result,
                    None => continue, // another thread runs progress
                }
            }
            if is_in_handler() {
                return Err(Error::WouldBlock);
            }
            self.wait_for_running_thread(&mut node, deadline)?;
        }
    }

    /// Runs progress. `None`: another thread has taken over.
    #[inline(always)]
    fn run_until<R>(
        &self,
        node: &mut NodeGuard<'_>,
        deadline: Option<u64>,
        ready: &mut impl FnMut(&mut NodeState) -> Option<R>,
    ) -> Option<Result<R, Error>> {
        let mut spin = node.progress.spin.begin(self.spin());
        node.progress.end_sleep();
        node.progress.end_program_sleep(); // the thread that slept on the descriptor is this one, or is woken by what is found
        loop {
            let did_work = self.round(node);
            if let Some(found) = ready(node) {
                node.progress.spin.note_success();
                return Some(Ok(found));
            }
            if node.has_waiters() && !node.progress.is_superseded() {
                node.yield_to_waiters();
                node.quiet = CqId::NONE;
            }
            if did_work {
                if node.progress.is_superseded() {
                    return None;
                }
                // An endless stream of messages, or a long copy, must not extend the wait beyond its deadline.
                if let Err(error) = check_wait(node, deadline) {
                    return Some(Err(error));
                }
                spin.restart();
                continue;
            }
            match spin.next() {
                SpinStep::Poll => {}
                SpinStep::Yield => {
                    let ticks = node.unlocked(cpu_contention::yield_now);
                    node.progress.spin.note_yield(&mut spin, ticks);
                    node.quiet = CqId::NONE;
                    if let Err(error) = check_wait(node, deadline) {
                        return Some(Err(error));
                    }
                }
                SpinStep::Sleep => {
                    if let Err(error) = check_wait(node, deadline) {
                        return Some(Err(error));
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
        node: &mut NodeGuard<'_>,
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
        node.progress.spin.note_failure();
        let max = self.max_sleep(node, deadline);
        let began = clock::nanoseconds();
        self.poll_kernel(node, max);
        let slept = node.progress.now().saturating_sub(began);
        node.progress.spin.note_sleep(slept);
        self.trim_payload_rings(node);
        if node.connections.has_pending() {
            self.step_connects(node);
        }
        None
    }

    /// Sleeps while another thread makes progress, until something has happened.
    #[cold]
    fn wait_for_running_thread(&self, node: &mut NodeGuard<'_>, deadline: Option<u64>) -> Result<(), Error> {
        check_wait(node, deadline)?;
        node.progress.add_waiter();
        if node.progress.is_asleep() {
            // The running thread may have to wait for something else from now on: room in a FIFO, for example.
            node.progress.ring_wakeup();
        }
        let left = deadline.map(|until| Duration::from_nanos(until.saturating_sub(clock::nanoseconds())));
        node.unlocked(|| std::thread::park_timeout(left.unwrap_or(WAITER_CHECK_INTERVAL).min(WAITER_CHECK_INTERVAL)));
        node.quiet = CqId::NONE;
        node.progress.remove_waiter();
        Ok(())
    }
}

/// Whether the wait is over: the deadline has passed, or the node is closing.
fn check_wait(node: &NodeState, deadline: Option<u64>) -> Result<(), Error> {
    const EBADF: i32 = 9;
    if node.progress.is_closing() {
        return Err(Error::NoNode(EBADF));
    }
    if deadline.is_some_and(|until| clock::nanoseconds() >= until) { Err(Error::TimedOut) } else { Ok(()) }
}
