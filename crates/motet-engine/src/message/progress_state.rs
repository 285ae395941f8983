//! State of progress: the thread that makes progress of a node, the threads that wait meanwhile, and the events that wake them.
//!
//! At most one thread *runs*: it polls links and handles packets for all. While it runs tasks of the program, another thread may begin to run;
//! then the first one is *superseded* and leaves.

use super::Task;
use super::spin_policy::SpinPolicy;
use motet_sys::private_fds::{self, PrivateFd};
use motet_sys::{clock, socket};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::thread::Thread;

/// The state of progress.
pub struct ProgressState {
    running: bool,
    superseded: bool,
    /// The running thread sleeps; or no thread runs, and the program or the progress thread sleeps on the node's descriptor.
    asleep: bool,
    /// The program sleeps on the node's descriptor, or is about to.
    program_asleep: bool,
    /// The node is closing: no wait goes on.
    closing: bool,
    rounds: u32,
    now: u64,
    kernel_polled_at: u64,
    waiters: Vec<Thread>,
    tasks: VecDeque<Task>,
    /// How long waits spin before they sleep.
    pub(super) spin: SpinPolicy,
    poll: PrivateFd,
    wakeup: Arc<PrivateFd>,
}

impl ProgressState {
    /// No thread runs. `poll` is the epoll descriptor of all that can wake a sleeper, `wakeup` the eventfd in it that wakes the running thread.
    pub fn new(poll: PrivateFd, wakeup: Arc<PrivateFd>) -> Self {
        Self {
            running: false,
            superseded: false,
            asleep: false,
            program_asleep: false,
            closing: false,
            rounds: 0,
            now: clock::nanoseconds(),
            kernel_polled_at: 0,
            waiters: Vec::new(),
            tasks: VecDeque::new(),
            spin: SpinPolicy::default(),
            poll,
            wakeup,
        }
    }

    // ---- the running thread ------------------------------------------------------------------------------------------

    /// Whether a thread runs.
    #[inline(always)]
    pub fn is_running(&self) -> bool {
        self.running
    }

    /// The caller runs from now on.
    #[inline(always)]
    pub fn start(&mut self) {
        self.running = true;
    }

    /// The caller runs no longer; another thread still does if it has superseded the caller.
    #[inline(always)]
    pub fn stop(&mut self) {
        self.running = std::mem::take(&mut self.superseded);
    }

    /// Lets other threads run while the caller runs tasks.
    pub fn pause(&mut self) {
        self.running = false;
    }

    /// The caller has run its tasks. A thread that runs now may do so for long, so the caller is superseded and does not wait for it.
    pub fn resume(&mut self) {
        self.superseded = self.running;
        self.running = true;
    }

    /// Whether another thread has begun to run while the running one ran tasks.
    #[inline(always)]
    pub fn is_superseded(&self) -> bool {
        self.superseded
    }

    // ---- sleep -------------------------------------------------------------------------------------------------------

    /// Whether the running thread sleeps, or a sleep on the node's descriptor is under way.
    #[inline(always)]
    pub fn is_asleep(&self) -> bool {
        self.asleep
    }

    /// The running thread is about to sleep, or the progress thread on the node's descriptor.
    pub fn begin_sleep(&mut self) {
        self.asleep = true;
    }

    /// The sleep is over. Whether there was one.
    #[inline(always)]
    pub fn end_sleep(&mut self) -> bool {
        std::mem::take(&mut self.asleep)
    }

    /// Whether the program sleeps on the node's descriptor.
    pub fn is_program_asleep(&self) -> bool {
        self.program_asleep
    }

    /// The program is about to sleep on the node's descriptor.
    pub fn begin_program_sleep(&mut self) {
        (self.asleep, self.program_asleep) = (true, true);
    }

    /// The program makes a call: it does not sleep.
    #[inline(always)]
    pub fn end_program_sleep(&mut self) {
        self.program_asleep = false;
    }

    /// Wakes the thread that sleeps for all, whether or not one is known to.
    #[cold]
    pub fn ring_wakeup(&self) {
        socket::ring_eventfd(self.wakeup.as_fd().as_raw_fd());
    }

    /// Empties the eventfd of [`ProgressState::ring_wakeup`].
    pub fn drain_wakeup(&self) {
        socket::drain_eventfd(self.wakeup.as_fd().as_raw_fd());
    }

    /// The eventfd of [`ProgressState::ring_wakeup`].
    pub fn wakeup(&self) -> RawFd {
        self.wakeup.as_fd().as_raw_fd()
    }

    /// The epoll descriptor, usable without the node's lock.
    pub fn poll(&self) -> BorrowedFd<'static> {
        private_fds::borrow(self.poll.as_fd().as_raw_fd())
    }

    /// No wait goes on from now on.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Whether [`ProgressState::close`] was called.
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    // ---- rounds and the clock ----------------------------------------------------------------------------------------

    /// Rounds so far; wraps.
    #[inline(always)]
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Counts a round.
    #[inline(always)]
    pub fn set_rounds(&mut self, rounds: u32) {
        self.rounds = rounds;
    }

    /// CLOCK_MONOTONIC in ns, as of the last reading: polls do not read the clock.
    #[inline(always)]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Reads the clock.
    pub fn read_clock(&mut self) -> u64 {
        self.now = clock::nanoseconds();
        self.now
    }

    /// When the kernel was last asked for events.
    pub fn kernel_polled_at(&self) -> u64 {
        self.kernel_polled_at
    }

    /// The kernel has just been asked.
    pub fn kernel_was_polled(&mut self) {
        self.kernel_polled_at = self.read_clock();
    }

    // ---- waiters and tasks -------------------------------------------------------------------------------------------

    /// The calling thread waits until the running one wakes it.
    pub fn add_waiter(&mut self) {
        self.waiters.push(std::thread::current());
    }

    /// The calling thread waits no longer.
    pub fn remove_waiter(&mut self) {
        let me = std::thread::current().id();
        self.waiters.retain(|thread| thread.id() != me);
    }

    /// Wakes one waiting thread, to run.
    #[inline(always)]
    pub fn wake_one(&mut self) {
        if let Some(next) = self.waiters.pop() {
            next.unpark();
        }
    }

    /// Wakes all waiting threads.
    #[inline(always)]
    pub fn wake_all(&mut self) {
        if !self.waiters.is_empty() {
            self.unpark_all();
        }
    }

    #[cold]
    fn unpark_all(&mut self) {
        for thread in self.waiters.drain(..) {
            thread.unpark();
        }
    }

    /// Adds a task, to be run outside of any handler.
    pub fn add_task(&mut self, task: Task) {
        self.tasks.push_back(task);
    }

    /// Whether tasks wait.
    #[inline(always)]
    pub fn has_tasks(&self) -> bool {
        !self.tasks.is_empty()
    }

    /// Takes all tasks.
    pub fn take_tasks(&mut self) -> VecDeque<Task> {
        std::mem::take(&mut self.tasks)
    }

    /// Puts back the tasks that were not run, before those that have been added meanwhile.
    pub fn return_tasks(&mut self, mut tasks: VecDeque<Task>) {
        tasks.append(&mut self.tasks);
        self.tasks = tasks;
    }
}
