//! Nodes by handle.
//!
//! What it is: a fixed table of nodes, and a hazard cell for every thread that names the nodes in which the thread is. To enter a node costs
//! a store and a load. Closing a node clears its handle, executes the heavy side of an [`asymmetric_fence`], and waits until no hazard cell
//! names it (hazard pointers: Michael, IEEE TPDS 15(6), 2004). What it is not: it knows no call of a node.
//!
//! A handle is the index in the table plus a number that is never used counted, so that a stale or invented handle is detected.

use super::node_entry::NodeEntry;
use super::{EBADF, EBUSY, ECHILD, EDEADLK, EINVAL, EMFILE, EPERM, Errno};
use motet_engine::message::Node;
use motet_sys::{asymmetric_fence, thread};
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};

/// Most nodes of a process: the index is the low byte of a handle.
const MAX_NODES: usize = 256;
/// Nodes that a hazard cell can name: each one entered from within a handler of the previous one. Deeper ones are counted in the cell.
const HAZARD_DEPTH: usize = 4;
/// Time between two checks of [`close`] for threads that are inside, ns.
const CLOSE_POLL_NS: u64 = 50_000;

struct NodeCell {
    taken: AtomicBool,
    /// 0: closed, or not open yet.
    handle: AtomicU64,
    entry: AtomicPtr<NodeEntry>,
    /// Threads inside without a hazard cell, and pins.
    counted_users: AtomicU32,
    /// Pins: open ports, memberships, groups and circuits.
    pins: AtomicU32,
}

static CELLS: [NodeCell; MAX_NODES] = [const {
    NodeCell {
        taken: AtomicBool::new(false),
        handle: AtomicU64::new(0),
        entry: AtomicPtr::new(ptr::null_mut()),
        counted_users: AtomicU32::new(0),
        pins: AtomicU32::new(0),
    }
}; MAX_NODES];

/// The number of the node opened last.
static LAST_NODE_NUMBER: AtomicU64 = AtomicU64::new(0);

/// The nodes in which a thread is. Hazard slots are never freed: a new thread takes the cell of a thread that has exited.
#[repr(align(64))]
#[derive(Default)]
struct HazardSlot {
    nodes: [AtomicU64; HAZARD_DEPTH],
    /// How many of `nodes` are used. Only the thread itself uses this field.
    depth: AtomicU32,
    /// Handlers that the thread runs. Only the thread itself uses this field.
    handlers: AtomicU32,
    taken: AtomicBool,
    next: AtomicPtr<HazardSlot>,
}

static HAZARD_SLOTS: AtomicPtr<HazardSlot> = AtomicPtr::new(ptr::null_mut());

/// All hazard slots.
fn hazard_slots() -> impl Iterator<Item = &'static HazardSlot> {
    // SAFETY: hazard slots are leaked boxes.
    let follow = |at: &AtomicPtr<HazardSlot>| unsafe { at.load(Acquire).as_ref() };
    std::iter::successors(follow(&HAZARD_SLOTS), move |hazard| follow(&hazard.next))
}

