//! Progress at the program's request, sleeps of the program on the node's descriptor, and what wakes a thread that sleeps.
//!
//! The rounds of progress are in [`super::progress`]; the waits of the calls that wait for a result are in [`super::wait`].

use super::node_state::{NodeGuard, NodeState};
use super::{Error, LinkId, Node, Task};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

impl Node {
    /// Makes one round of progress, unless another thread makes progress. True: something has arrived, or was done.
    pub fn progress(&self) -> Result<bool, Error> {
        let mut node = self.lock()?;
        Ok(!node.progress.is_running() && self.poll_all(&mut node))
    }

    /// Makes one round of progress. The caller has checked that no other thread makes progress.
    #[inline(never)]
    pub(super) fn poll_all(&self, node: &mut NodeGuard<'_>) -> bool {
        node.progress.start();
        node.progress.end_program_sleep();
        if node.progress.end_sleep() {
            self.poll_kernel(node, Some(0)); // the caller has slept on the node's descriptor
            node.links.resume_parked();
        }
        let did_work = self.round(node);
        node.progress.stop();
        node.progress.wake_one();
        did_work
    }

    /// Queues a task. The next thread that makes progress runs it, outside of any handler.
    pub fn defer(&self, task: Task) -> Result<(), Error> {
        let mut node = self.lock()?;
        node.progress.add_task(task);
        node.notify();
        Ok(())
    }

    /// Makes progress until `ready` returns true, for example because a handler has set a variable. `ready` is called after every round of progress
    /// and may not use the node; its panics are passed on to the caller, and other threads go on. While nothing arrives for this node the call
    /// sleeps: a change that comes from elsewhere, such as from another node of this process, wakes it only by [`Node::defer`].
    pub fn progress_until(&self, mut ready: impl FnMut() -> bool, deadline: Option<u64>) -> Result<(), Error> {
        let asked = self.wait(self.lock()?, deadline, |_| match catch_unwind(AssertUnwindSafe(&mut ready)) {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(panic) => Some(Err(panic)),
        })?;
        asked.map_err(|panic| resume_unwind(panic))
    }

    /// Prepares for the drop of the node: sends what it owes to peers, such as FIN packets for long messages, and ends all waits. These and later
    /// waits fail with [`Error::NoNode`].
    pub fn shut_down(&self) -> Result<(), Error> {
        let mut node = self.lock()?;
        node.progress.close();
        node.flush_all();
        node.wake_waiters();
        node.progress.ring_wakeup(); // unconditionally: no sleep may outlast this call
        Ok(())
    }

    /// A descriptor that becomes readable when [`Node::progress`] has something to do, after [`Node::arm`] has returned true.
    pub fn descriptor(&self) -> RawFd {
        self.poll.as_fd().as_raw_fd()
    }

    /// Arms the doorbells of all links before a sleep on [`Node::descriptor`] (poll, epoll). False: do not sleep, there is something to do already.
    pub fn arm(&self) -> Result<bool, Error> {
        let mut node = self.lock()?;
        let may = !node.progress.is_running() && self.arm_for_program_sleep(&mut node);
        if may {
            node.progress.begin_program_sleep();
        }
        Ok(may)
    }
}

impl NodeState {
    /// Has every thread that waits, or sleeps on the descriptor, check what it waits for, because something has happened elsewhere.
    #[inline(always)]
    pub(super) fn notify(&mut self) {
        self.wake_waiters();
        if self.progress.is_asleep() {
            self.progress.ring_wakeup();
        }
    }

    /// Has the running thread poll a link that has something left to send or to copy, and wakes it if it sleeps.
    pub(super) fn schedule_link(&mut self, link: LinkId) {
        self.links.activate(link);
        if self.progress.is_asleep() {
            self.progress.ring_wakeup();
        }
    }

    /// Sends what a link owes. If there is no room, the link is activated, so that a later round sends the rest.
    #[inline]
    pub(super) fn flush_link(&mut self, link: LinkId) {
        let Ok((link_state, messages)) = self.link(link) else { return };
        link_state.flush(link, messages);
        if link_state.proto.is_due() && link_state.transport.is_some() {
            self.schedule_link(link);
        }
    }
}
