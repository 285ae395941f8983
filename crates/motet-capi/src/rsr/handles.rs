//! Attachments, endpoints, startpoints and buffers by handle.
//!
//! Handles are numbers that are never used again. A forked child has none of its parent's objects, and never takes a lock that the parent may have held at the
//! fork.

use crate::messages::node_entry::NodeEntry;
use crate::messages::node_handles::{self, enter};
use crate::messages::{EBADF, ECHILD, Errno};
use motet_rsr::{Buffer, Endpoint, Rsr, Startpoint};
use motet_sys::fork_detect::ForkMark;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

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

impl Drop for Pin {
    fn drop(&mut self) {
        let _ = node_handles::unpin(self.0);
    }
}

/// A node's part in requests. It ends before its node is unpinned.
pub struct Attached {
    pub rsr: Rsr,
    /// Has another reference for each endpoint that is open.
    pub users: Arc<()>,
    pub _pin: Pin,
}

/// An endpoint.
pub struct OpenEndpoint {
    pub endpoint: Endpoint,
    pub _user: Arc<()>,
}

/// A startpoint, which may be changed.
pub type OpenStartpoint = Mutex<Startpoint>;

/// A buffer. The memory that it borrows is the program's, which keeps it as `motet_rsr.h` says.
pub type OpenBuffer = Mutex<Buffer<'static>>;

/// All objects of one kind.
pub struct Table<T>(RwLock<BTreeMap<u64, Arc<T>>>);

impl<T> Table<T> {
    const fn new() -> Self {
        Self(RwLock::new(BTreeMap::new()))
    }

    fn insert(&self, object: T) -> u64 {
        let handle = LAST_HANDLE.fetch_add(1, Relaxed) + 1;
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(handle, Arc::new(object));
        handle
    }

    fn find(&self, handle: u64) -> Result<Arc<T>, Errno> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned().ok_or(EBADF)
    }

    fn remove_if(&self, handle: u64, may: impl FnOnce(&T) -> Result<(), Errno>) -> Result<Arc<T>, Errno> {
        let mut objects = self.0.write().unwrap_or_else(PoisonError::into_inner);
        may(objects.get(&handle).ok_or(EBADF)?)?;
        objects.remove(&handle).ok_or(EBADF)
    }
}

/// The objects of one process.
pub struct Objects {
    mark: ForkMark,
    attached: Table<Attached>,
    endpoints: Table<OpenEndpoint>,
    startpoints: Table<OpenStartpoint>,
    buffers: Table<OpenBuffer>,
}

/// A kind of object.
pub trait Kind: Sized {
    /// Its table.
    fn table(objects: &Objects) -> &Table<Self>;
}

macro_rules! kinds {
    ($($kind:ty, $table:ident;)*) => {$(
        impl Kind for $kind {
            fn table(objects: &Objects) -> &Table<Self> {
                &objects.$table
            }
        }
    )*};
}

kinds! {
    Attached, attached;
    OpenEndpoint, endpoints;
    OpenStartpoint, startpoints;
    OpenBuffer, buffers;
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
        let (attached, endpoints, startpoints, buffers) = (Table::new(), Table::new(), Table::new(), Table::new());
        let own = Box::into_raw(Box::new(Objects { mark, attached, endpoints, startpoints, buffers }));
        if OBJECTS.compare_exchange(known, own, Release, Relaxed).is_err() {
            // SAFETY: made above, and no other thread has seen it.
            drop(unsafe { Box::from_raw(own) });
        }
    }
}

/// Adds an object and returns its handle.
pub fn insert<T: Kind>(object: T) -> Result<u64, Errno> {
    Ok(T::table(own_objects()?).insert(object))
}

/// The object of a handle, which may be any number.
pub fn find<T: Kind>(handle: u64) -> Result<Arc<T>, Errno> {
    T::table(objects()?).find(handle)
}

/// Takes the object of a handle out, if it may be. It ends when no other thread is in a call on it.
pub fn remove_if<T: Kind>(handle: u64, may: impl FnOnce(&T) -> Result<(), Errno>) -> Result<Arc<T>, Errno> {
    T::table(objects()?).remove_if(handle, may)
}