impl HazardSlot {
    #[cold]
    fn take() -> &'static Self {
        let free = hazard_slots().find(|hazard| hazard.taken.compare_exchange(false, true, Acquire, Relaxed).is_ok());
        free.unwrap_or_else(|| {
            let hazard: &'static HazardSlot = Box::leak(Box::default());
            hazard.taken.store(true, Relaxed);
            let mut first = HAZARD_SLOTS.load(Relaxed);
            loop {
                hazard.next.store(first, Relaxed);
                match HAZARD_SLOTS.compare_exchange_weak(first, ptr::from_ref(hazard).cast_mut(), Release, Relaxed) {
                    Ok(_) => return hazard,
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

/// This thread's hazard cell, freed for others when the thread exits.
struct ThisThread(&'static HazardSlot);

impl Drop for ThisThread {
    fn drop(&mut self) {
        self.0.taken.store(false, Release);
    }
}

thread_local! {
    static THIS_THREAD: ThisThread = ThisThread(HazardSlot::take());
}

/// This thread's hazard cell; `None` in a thread that is exiting.
#[inline(always)]
fn this_thread() -> Option<&'static HazardSlot> {
    THIS_THREAD.try_with(|this_thread| this_thread.0).ok()
}

/// A node in which this thread is: it is not closed before this is dropped.
pub struct NodeRef {
    cell: &'static NodeCell,
    hazard: Option<&'static HazardSlot>,
    entry: *const NodeEntry,
}

impl Deref for NodeRef {
    type Target = NodeEntry;
    #[inline(always)]
    fn deref(&self) -> &NodeEntry {
        // SAFETY: `enter` found the handle in the cell after it had set the hazard cell. `close` frees the entry only after it has cleared
        // the handle and no hazard cell names it, and this cell is set until the drop.
        unsafe { &*self.entry }
    }
}

impl Drop for NodeRef {
    #[inline(always)]
    fn drop(&mut self) {
        leave(self.cell, self.hazard);
    }
}

#[inline(always)]
fn leave(cell: &NodeCell, hazard: Option<&HazardSlot>) {
    match hazard {
        Some(hazard) => {
            let depth = hazard.depth.load(Relaxed) - 1;
            hazard.nodes[depth as usize].store(0, Release);
            hazard.depth.store(depth, Relaxed);
        }
        None => drop(cell.counted_users.fetch_sub(1, Release)),
    }
}

/// Enters the node of a handle; the handle may be any number.
#[inline(always)]
pub fn enter(handle: u64) -> Result<NodeRef, Errno> {
    let cell = &CELLS[handle as usize % MAX_NODES];
    let hazard = this_thread().filter(|hazard| (hazard.depth.load(Relaxed) as usize) < HAZARD_DEPTH);
    match hazard {
        Some(hazard) => {
            let depth = hazard.depth.load(Relaxed);
            hazard.depth.store(depth + 1, Relaxed);
            hazard.nodes[depth as usize].store(handle, Relaxed);
            asymmetric_fence::light(); // edge: handle <-> hazard_slots; the heavy side: `close`
        }
        None => drop(cell.counted_users.fetch_add(1, SeqCst)),
    }
    // edge: handle <-> hazard_slots
    if handle == 0 || cell.handle.load(SeqCst) != handle {
        leave(cell, hazard);
        return Err(EBADF);
    }
    let entered = NodeRef { cell, hazard, entry: cell.entry.load(Acquire) };
    if entered.owner != 0 && entered.owner != thread::token() && (entered.owner >> 32) as u32 == thread::pid() {
        return Err(EPERM); // in a forked child the engine returns -ECHILD
    }
    Ok(entered)
}

/// Adds a node and returns its handle.
pub fn insert(node: Node, single: bool) -> Result<u64, Errno> {
    let free = |cell: &NodeCell| cell.taken.compare_exchange(false, true, Acquire, Relaxed).is_ok();
    let at = CELLS.iter().position(free).ok_or(EMFILE)?;
    asymmetric_fence::register();
    let handle = (LAST_NODE_NUMBER.fetch_add(1, Relaxed) + 1) << 8 | at as u64;
    let owner = if single { thread::token() } else { 0 };
    let entry = Box::new(NodeEntry::new(node, owner));
    CELLS[at].pins.store(0, Relaxed);
    CELLS[at].entry.store(Box::into_raw(entry), Release);
    CELLS[at].handle.store(handle, Release);
    Ok(handle)
}

/// The value of `NodeCell::pins` while the node is being closed.
const CLOSING: u32 = u32::MAX;

/// Keeps the node open until [`unpin`] is called as often. Refused for a node of a single thread, because calls through a pin are not checked.
pub fn pin(entered: &NodeRef) -> Result<&'static NodeEntry, Errno> {
    if entered.owner != 0 {
        return Err(EINVAL);
    }
    let more = |pins: u32| (pins != CLOSING).then_some(pins + 1);
    entered.cell.counted_users.fetch_add(1, SeqCst); // before this thread leaves its hazard cell: `close` reads the slots first
    if entered.cell.pins.fetch_update(SeqCst, SeqCst, more).is_err() {
        entered.cell.counted_users.fetch_sub(1, SeqCst);
        return Err(EBADF);
    }
    // SAFETY: `close` frees the entry only when `counted_users` is 0, and this pin counts there until `unpin`.
    Ok(unsafe { &*entered.entry })
}

/// Adds a pin to a node that is pinned.
pub fn pin_again(entry: &NodeEntry) {
    if let Some(cell) = CELLS.iter().find(|cell| ptr::eq(cell.entry.load(Acquire), entry)) {
        cell.counted_users.fetch_add(1, SeqCst);
        cell.pins.fetch_add(1, SeqCst);
    }
}

/// Removes a pin.
pub fn unpin(entry: &NodeEntry) -> Result<(), Errno> {
    let at = CELLS.iter().find(|cell| ptr::eq(cell.entry.load(Acquire), entry)).ok_or(EINVAL)?;
    let less = |pins: u32| pins.checked_sub(1);
    at.pins.fetch_update(SeqCst, SeqCst, less).map_err(|_| EINVAL)?;
    at.counted_users.fetch_sub(1, SeqCst);
    Ok(())
}

/// Closes a node when no thread is inside any more. -EBUSY while it is pinned.
pub fn close(handle: u64) -> Result<(), Errno> {
    let inside = this_thread().is_some_and(|hazard| hazard.inside().any(|node| node == handle));
    if inside {
        return Err(EDEADLK);
    }
    let entered = enter(handle)?;
    let cell = entered.cell;
    if entered.node.is_inherited() {
        cell.pins.store(CLOSING, SeqCst); // the parent's pins
    } else {
        let closing = cell.pins.compare_exchange(0, CLOSING, SeqCst, SeqCst);
        closing.map_err(|pins| if pins == CLOSING { EBADF } else { EBUSY })?;
    }
    // edge: handle <-> hazard_slots
    cell.handle.compare_exchange(handle, 0, SeqCst, SeqCst).map_err(|_| EBADF)?;
    let shut = entered.node.shut_down();
    drop(entered);
    let forked = shut.is_err_and(|error| error.errno() == ECHILD);
    if !forked {
        asymmetric_fence::heavy();
        // edge: handle <-> hazard_slots
        // Hazard slots first: a thread that pins the node is counted in `counted_users` before it clears its cell.
        while hazard_slots().any(|hazard| hazard.inside().any(|node| node == handle))
            || cell.counted_users.load(SeqCst) != 0
        {
            thread::sleep_ns(CLOSE_POLL_NS);
        }
    }
    let entry = cell.entry.swap(ptr::null_mut(), SeqCst);
    if !forked && !entry.is_null() {
        // SAFETY: made by `insert`, taken out of the cell only here, and no thread is inside.
        drop(unsafe { Box::from_raw(entry) });
    } // A forked child forgets the node: it is the parent's.
    cell.taken.store(false, Release);
    Ok(())
}

/// Runs a handler of the program, and counts it in the thread's hazard cell.
pub fn run_handler<R>(handler: impl FnOnce() -> R) -> R {
    struct Counted<'a>(&'a HazardSlot);
    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.0.handlers.fetch_sub(1, Relaxed);
        }
    }
    let counted = this_thread().map(|hazard| {
        hazard.handlers.fetch_add(1, Relaxed);
        Counted(hazard)
    });
    let result = handler();
    drop(counted);
    result
}

/// Whether this thread runs a handler.
pub fn in_handler() -> bool {
    this_thread().is_some_and(|hazard| hazard.handlers.load(Relaxed) > 0)
}
