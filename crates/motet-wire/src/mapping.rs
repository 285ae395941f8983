//! A range of addresses that stays mapped for the life of the process: what makes views into it safe.

/// Memory whose range is never unmapped. What lies there may change under a view: a peer writes it at any time, and when its
/// segment is given up, zero pages and later another segment take its place.
#[derive(Debug, Clone, Copy)]
pub struct Mapping {
    base: *mut u8,
    length: usize,
}

// SAFETY: the memory outlives every thread, and views into it consist of atomics and of copies of plain bytes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// # Safety
    /// `base` is page-aligned and `length` bytes from it stay mapped, readable and (unless every view is read only)
    /// writable, until the process ends.
    pub const unsafe fn new(base: *mut u8, length: usize) -> Self {
        Self { base, length }
    }

    /// Bytes.
    pub const fn length(&self) -> usize {
        self.length
    }

    /// The address, for system calls about the mapping itself.
    pub const fn base(&self) -> *mut u8 {
        self.base
    }

    /// The address of `length` bytes at `offset`, if they lie inside.
    pub(crate) fn at(&self, offset: usize, length: usize) -> Option<*mut u8> {
        let end = offset.checked_add(length)?;
        // SAFETY: offset + length <= self.length, all of it one mapping.
        (end <= self.length).then(|| unsafe { self.base.add(offset) })
    }
}
