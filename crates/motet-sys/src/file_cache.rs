//! What the kernel has of a file in memory, and reads that are whole.

use rustix::fd::{AsFd, AsRawFd};
use rustix::io::{Errno, pread};

const PAGE_BYTES: u64 = 4096;

/// Whether the kernel has all pages of a range in memory (cachestat, Linux 6.5). False also if it does not say.
pub fn is_cached(file: impl AsFd, offset: u64, length: u64) -> bool {
    let range = [offset, length];
    // The pages that are cached, dirty, being written, evicted, and recently evicted.
    let mut counts = [0u64; 5];
    if length == 0 {
        return true;
    }
    // SAFETY: the kernel reads a `struct cachestat_range` of two words and writes a `struct cachestat` of five words, into memory of these sizes.
    let asked = unsafe {
        syscalls::syscall!(syscalls::Sysno::cachestat, file.as_fd().as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0)
    };
    let end = offset.saturating_add(length);
    asked.is_ok() && counts[0] >= end.div_ceil(PAGE_BYTES) - offset / PAGE_BYTES
}

/// Reads a range. Bytes that the file does not have are zeros.
pub fn read(file: impl AsFd, offset: u64, length: u64) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; usize::try_from(length).map_err(|_| Errno::INVAL)?];
    let mut done = 0;
    while done < bytes.len() {
        match pread(file.as_fd(), &mut bytes[done..], offset.saturating_add(done as u64)) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::io::pwrite;

    #[test]
    fn written_pages_are_cached_and_holes_are_not() {
        let file = memfd_create("cache", MemfdFlags::CLOEXEC).unwrap();
        let bytes = [7; 3 * PAGE_BYTES as usize];
        assert_eq!(pwrite(&file, &bytes, PAGE_BYTES).unwrap(), bytes.len());
        if is_cached(&file, PAGE_BYTES, 3 * PAGE_BYTES) {
            assert!(is_cached(&file, PAGE_BYTES + 100, 2 * PAGE_BYTES) && is_cached(&file, 0, 0));
        } else {
            eprintln!("SKIPPED: the kernel has no cachestat");
        }
        for (offset, length) in [(0, 100), (PAGE_BYTES - 1, 2), (4 * PAGE_BYTES - 1, 2), (1 << 40, 10)] {
            assert!(!is_cached(&file, offset, length), "{offset} {length}");
        }
        assert_eq!(read(&file, 4 * PAGE_BYTES - 2, 5).unwrap(), [7, 7, 0, 0, 0]);
        assert!(read(std::fs::File::open("/").unwrap(), 0, 1).is_err());
    }
}
