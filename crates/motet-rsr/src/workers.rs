//! The threads of threaded handlers: a pool that grows when it is needed, and a queue with a bound, beyond which reception waits.

use crate::endpoint::Job;
use crate::memory::{Memory, give_back_first};
use crate::sender::Sender;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The pool.
pub struct Workers {
    state: Mutex<State>,
    /// There is a job, or the end.
    work: Condvar,
    /// There is room in the queue, or the end.
    room: Condvar,
    most: usize,
    queue: usize,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: Vec<JoinHandle<()>>,
    idle: usize,
    ended: bool,
}

impl Workers {
    pub fn new(most: usize, queue: usize) -> Self {
        let (work, room) = (Condvar::new(), Condvar::new());
        Self { state: Mutex::default(), work, room, most: most.max(1), queue: queue.max(1) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a job; waits while the queue is full. The job is returned if there can be no thread for it, and dropped after the end.
    pub fn submit(self: &Arc<Self>, job: Job, (sender, memory): (&Arc<Sender>, &Arc<Memory>)) -> Option<Job> {
        let mut state = self.state();
        while state.jobs.len() >= self.queue && !state.ended {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.ended {
            return None;
        }
        if state.idle <= state.jobs.len() && state.threads.len() < self.most {
            let (workers, sender, memory) = (self.clone(), sender.clone(), memory.clone());
            let thread = std::thread::Builder::new().name("motet-rsr-work".to_owned());
            match thread.spawn(move || workers.work(&sender, &memory)) {
                Ok(thread) => state.threads.push(thread),
                Err(_) if state.threads.is_empty() => return Some(job),
                Err(_) => {} // those that are there do it
            }
        }
        state.jobs.push_back(job);
        drop(state);
        self.work.notify_one();
        None
    }

    fn work(&self, sender: &Sender, memory: &Memory) {
        let mut state = self.state();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                self.room.notify_one();
                let data = job.run(sender);
                if data.is_first {
                    give_back_first(data.memory);
                } else {
                    memory.give_back(data.memory);
                }
                state = self.state();
            } else if state.ended {
                return;
            } else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }

    /// Drops what is queued, and waits for the handlers that run, except for this thread's own.
    pub fn end(&self) {
        let mut state = self.state();
        state.ended = true;
        let (jobs, threads) = (std::mem::take(&mut state.jobs), std::mem::take(&mut state.threads));
        drop(state);
        drop(jobs);
        self.work.notify_all();
        self.room.notify_all();
        let own = std::thread::current().id();
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != own) {
            let _ = thread.join();
        }
    }
}
