//! Nodes by handle.
//!
//! What it is: a fixed table, and a mark for every thread that says in which nodes it is at the moment. To enter a node costs a store and a
//! load; whoever closes it takes the handle away, reaches every CPU with a barrier (`membarrier`), and waits until no mark names it (hazard
//! pointers: Michael, IEEE TPDS 15(6), 2004, with the fence at the rare end). What it is not: it does not say what a node is for.
//!
//! A handle is the place in the table under a number that is never given twice, so that one made up or outlived is noticed.

use super::{EBADF, EBUSY, ECHILD, EDEADLK, EINVAL, EMFILE, EPERM, Errno};
use crate::messages::handlers::Registered;
use crate::messages::memory_handles::Holding;
use motet_api::node::Node;
use motet_proto::message::Held;
use motet_proto::message::slab::Pool;
use motet_sys::{membarrier, thread};
use std::collections::HashMap;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, compiler_fence, fence};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

/// Nodes of a process; the low byte of a handle.
const MOST: usize = 256;
/// Nodes that a thread may be in at a time, each from within a handler of the one before, before it is counted instead.
const DEPTH: usize = 4;
/// Between two looks of whoever waits for threads to leave, ns.
const NAP: u64 = 50_000;

/// A node and what C holds of it.
pub struct Record {
    /// The node.
    pub node: Node,
    /// The only thread that may use it; 0: any.
    owner: u64,
    messages: Mutex<Pool<Option<Held>>>,
    holdings: Mutex<Pool<Option<Holding>>>,
    handlers: Mutex<HashMap<u32, Weak<Registered>>>,
}

impl Record {
    /// Messages that were claimed, or kept by a handler; none where one is being accepted.
    pub fn messages(&self) -> MutexGuard<'_, Pool<Option<Held>>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory in the hands of the program; none where a loan is being sent.
    pub fn holdings(&self) -> MutexGuard<'_, Pool<Option<Holding>>> {
        self.holdings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handlers by number.
    pub fn handlers(&self) -> MutexGuard<'_, HashMap<u32, Weak<Registered>>> {
        self.handlers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Slot {
    taken: AtomicBool,
    /// 0: closed, or not open yet.
    handle: AtomicU64,
    record: AtomicPtr<Record>,
    /// Threads inside that have no mark for it, and whoever has pinned it.
    strangers: AtomicU32,
    /// How often it is pinned.
    pins: AtomicU32,
}

static SLOTS: [Slot; MOST] = [const {
    Slot {
        taken: AtomicBool::new(false),
        handle: AtomicU64::new(0),
        record: AtomicPtr::new(ptr::null_mut()),
        strangers: AtomicU32::new(0),
        pins: AtomicU32::new(0),
    }
}; MOST];

/// The number of the node opened last.
static GIVEN: AtomicU64 = AtomicU64::new(0);
/// Whoever closes makes a barrier on every CPU.
static BARRIER: AtomicBool = AtomicBool::new(false);

/// In which nodes a thread is. Marks are never freed: threads that begin take those of threads that have ended.
#[repr(align(64))]
#[derive(Default)]
struct Mark {
    nodes: [AtomicU64; DEPTH],
    /// How many of them; the thread's own.
    depth: AtomicU32,
    /// Handlers that it runs; the thread's own.
    handlers: AtomicU32,
    taken: AtomicBool,
    next: AtomicPtr<Mark>,
}

static MARKS: AtomicPtr<Mark> = AtomicPtr::new(ptr::null_mut());

/// All marks.
fn marks() -> impl Iterator<Item = &'static Mark> {
    // SAFETY: marks are leaked boxes.
    let follow = |at: &AtomicPtr<Mark>| unsafe { at.load(Acquire).as_ref() };
    std::iter::successors(follow(&MARKS), move |mark| follow(&mark.next))
}

