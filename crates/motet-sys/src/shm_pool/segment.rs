//! Memory of one process that other processes map: the owner's end ([`PoolSegment`]) and the peer's end ([`PeerMapping`], [`PeerBytes`]).
//!
//! A segment is a memfd that is sealed against resizing. One for loans is also sealed against writes by other processes, after its owner
//! has mapped it (F_SEAL_FUTURE_WRITE, Linux 5.1). A peer does not trust the owner: it checks size, seals and kind of memory by the kernel.
//! At both ends the address range outlives the mapping ([`AddressRanges`]), so a view that is kept too long shows zeros.

use crate::memory::{self, Access, AddressRanges};
use crate::private_fds::PrivateFd;
use motet_wire::mapping::Mapping;
use motet_wire::shared_memory::SharedBytes;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::SealFlags;
use rustix::io::Errno;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A segment's length is a multiple of this.
pub const PAGE_BYTES: usize = 4096;

/// The address ranges of segments, peer mappings and file regions in sealed memfds.
static RANGES: Mutex<AddressRanges> = Mutex::new(AddressRanges::new());

pub(crate) fn address_ranges() -> MutexGuard<'static, AddressRanges> {
    RANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the segments of a pool use.
#[derive(Debug, Default)]
pub struct PoolUsage {
    /// The number of segments.
    pub segments: AtomicUsize,
    /// Bytes of address space. Pages are allocated when they are touched.
    pub bytes: AtomicUsize,
}

/// Memory of this process that peers may map.
#[derive(Debug)]
pub struct PoolSegment {
    number: u32,
    file: Option<PrivateFd>,
    mapping: Mapping,
    writable: bool,
    usage: Arc<PoolUsage>,
}

impl PoolSegment {
    /// Creates a segment of `size` bytes. Peers may write it if `writable`.
    pub(super) fn new(number: u32, size: usize, writable: bool, usage: &Arc<PoolUsage>) -> Result<Self, Errno> {
        let file = memory::open("motet-pool", size)?;
        let mapping = address_ranges().map(&file, size, PAGE_BYTES)?;
        let more = if writable { SealFlags::empty() } else { SealFlags::FUTURE_WRITE };
        // If the system has no such seal, the segment is not shown to peers.
        let sealed = memory::seal(&file, more).is_ok();
        usage.segments.fetch_add(1, Ordering::Relaxed);
        usage.bytes.fetch_add(size, Ordering::Relaxed);
        let file = sealed.then(|| PrivateFd::new(file));
        Ok(Self { number, file, mapping, writable, usage: usage.clone() })
    }

    /// Its number, not 0. A pool never reuses a number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The descriptor that peers map. `None`: the segment is not for peers.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Its address in this process.
    pub fn address(&self) -> u64 {
        self.mapping.base() as u64
    }

    /// Length in bytes.
    pub fn length(&self) -> usize {
        self.mapping.length()
    }

    /// Whether peers may write to it.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// A view of its first `length` bytes. After the segment is dropped the view shows zeros or another segment.
    pub fn view(&self, length: usize) -> Option<SharedBytes> {
        SharedBytes::of(self.mapping, 0, length)
    }

    /// The address of the byte at `offset`.
    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        self.mapping.base().wrapping_add(offset)
    }
}

impl Drop for PoolSegment {
    fn drop(&mut self) {
        address_ranges().retire(self.mapping);
        self.usage.segments.fetch_sub(1, Ordering::Relaxed);
        self.usage.bytes.fetch_sub(self.mapping.length(), Ordering::Relaxed);
    }
}

/// The mapping of a peer's segment in this process.
#[derive(Debug)]
pub struct PeerMapping {
    mapping: Mapping,
    writable: bool,
}

impl PeerMapping {
    /// Maps a descriptor from a peer as a segment of `size` bytes. [`Errno::INVAL`]: it is not memory of that size that is sealed against
    /// resizing.
    pub fn map(file: &OwnedFd, size: u64, writable: bool) -> Result<Self, Errno> {
        let (length, sealed, ordinary) = memory::inspect(file)?;
        let bytes = usize::try_from(size).ok().filter(|size| *size > 0 && size.is_multiple_of(PAGE_BYTES));
        let bytes = bytes.filter(|_| length == size && sealed && ordinary).ok_or(Errno::INVAL)?;
        let access = if writable { Access::Write } else { Access::Read };
        let mapping = address_ranges().map_with_access(file, bytes, PAGE_BYTES, access)?;
        Ok(Self { mapping, writable })
    }

    /// Length in bytes.
    pub fn length(&self) -> usize {
        self.mapping.length()
    }

    /// Whether views of it may be written. If not, a write is a fault (SIGSEGV).
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// A view of `length` bytes at `offset`. `None`: they are not inside. After the mapping is dropped the view shows zeros or another mapping.
    pub fn view(&self, offset: usize, length: usize) -> Option<SharedBytes> {
        SharedBytes::of(self.mapping, offset, length)
    }
}

impl Drop for PeerMapping {
    fn drop(&mut self) {
        address_ranges().retire(self.mapping);
    }
}

/// Bytes of a peer's segment. They stay mapped as long as this value exists.
///
/// The peer can write to them at any time, whatever the protocol says. A copy of them is safe to use; a reference to them is not
/// ([`PeerBytes::as_slice`]).
#[derive(Debug, Clone)]
pub struct PeerBytes {
    mapping: Arc<PeerMapping>,
    view: SharedBytes,
}

impl PeerBytes {
    /// `length` bytes at `offset` of a mapping. `None`: they are not inside.
    pub fn of(mapping: &Arc<PeerMapping>, offset: u64, length: usize) -> Option<Self> {
        let view = SharedBytes::of(mapping.mapping, usize::try_from(offset).ok()?, length)?;
        Some(Self { mapping: mapping.clone(), view })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.view.length()
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes from offset `at` on into `into`, as many as there are; returns how many.
    pub fn read(&self, at: usize, into: &mut [u8]) -> usize {
        let fits = self.len().saturating_sub(at).min(into.len());
        self.view.read(at.min(self.len()), &mut into[..fits]).map_or(0, |()| fits)
    }

    /// A copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.read(0, &mut bytes);
        bytes
    }

    /// Their address, for accesses that make no references.
    pub fn as_ptr(&self) -> *const u8 {
        self.view.base()
    }

    /// The bytes, in place.
    ///
    /// # Safety
    /// No process writes to the bytes as long as the slice exists. A peer that keeps to the protocol does not write to a loan between its send
    /// and its release, as long as the link is up. The caller must know that the peer can be trusted and that the link is up.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the bytes are mapped as long as `self`, and no process writes to them, as the caller promises.
        unsafe { std::slice::from_raw_parts(self.view.base(), self.len()) }
    }

    /// The mapping that contains them.
    pub fn mapping(&self) -> &Arc<PeerMapping> {
        &self.mapping
    }
}
