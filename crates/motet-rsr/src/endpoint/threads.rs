//! What each thread that handles requests keeps of a node's endpoints: those that it has used last, and those whose handlers it runs.
//!
//! Only the thread itself uses its part, except when an endpoint is closed. So the lock of the part is biased to its thread: a request is given to a
//! handler without an atomic exchange, and a close pays for that.

use super::Registered;
use motet_sys::biased_lock::{BiasToken, BiasedLock};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Endpoints that a thread remembers.
const RECENT: usize = 8;
/// How often a close looks for handlers that run.
const CLOSE_POLL: Duration = Duration::from_micros(200);

/// The part of one thread.
#[derive(Default)]
struct Part {
    /// Endpoints that were used last, by their numbers.
    recent: [Option<(u64, Arc<Registered>)>; RECENT],
    /// The endpoints whose handlers it runs, one within the other, by address.
    running: Vec<usize>,
}

struct Thread {
    part: BiasedLock<Part>,
    /// Requests that were handled. Written by its thread alone.
    handled: AtomicU64,
}

/// The threads that have handled requests of a node.
pub struct Threads {
    /// No other of this process has it.
    number: u64,
    all: Mutex<All>,
}

#[derive(Default)]
struct All {
    threads: Vec<Arc<Thread>>,
    /// Requests that threads have handled which have ended.
    handled: u64,
}

/// A thread's own part.
struct Own {
    threads: u64,
    thread: Arc<Thread>,
    bias: Option<BiasToken>,
}

thread_local! {
    /// The parts of this thread, one for each node whose requests it has handled.
    static OWN: RefCell<Vec<Own>> = const { RefCell::new(Vec::new()) };
}

impl Default for Threads {
    fn default() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self { number: LAST.fetch_add(1, Ordering::Relaxed), all: Mutex::default() }
    }
}

fn address(endpoint: &Registered) -> usize {
    std::ptr::from_ref(endpoint).addr()
}

impl Part {
    #[inline]
    fn place(&mut self, number: u64) -> &mut Option<(u64, Arc<Registered>)> {
        &mut self.recent[number as usize % RECENT]
    }
}

impl Threads {
    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn with_own<R>(&self, run: impl FnOnce(&mut Own) -> R) -> R {
        OWN.with_borrow_mut(|all| match all.iter().position(|own| own.threads == self.number) {
            Some(at) => run(&mut all[at]),
            None => run(self.join(all)),
        })
    }

    /// Runs `run` with this thread's part. It must drop no endpoint: that may run code of the program.
    #[inline]
    fn with<R>(&self, run: impl FnOnce(&mut Part) -> R) -> R {
        self.with_own(|own| {
            let mut part = match &mut own.bias {
                Some(bias) => own.thread.part.lock_biased(bias),
                None => own.thread.part.lock(),
            };
            let result = run(&mut part);
            part.release();
            result
        })
    }

    /// Makes a part for this thread, and forgets those of threads and of nodes that have ended.
    #[cold]
    fn join<'a>(&self, own: &'a mut Vec<Own>) -> &'a mut Own {
        own.retain(|own| Arc::strong_count(&own.thread) > 1);
        let thread = Arc::new(Thread { part: BiasedLock::new(Part::default()), handled: AtomicU64::new(0) });
        let bias = thread.part.bias();
        let mut all = self.all();
        let All { threads, handled } = &mut *all;
        // No endpoint is dropped here: one that is open is in its table, and one that was closed is forgotten.
        threads.retain(|thread| {
            let has_ended = Arc::strong_count(thread) == 1;
            if has_ended {
                *handled += thread.handled.load(Ordering::Relaxed);
            }
            !has_ended
        });
        threads.push(thread.clone());
        drop(all);
        own.push(Own { threads: self.number, thread, bias });
        let last = own.len() - 1;
        &mut own[last]
    }

    /// The endpoint of this number, if this thread remembers it. Its handlers count as running here until the end of what this returns.
    #[inline]
    pub fn recall(&self, number: u64) -> Option<Running<'_>> {
        let endpoint = self.with(|part| {
            let (_, endpoint) = part.place(number).take_if(|(known, _)| *known == number)?;
            part.running.push(address(&endpoint));
            Some(endpoint)
        })?;
        Some(Running { threads: self, number: Some(number), endpoint: Some(endpoint) })
    }

    /// Counts the handlers of an endpoint as running here until the end of what this returns. `number`: the thread is to remember it.
    pub fn enter(&self, endpoint: Arc<Registered>, number: Option<u64>) -> Running<'_> {
        self.with(|part| part.running.push(address(&endpoint)));
        Running { threads: self, number, endpoint: Some(endpoint) }
    }

    /// Counts a request that is handled.
    #[inline]
    pub fn count_handled(&self) {
        self.with_own(|own| {
            let handled = &own.thread.handled;
            handled.store(handled.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        });
    }

    /// Requests that were handled.
    pub fn handled(&self) -> u64 {
        let all = self.all();
        all.handled + all.threads.iter().map(|thread| thread.handled.load(Ordering::Relaxed)).sum::<u64>()
    }

    /// Whether this thread runs a handler of an endpoint.
    pub fn is_running_here(&self, endpoint: &Registered) -> bool {
        self.with(|part| part.running.contains(&address(endpoint)))
    }

    /// Waits until no thread runs a handler of an endpoint that is marked as closed, unless this one does, and makes all threads forget it.
    pub fn close(&self, endpoint: &Registered) {
        while self.forget(endpoint) && !self.is_running_here(endpoint) {
            std::thread::sleep(CLOSE_POLL);
        }
    }

    /// Makes all threads forget an endpoint. Returns whether one runs a handler of it.
    fn forget(&self, endpoint: &Registered) -> bool {
        let (mut runs, mut forgotten) = (false, Vec::new());
        let all = self.all();
        for thread in &all.threads {
            let mut part = thread.part.lock();
            runs |= part.running.contains(&address(endpoint));
            let same = |known: &mut (u64, Arc<Registered>)| std::ptr::eq(&*known.1, endpoint);
            forgotten.extend(part.recent.iter_mut().filter_map(|place| place.take_if(same)));
        }
        drop(all);
        drop(forgotten);
        runs
    }
}

/// An endpoint whose handlers count as running in this thread: a close waits for the end of this.
pub struct Running<'a> {
    threads: &'a Threads,
    number: Option<u64>,
    endpoint: Option<Arc<Registered>>,
}

impl std::ops::Deref for Running<'_> {
    type Target = Arc<Registered>;

    #[inline]
    fn deref(&self) -> &Arc<Registered> {
        let Some(endpoint) = &self.endpoint else { unreachable!("it is there until the drop") };
        endpoint
    }
}

impl Drop for Running<'_> {
    #[inline]
    fn drop(&mut self) {
        let Some(endpoint) = self.endpoint.take() else { return };
        let forgotten = self.threads.with(|part| {
            part.running.pop();
            match self.number {
                // A close marks the endpoint first, and then makes this thread forget it.
                Some(number) if !endpoint.is_closed.load(Ordering::Relaxed) => {
                    part.place(number).replace((number, endpoint)).map(|(_, other)| other)
                }
                _ => Some(endpoint),
            }
        });
        drop(forgotten);
    }
}
