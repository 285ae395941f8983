//! A range of addresses that stays mapped until the process ends, which makes views into it safe.

/// A range of memory that is never unmapped. Its contents may change under a view: a peer writes it at any time, and when its segment is
/// released, zero pages and later another segment replace it.
#[derive(Debug, Clone, Copy)]
pub struct Mapping {
    base: *mut u8,
    length: usize,
}

// SAFETY: the memory outlives every thread, and views into it consist of atomics and of copies of plain bytes.
unsafe impl Send for Mapping {}
// SAFETY: as for Send: a shared Mapping gives access by atomics and by copies of plain bytes only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// # Safety
    /// `base` is page-aligned and `length` bytes from it stay mapped, readable and (unless every view is read only)
    /// writable, until the process ends.
    pub const unsafe fn new(base: *mut u8, length: usize) -> Self {
        Self { base, length }
    }

    /// Bytes of the mapping.
    pub const fn length(&self) -> usize {
        self.length
    }

    /// The first address, for system calls on the mapping itself.
    pub const fn base(&self) -> *mut u8 {
        self.base
    }

    /// The address of `length` bytes at `offset`; `None` if they are not all inside.
    pub(crate) fn at(&self, offset: usize, length: usize) -> Option<*mut u8> {
        let end = offset.checked_add(length)?;
        // SAFETY: offset + length <= self.length, all of it one mapping.
        (end <= self.length).then(|| unsafe { self.base.add(offset) })
    }
}
