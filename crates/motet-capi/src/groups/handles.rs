//! Memberships, groups and circuits by handle.
//!
//! Handles are numbers that are never used again. Each object pins its node: `motet_node_close` gives -EBUSY until the last one is closed. A forked child
//! has none of its parent's objects, and never takes a lock that the parent may have held at the fork.

use crate::messages::node_entry::NodeEntry;
use crate::messages::node_handles::{self, enter};
use crate::messages::{EBADF, ECHILD, Errno};
use motet_group::{Circuit, EndPoint, Group, Membership};
use motet_sys::fork_detect::ForkMark;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU64};
use std::sync::{Arc, PoisonError, RwLock};

/// The handle that was given last.
static LAST_HANDLE: AtomicU64 = AtomicU64::new(0);
/// The objects of this process or, after a fork, of its parent.
static OBJECTS: AtomicPtr<Objects> = AtomicPtr::new(ptr::null_mut());

/// A node that cannot be closed.
pub struct Pin(&'static NodeEntry);

impl Pin {
    /// Pins the node of a handle. -EINVAL: it is for one thread only.
    pub fn new(node: u64) -> Result<Self, Errno> {
        node_handles::pin(&enter(node)?).map(Self)
    }

    /// The node.
    pub fn entry(&self) -> &NodeEntry {
        self.0
    }
}

impl Clone for Pin {
    fn clone(&self) -> Self {
        node_handles::pin_again(self.0);
        Self(self.0)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let _ = node_handles::unpin(self.0);
    }
}

/// An object of the program, with its node. The object is dropped first.
pub struct Pinned<T> {
    pub object: T,
    pub pin: Pin,
}

/// All objects of one kind.
pub struct Table<T>(RwLock<BTreeMap<u64, Arc<Pinned<T>>>>);

impl<T> Table<T> {
    const fn new() -> Self {
        Self(RwLock::new(BTreeMap::new()))
    }

    fn insert(&self, object: T, pin: Pin) -> u64 {
        let handle = LAST_HANDLE.fetch_add(1, Relaxed) + 1;
        let mut objects = self.0.write().unwrap_or_else(PoisonError::into_inner);
        objects.insert(handle, Arc::new(Pinned { object, pin }));
        handle
    }

    fn find(&self, handle: u64) -> Result<Arc<Pinned<T>>, Errno> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned().ok_or(EBADF)
    }

    fn remove(&self, handle: u64) -> Result<Arc<Pinned<T>>, Errno> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&handle).ok_or(EBADF)
    }
}

/// The objects of one process.
pub struct Objects {
    mark: ForkMark,
    memberships: Table<Membership>,
    groups: Table<Group>,
    circuits: Table<Circuit>,
    end_points: Table<EndPoint>,
}

/// A kind of object.
pub trait Kind: Sized {
    /// Its table.
    fn table(objects: &Objects) -> &Table<Self>;
}

impl Kind for Membership {
    fn table(objects: &Objects) -> &Table<Self> {
        &objects.memberships
    }
}

impl Kind for Group {
    fn table(objects: &Objects) -> &Table<Self> {
        &objects.groups
    }
}

impl Kind for Circuit {
    fn table(objects: &Objects) -> &Table<Self> {
        &objects.circuits
    }
}

impl Kind for EndPoint {
    fn table(objects: &Objects) -> &Table<Self> {
        &objects.end_points
    }
}

/// The tables of this process. -ECHILD: there are those of its parent only; -EBADF: there are none.
fn objects() -> Result<&'static Objects, Errno> {
    // SAFETY: tables are leaked boxes.
    match unsafe { OBJECTS.load(Acquire).as_ref() } {
        Some(objects) if objects.mark.is_own() => Ok(objects),
        Some(_) => Err(ECHILD),
        None => Err(EBADF),
    }
}

/// The tables of this process, which are made if there are none.
fn own_objects() -> Result<&'static Objects, Errno> {
    loop {
        if let Ok(objects) = objects() {
            return Ok(objects);
        }
        let mark = ForkMark::of_this_process()?;
        let known = OBJECTS.load(Acquire);
        let (memberships, groups, circuits, end_points) = (Table::new(), Table::new(), Table::new(), Table::new());
        let own = Box::new(Objects { mark, memberships, groups, circuits, end_points });
        let own = Box::into_raw(own);
        if OBJECTS.compare_exchange(known, own, Release, Relaxed).is_err() {
            // SAFETY: made above, and no other thread has seen it.
            drop(unsafe { Box::from_raw(own) });
        }
    }
}

/// Adds an object and returns its handle.
pub fn insert<T: Kind>(object: T, pin: Pin) -> Result<u64, Errno> {
    Ok(T::table(own_objects()?).insert(object, pin))
}

/// The object of a handle, which may be any number.
pub fn find<T: Kind>(handle: u64) -> Result<Arc<Pinned<T>>, Errno> {
    T::table(objects()?).find(handle)
}

/// Takes the object of a handle out. It ends when no other thread is in a call on it.
pub fn remove<T: Kind>(handle: u64) -> Result<Arc<Pinned<T>>, Errno> {
    T::table(objects()?).remove(handle)
}
