//! Fork: before it no thread is in the middle of a change; after it the child releases what belongs to the parent.

use super::{Engine, Handle, START_LOCK, Totals};
use crate::{lock, log};
use motet_sys::buffer_pool;
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, OnceLock};

impl Engine {
    /// Called in a forked child. Epoll sets and free records belong to the parent: the stats file is shared, but the list of free records is a copy. The
    /// parent also takes back what it has sent: a child that sends nothing leaves every stream as it is.
    pub fn after_fork(&self) {
        lock(&self.free).clear();
        self.unread.iter().chain(&self.unread_words).for_each(|word| word.store(0, Ordering::Relaxed));
        self.any_unread.store(0, Ordering::Relaxed);
        for local in self.locals.iter().filter_map(OnceLock::get).flat_map(|chunk| chunk.iter()) {
            local.in_set.store(false, Ordering::Relaxed);
            local.hot.store(false, Ordering::Relaxed);
            local.unread.store(false, Ordering::Relaxed);
        }
        *lock(&self.ended) = Totals::default();
        self.become_member();
        self.options.drivers.iter().for_each(|d| d.after_fork());
        self.reported_links
            .iter()
            .zip(self.driver_links())
            .for_each(|(reported_links, now)| reported_links.store(now, Ordering::Relaxed));
    }
}

/// Holds every lock, of the engine and below it, whose contents a forked child needs, from before the fork until after it.
///
/// The fields are in the order in which the locks are taken, here and elsewhere: a thread that holds one takes only later ones. The locks of streams
/// and sets ([`ForkSafeMutex`](motet_sys::fork_safe_mutex::ForkSafeMutex)) precede all of them. They are not held for a fork, so they need no order.
pub struct ForkGuard {
    _start: MutexGuard<'static, ()>,
    _owners: Option<MutexGuard<'static, HashMap<u64, Handle>>>,
    _free: Option<MutexGuard<'static, VecDeque<u32>>>,
    _drivers: Vec<Box<dyn Any>>,
    _ended: Option<MutexGuard<'static, Totals>>,
    _log: Option<MutexGuard<'static, log::File>>,
    _pool: Box<dyn Any>,
}

impl ForkGuard {
    /// Takes the locks: waits until no other thread is in the middle of a change.
    pub fn begin() -> Self {
        let start = lock(&START_LOCK); // from here on no engine starts
        let engine = Engine::running();
        let quiet = Self {
            _start: start,
            _owners: engine.map(|e| lock(&e.owners)),
            _free: engine.map(|e| lock(&e.free)),
            _drivers: engine.iter().flat_map(|e| e.options.drivers).map(|driver| driver.prepare_fork()).collect(),
            _ended: engine.map(|e| lock(&e.ended)),
            _log: engine.map(|e| e.log.hold()),
            _pool: Box::new(buffer_pool::lock_for_fork()),
        };
        engine.inspect(|e| e.expect_child());
        quiet
    }
}
