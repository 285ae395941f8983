//! MPI libraries over the libfabric provider, alone and beside CORBA and sockets.

mod launch;
mod provider;
mod suites;
mod together;

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Held exclusively by tests whose ranks need every CPU, and shared by those that may run two at a time.
static CPUS: RwLock<()> = RwLock::new(());

fn alone() -> RwLockWriteGuard<'static, ()> {
    CPUS.write().unwrap_or_else(PoisonError::into_inner)
}

fn beside_others() -> RwLockReadGuard<'static, ()> {
    CPUS.read().unwrap_or_else(PoisonError::into_inner)
}
