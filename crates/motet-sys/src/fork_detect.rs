//! Whether this still is the process that made something, however it was forked: a page that the kernel wipes in a child.

use crate::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The mark of the process that made it.
#[derive(Debug, Clone, Copy)]
pub struct Birth(&'static AtomicU32);

impl Birth {
    /// The mark of this process.
    pub fn mark() -> Result<Self, Errno> {
        static PAGE: OnceLock<Result<Birth, Errno>> = OnceLock::new();
        let birth = (*PAGE.get_or_init(make))?;
        // In a child the page is empty until somebody there marks it; what the parent made knows the parent's number.
        if birth.0.load(Ordering::Relaxed) == 0 {
            birth.0.store(crate::thread::real_pid(), Ordering::Relaxed);
        }
        Ok(birth)
    }

    /// The number of the process, as marked: 0 in a child in which nobody has.
    #[inline(always)]
    pub fn process(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

fn make() -> Result<Birth, Errno> {
    const PAGE: usize = 4096;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice, never unmapped, zero, and an AtomicU32 is valid for any bytes.
    unsafe {
        let base = rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE, access, MapFlags::PRIVATE)
            .map_err(|e| e.raw_os_error())?;
        rustix::mm::madvise(base, PAGE, Advice::LinuxWipeOnFork).map_err(|e| e.raw_os_error())?;
        Ok(Birth(&*base.cast::<AtomicU32>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_knows_itself() {
        let birth = Birth::mark().unwrap();
        assert_eq!(birth.process(), crate::thread::real_pid());
        assert_eq!(Birth::mark().unwrap().process(), birth.process());
    }
}
