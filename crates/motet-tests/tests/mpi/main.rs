//! MPI libraries over the libfabric provider, alone and together with CORBA and sockets.

mod launch;
mod provider;
mod session_example;
mod suites;
mod together;

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Held exclusively by tests whose ranks need every CPU, and shared by tests that may run at the same time.
static CPUS: RwLock<()> = RwLock::new(());

fn exclusive_cpus() -> RwLockWriteGuard<'static, ()> {
    CPUS.write().unwrap_or_else(PoisonError::into_inner)
}

fn shared_cpus() -> RwLockReadGuard<'static, ()> {
    CPUS.read().unwrap_or_else(PoisonError::into_inner)
}
