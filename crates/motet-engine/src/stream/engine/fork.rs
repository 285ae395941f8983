//! A fork, as the engine sees it: before it no thread is in the middle of a change; in the child, what belongs to the parent is released.

use super::{Engine, Handle, START, Totals};
use crate::{lock, log};
use motet_sys::buffer_pool;
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, OnceLock};

impl Engine {
    /// In a forked child: epoll sets are the parent's. Records that were free before the fork are the parent's to use again: the
    /// node file is shared, this list is a copy. So are the marks of what the parent has sent: it is the parent that takes unread
    /// bytes back, and a child that sends nothing leaves every stream as it is.
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
        self.told.iter().zip(self.driver_links()).for_each(|(told, now)| told.store(now, Ordering::Relaxed));
    }
}

/// Keeps every lock, of the engine and below it, whose contents a forked child needs, from before the fork until after it.
///
/// The fields are in the order in which the locks are taken, here and elsewhere: who holds one takes only later ones. Before all of
/// them come those of a stream and of a set ([`ForkSafeMutex`](motet_sys::fork_safe_mutex::ForkSafeMutex)): they are not held for a fork, so there is no order among the
/// thousands of them to keep.
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
    /// Waits until no other thread is in the middle of anything.
    pub fn begin() -> Self {
        let start = lock(&START); // from here on there is an engine, or there is none
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
