//! Objects that programs know by handle: those of groups, of files, and of remote service requests.
//!
//! Handles are numbers that are never used again. A forked child has none of its parent's objects, and never takes a lock that the parent may have held at the
//! fork.

use crate::messages::{EBADF, ECHILD, Errno};
use motet_sys::fork_detect::ForkMark;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU64};
use std::sync::{Arc, PoisonError, RwLock};

/// The handle that was given last.
static LAST_HANDLE: AtomicU64 = AtomicU64::new(0);

/// All objects of one kind.
pub struct Table<T>(RwLock<BTreeMap<u64, Arc<T>>>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(RwLock::new(BTreeMap::new()))
    }
}

impl<T> Table<T> {
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

/// The tables of one process.
struct Tables<T> {
    mark: ForkMark,
    tables: T,
}

/// The tables of this process or, after a fork, of its parent.
pub struct ProcessTables<T>(AtomicPtr<Tables<T>>);

impl<T: Default> ProcessTables<T> {
    /// None yet.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Those of this process. -ECHILD: there are those of its parent only; -EBADF: there are none.
    fn present(&'static self) -> Result<&'static T, Errno> {
        // SAFETY: tables are leaked boxes.
        match unsafe { self.0.load(Acquire).as_ref() } {
            Some(tables) if tables.mark.is_own() => Ok(&tables.tables),
            Some(_) => Err(ECHILD),
            None => Err(EBADF),
        }
    }

    /// Those of this process, which are made if there are none.
    fn own(&'static self) -> Result<&'static T, Errno> {
        loop {
            if let Ok(tables) = self.present() {
                return Ok(tables);
            }
            let mark = ForkMark::of_this_process()?;
            let known = self.0.load(Acquire);
            let own = Box::into_raw(Box::new(Tables { mark, tables: T::default() }));
            if self.0.compare_exchange(known, own, Release, Relaxed).is_err() {
                // SAFETY: made above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(own) });
            }
        }
    }
}

/// A kind of object.
pub trait Kind: Sized + 'static {
    /// The tables among which its own is.
    type Tables: Default + 'static;

    /// Where those of the process are.
    fn of_process() -> &'static ProcessTables<Self::Tables>;

    /// Its table.
    fn table(tables: &Self::Tables) -> &Table<Self>;
}

/// Declares the tables of a part of the interface: `kinds! { Type, name; … }`.
macro_rules! kinds {
    ($($kind:ty, $table:ident;)*) => {
        /// The objects of this part of the interface.
        #[derive(Default)]
        pub struct Objects {
            $($table: $crate::objects::Table<$kind>,)*
        }

        static OBJECTS: $crate::objects::ProcessTables<Objects> = $crate::objects::ProcessTables::new();

        $(impl $crate::objects::Kind for $kind {
            type Tables = Objects;

            fn of_process() -> &'static $crate::objects::ProcessTables<Objects> {
                &OBJECTS
            }

            fn table(tables: &Objects) -> &$crate::objects::Table<$kind> {
                &tables.$table
            }
        })*
    };
}
pub(crate) use kinds;

/// Adds an object and returns its handle.
pub fn insert<T: Kind>(object: T) -> Result<u64, Errno> {
    Ok(T::table(T::of_process().own()?).insert(object))
}

/// The object of a handle, which may be any number.
pub fn find<T: Kind>(handle: u64) -> Result<Arc<T>, Errno> {
    T::table(T::of_process().present()?).find(handle)
}

/// Takes the object of a handle out, if it may be. It ends when no other thread is in a call on it.
pub fn remove_if<T: Kind>(handle: u64, may: impl FnOnce(&T) -> Result<(), Errno>) -> Result<Arc<T>, Errno> {
    T::table(T::of_process().present()?).remove_if(handle, may)
}
