//! Whether this is still the process that made something.
//!
//! What it is: a word in a page that the kernel empties in every forked child (MADV_WIPEONFORK), so that a child knows itself by a
//! load, however it was forked: no handler of ours need have run. What it is not: news of the fork to anybody else.

use crate::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// The word.
#[derive(Debug)]
pub struct Lineage(NonNull<AtomicU32>);

// SAFETY: an atomic in a mapping that lives as long as this.
unsafe impl Send for Lineage {}
// SAFETY: likewise.
unsafe impl Sync for Lineage {}

const PAGE: usize = 4096;

impl Lineage {
    /// Begins with this process.
    pub fn begin() -> Result<Self, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let page = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE, access, MapFlags::PRIVATE) }
            .map_err(|e| e.raw_os_error())?;
        let word = NonNull::new(page.cast::<AtomicU32>()).ok_or(rustix::io::Errno::NOMEM.raw_os_error())?;
        let this = Self(word);
        // SAFETY: the mapping just made, which holds nothing yet.
        unsafe { rustix::mm::madvise(page, PAGE, Advice::LinuxWipeOnFork) }.map_err(|e| e.raw_os_error())?;
        this.word().store(1, Ordering::Relaxed);
        Ok(this)
    }

    /// Whether no fork lies between whoever began and us.
    #[inline]
    pub fn is_own(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 1
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: page-aligned, mapped, and only ever used as an atomic, until this is dropped.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Lineage {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody can refer to any more.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), PAGE) };
    }
}