impl Mark {
    #[cold]
    fn take() -> &'static Self {
        let free = marks().find(|mark| mark.taken.compare_exchange(false, true, Acquire, Relaxed).is_ok());
        free.unwrap_or_else(|| {
            let mark: &'static Mark = Box::leak(Box::default());
            mark.taken.store(true, Relaxed);
            let mut first = MARKS.load(Relaxed);
            loop {
                mark.next.store(first, Relaxed);
                match MARKS.compare_exchange_weak(first, ptr::from_ref(mark).cast_mut(), Release, Relaxed) {
                    Ok(_) => return mark,
                    Err(other) => first = other,
                }
            }
        })
    }

    /// The nodes that the thread is in.
    fn inside(&self) -> impl Iterator<Item = u64> {
        self.nodes.iter().map(|node| node.load(SeqCst)).filter(|&node| node != 0)
    }
}

/// This thread's mark.
struct Mine(&'static Mark);

impl Drop for Mine {
    fn drop(&mut self) {
        self.0.taken.store(false, Release);
    }
}

thread_local! {
    static MINE: Mine = Mine(Mark::take());
}

/// This thread's mark; `None` in a thread that is ending.
#[inline(always)]
fn mine() -> Option<&'static Mark> {
    MINE.try_with(|mine| mine.0).ok()
}

/// A node that this thread is in: it is not closed meanwhile.
pub struct Entered {
    slot: &'static Slot,
    mark: Option<&'static Mark>,
    record: *const Record,
}

impl Deref for Entered {
    type Target = Record;
    #[inline(always)]
    fn deref(&self) -> &Record {
        // SAFETY: `enter` has found the handle in the slot after it had marked it; `close` frees the record only after it has taken
        // the handle away and seen no mark, and this mark stays until the drop.
        unsafe { &*self.record }
    }
}

impl Drop for Entered {
    #[inline(always)]
    fn drop(&mut self) {
        leave(self.slot, self.mark);
    }
}

#[inline(always)]
fn leave(slot: &Slot, mark: Option<&Mark>) {
    match mark {
        Some(mark) => {
            let depth = mark.depth.load(Relaxed) - 1;
            mark.nodes[depth as usize].store(0, Release);
            mark.depth.store(depth, Relaxed);
        }
        None => drop(slot.strangers.fetch_sub(1, Release)),
    }
}

/// Enters the node of a handle, which may be anything.
#[inline(always)]
pub fn enter(handle: u64) -> Result<Entered, Errno> {
    let slot = &SLOTS[handle as usize % MOST];
    let mark = mine().filter(|mark| (mark.depth.load(Relaxed) as usize) < DEPTH);
    match mark {
        Some(mark) => {
            let depth = mark.depth.load(Relaxed);
            mark.depth.store(depth + 1, Relaxed);
            mark.nodes[depth as usize].store(handle, Relaxed);
            // edge: handle <-> marks
            if BARRIER.load(Relaxed) { compiler_fence(SeqCst) } else { fence(SeqCst) }
        }
        None => drop(slot.strangers.fetch_add(1, SeqCst)),
    }
    // edge: handle <-> marks
    if handle == 0 || slot.handle.load(SeqCst) != handle {
        leave(slot, mark);
        return Err(EBADF);
    }
    let entered = Entered { slot, mark, record: slot.record.load(Acquire) };
    if entered.owner != 0 && entered.owner != thread::token() && (entered.owner >> 32) as u32 == thread::pid() {
        return Err(EPERM); // (in a forked child the engine says so)
    }
    Ok(entered)
}

/// Keeps a node; its handle.
pub fn keep(node: Node, single: bool) -> Result<u64, Errno> {
    let free = |slot: &Slot| slot.taken.compare_exchange(false, true, Acquire, Relaxed).is_ok();
    let at = SLOTS.iter().position(free).ok_or(EMFILE)?;
    BARRIER.store(membarrier::join_threads(), Relaxed);
    let handle = (GIVEN.fetch_add(1, Relaxed) + 1) << 8 | at as u64;
    let owner = if single { thread::token() } else { 0 };
    let (messages, holdings, handlers) = Default::default();
    let record = Box::new(Record { node, owner, messages, holdings, handlers });
    SLOTS[at].pins.store(0, Relaxed);
    SLOTS[at].record.store(Box::into_raw(record), Release);
    SLOTS[at].handle.store(handle, Release);
    Ok(handle)
}

