//! A memory barrier on every CPU that runs a process of ours (`membarrier`): what a sleeper pays so that those who wake it need
//! no fence of their own.

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

/// Lets the barriers of other processes reach the threads of this one. False where the system cannot. Once per process image:
/// the kernel remembers it, across forks, too.
pub fn join() -> bool {
    static JOINED: OnceLock<bool> = OnceLock::new();
    *JOINED.get_or_init(|| call(REGISTER_GLOBAL_EXPEDITED))
}

/// A barrier on this CPU and on all that run a process which has [joined](join). Costs about a microsecond.
pub fn everywhere() {
    if !call(GLOBAL_EXPEDITED) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }
}

/// Lets [`among_threads`] work. False where the system cannot.
pub fn join_threads() -> bool {
    static JOINED: OnceLock<bool> = OnceLock::new();
    *JOINED.get_or_init(|| call(REGISTER_PRIVATE_EXPEDITED))
}

/// A barrier on this CPU and on all that run a thread of this process. False: there was none on the others.
pub fn among_threads() -> bool {
    call(PRIVATE_EXPEDITED)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_kernel_has_it_and_takes_it_again_and_again() {
        assert!(super::join() && super::join() && super::join_threads() && super::among_threads());
        super::everywhere();
    }
}
