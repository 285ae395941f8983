//! A memory barrier on every CPU that runs a registered process, or a thread of this process (membarrier(2)).
//!
//! The rare side of a store-load pair (a sleeper, a revoker) executes it so that the frequent side needs no fence.

use std::sync::OnceLock;
use syscalls::{Sysno, syscall};

const GLOBAL_EXPEDITED: usize = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: usize = 1 << 2;
const PRIVATE_EXPEDITED: usize = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: usize = 1 << 4;

fn call(command: usize) -> bool {
    // SAFETY: membarrier takes numbers only and changes no memory.
    unsafe { syscall!(Sysno::membarrier, command, 0, 0) }.is_ok()
}

/// Registers this process for [`global_barrier`]s, those of other processes included. False if the system has none. The kernel keeps the
/// registration across forks.
pub fn register_global() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| call(REGISTER_GLOBAL_EXPEDITED))
}

/// A barrier on this CPU and on all CPUs that run a process with a [registration](register_global). Costs about a microsecond.
/// If the system refuses the call, this is a fence on this CPU only.
pub fn global_barrier() {
    if !call(GLOBAL_EXPEDITED) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }
}

/// Registers this process for [`private_barrier`]. False if the system has none.
pub fn register_private() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| call(REGISTER_PRIVATE_EXPEDITED))
}

/// A barrier on this CPU and on all CPUs that run a thread of this process. False: the system refused the call, so there was none.
pub fn private_barrier() -> bool {
    call(PRIVATE_EXPEDITED)
}

#[cfg(test)]
mod tests {
    #[test]
    fn kernel_accepts_repeated_registration_and_barriers() {
        assert!(
            super::register_global()
                && super::register_global()
                && super::register_private()
                && super::private_barrier()
        );
        super::global_barrier();
    }
}