/// What `Slot::pins` says of a node that is being closed.
const CLOSING: u32 = u32::MAX;

/// Has the node of a handle stay until it is unpinned as often. Not one of a single thread, whose calls are to be checked.
pub fn pin(entered: &Entered) -> Result<&'static Record, Errno> {
    if entered.owner != 0 {
        return Err(EINVAL);
    }
    let more = |pins: u32| (pins != CLOSING).then_some(pins + 1);
    entered.slot.strangers.fetch_add(1, SeqCst); // before this thread's mark goes: see `close`
    if entered.slot.pins.fetch_update(SeqCst, SeqCst, more).is_err() {
        entered.slot.strangers.fetch_sub(1, SeqCst);
        return Err(EBADF);
    }
    // SAFETY: `close` frees the record when nobody is in it any more, and whoever has pinned it is until `unpin`.
    Ok(unsafe { &*entered.record })
}

/// Lets it go.
pub fn unpin(record: &Record) -> Result<(), Errno> {
    let at = SLOTS.iter().find(|slot| ptr::eq(slot.record.load(Acquire), record)).ok_or(EINVAL)?;
    let less = |pins: u32| pins.checked_sub(1);
    at.pins.fetch_update(SeqCst, SeqCst, less).map_err(|_| EINVAL)?;
    at.strangers.fetch_sub(1, SeqCst);
    Ok(())
}

/// Closes a node, once nobody is in it any more. Not one that is pinned.
pub fn close(handle: u64) -> Result<(), Errno> {
    let inside = mine().is_some_and(|mark| mark.inside().any(|node| node == handle));
    if inside {
        return Err(EDEADLK);
    }
    let entered = enter(handle)?;
    let slot = entered.slot;
    slot.pins
        .compare_exchange(0, CLOSING, SeqCst, SeqCst)
        .map_err(|pins| if pins == CLOSING { EBADF } else { EBUSY })?;
    // edge: handle <-> marks
    slot.handle.compare_exchange(handle, 0, SeqCst, SeqCst).map_err(|_| EBADF)?;
    let shut = entered.node.shut();
    drop(entered);
    let forked = shut.is_err_and(|error| error.errno() == ECHILD);
    if !forked {
        fence(SeqCst);
        if BARRIER.load(Relaxed) {
            membarrier::among_threads();
        }
        // edge: handle <-> marks
        // Marks first: who has pinned the node, or goes on as a stranger, is one before its mark goes.
        while marks().any(|mark| mark.inside().any(|node| node == handle)) || slot.strangers.load(SeqCst) != 0 {
            thread::nap(NAP);
        }
    }
    let record = slot.record.swap(ptr::null_mut(), SeqCst);
    if !forked && !record.is_null() {
        // SAFETY: made by `keep`, taken out of the slot here alone, and no thread is in it.
        drop(unsafe { Box::from_raw(record) });
    } // In a forked child the node is its parent's: what it would end there is forgotten here.
    slot.taken.store(false, Release);
    Ok(())
}

/// Runs a handler of the program's.
pub fn handling<R>(handler: impl FnOnce() -> R) -> R {
    struct Again<'a>(&'a Mark);
    impl Drop for Again<'_> {
        fn drop(&mut self) {
            self.0.handlers.fetch_sub(1, Relaxed);
        }
    }
    let again = mine().map(|mark| {
        mark.handlers.fetch_add(1, Relaxed);
        Again(mark)
    });
    let result = handler();
    drop(again);
    result
}

/// Whether this thread runs a handler.
pub fn is_handling() -> bool {
    mine().is_some_and(|mark| mark.handlers.load(Relaxed) > 0)
}
