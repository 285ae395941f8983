//! Reads that need no memory of the server: what is asked for is named as a range of the file, and sent from the kernel's cache.

use super::{FileTable, SHORT_READ_BYTES, Tree};
use crate::protocol::MAX_DATA_BYTES;
use motet::node::{FileRange, is_cached};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};

/// The range of an open file that a long read gets. `None`: it is read otherwise, because it is short, fails, or would wait for a device.
pub fn range_of_read(tree: &Tree, files: &FileTable, file: u32, offset: u64, length: u32) -> Option<FileRange> {
    let length = u64::from(length);
    if length <= SHORT_READ_BYTES as u64 || length > MAX_DATA_BYTES as u64 {
        return None;
    }
    let file = files.get(file).ok().filter(|file| tree.has_device(file.identity().0))?;
    let found = fstat(file.descriptor()).ok()?;
    let length = length.min(u64::try_from(found.st_size).ok()?.saturating_sub(offset));
    let flags = fcntl_getfl(file.descriptor()).ok()?;
    let is_read = matches!(flags & OFlags::RWMODE, OFlags::RDONLY | OFlags::RDWR);
    let is_usable = is_read && file.past_cache().is_none() && !flags.intersects(OFlags::DIRECT | OFlags::PATH);
    if length <= SHORT_READ_BYTES as u64
        || !is_usable
        || FileType::from_raw_mode(found.st_mode) != FileType::RegularFile
    {
        return None;
    }
    let range = FileRange::new(file.descriptor().try_clone_to_owned().ok()?, offset, length)?;
    (tree.is_in_memory() || is_cached(&range)).then_some(range)
}
