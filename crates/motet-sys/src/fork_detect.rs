//! Fork detection: whether a value belongs to this process or was inherited from a parent.
//!
//! What it is: one word in a page that the kernel zeroes in every forked child (MADV_WIPEONFORK). A check is one load, and it works
//! for every kind of fork, also one that runs no `pthread_atfork` handler. A child made by vfork shares the page with its parent and counts
//! as the parent.
//!
//! What it is not: a notification. A child learns of the fork when it checks.

use crate::{Errno, thread};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Marks given so far by this process and the processes that it descends from. A child inherits the count, so its own mark differs from
/// every mark that it can have inherited. (A process number would not: in a new PID namespace parent and child may have equal numbers.)
static MARKS_GIVEN: AtomicU32 = AtomicU32::new(0);

/// The word in the page, mapped on first use; null before. No lock guards it: a child may be forked at any moment of its initialisation.
static MARK_WORD: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// The identity of the process that created a value.
#[derive(Debug, Clone, Copy)]
pub struct ForkMark {
    /// The mark of the running process; 0 in a child that has not taken one.
    word: &'static AtomicU32,
    /// The mark of the process that created this value.
    process: u32,
}

impl ForkMark {
    /// The mark of this process. All values that one process creates have equal marks.
    ///
    /// Errors: the system's, if it gives no page, or cannot wipe it on fork.
    pub fn of_this_process() -> Result<Self, Errno> {
        let word = word()?;
        let mut process = word.load(Ordering::Relaxed);
        if process == 0 {
            thread::real_pid(); // refreshes the cached number, which a fork without handlers leaves stale
            let fresh = MARKS_GIVEN.fetch_add(1, Ordering::Relaxed) + 1;
            // If several threads get here at the same time, one sets the mark of all.
            process = match word.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => fresh,
                Err(set) => set,
            };
        }
        Ok(Self { word, process })
    }

    /// Whether the running process is the one that created this value.
    #[inline(always)]
    pub fn is_own(&self) -> bool {
        self.current() == self.process
    }

    /// The mark of the running process; 0 in a child that has not taken one.
    #[inline(always)]
    pub fn current(&self) -> u32 {
        self.word.load(Ordering::Relaxed)
    }
}

/// The word of [`MARK_WORD`], mapped if this is the first call.
fn word() -> Result<&'static AtomicU32, Errno> {
    // edge: page mapped -> word read
    let mut word = MARK_WORD.load(Ordering::Acquire);
    if word.is_null() {
        let page = map_page()?;
        // edge: page mapped -> word read
        word = match MARK_WORD.compare_exchange(word, page, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => page,
            Err(first) => {
                // SAFETY: the page just mapped, to which no reference exists. Another thread was first.
                let _ = unsafe { rustix::mm::munmap(page.cast(), PAGE_BYTES) };
                first
            }
        };
    }
    // SAFETY: only pages of `map_page` are stored in `MARK_WORD`. They are never unmapped, page-aligned and zero at first, and any
    // bytes are a valid AtomicU32.
    Ok(unsafe { &*word })
}

const PAGE_BYTES: usize = 4096;

/// Maps a page that the kernel zeroes in forked children.
fn map_page() -> Result<*mut AtomicU32, Errno> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice, to which no reference exists; the advice changes no contents here.
    let page = unsafe {
        let page = rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE_BYTES, access, MapFlags::PRIVATE);
        let page = page.map_err(|e| e.raw_os_error())?;
        if let Err(errno) = rustix::mm::madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork) {
            let _ = rustix::mm::munmap(page, PAGE_BYTES);
            return Err(errno.raw_os_error());
        }
        page
    };
    Ok(page.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_one_process_are_equal_and_own() {
        let mark = ForkMark::of_this_process().unwrap();
        assert!(mark.is_own() && mark.current() != 0);
        assert_eq!(ForkMark::of_this_process().unwrap().current(), mark.current());
    }

    #[test]
    fn mark_of_the_parent_is_foreign_in_a_child() {
        let parent = ForkMark::of_this_process().unwrap();
        let child = || {
            let before = !parent.is_own() && parent.current() == 0;
            let own = ForkMark::of_this_process().unwrap();
            before && own.is_own() && !parent.is_own() && own.current() != parent.process
        };
        // The child makes system calls and ends; it takes no lock that another thread may have held.
        let number = fork();
        if number == 0 {
            let failed = usize::from(!child());
            // SAFETY: ends the child.
            let _ = unsafe { syscalls::syscall!(syscalls::Sysno::exit_group, failed) };
        }
        let number = rustix::process::Pid::from_raw(number).expect("fork");
        let ended = rustix::process::waitpid(Some(number), rustix::process::WaitOptions::empty()).unwrap();
        assert_eq!(ended.and_then(|(_, status)| status.exit_status()), Some(0));
        assert!(parent.is_own(), "the child's mark is not seen here");
    }

    unsafe extern "C" {
        safe fn fork() -> i32;
    }
}
