//! Memory of one process that others map: the owner's end ([`Segment`]) and the others' ([`Window`], [`Part`]).
//!
//! A segment is a memfd, sealed against resizing; one for loans also against being written by anybody but its owner, who has mapped it
//! before (F_SEAL_FUTURE_WRITE, Linux 5.1). Whoever maps one relies on no word of its owner: size, seals and kind of memory are asked
//! of the kernel. Both ends' address ranges outlive the mapping ([`Ranges`]), so a view that somebody has kept meets zeros.

use crate::memory::{self, Access, Ranges};
use crate::private_fds::PrivateFd;
use motet_wire::mapping::Mapping;
use motet_wire::shared_memory::Shared;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::SealFlags;
use rustix::io::Errno;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A segment's length is a multiple of this.
pub const PAGE: usize = 4096;

/// Where segments and windows lie, and files that are memory.
static RANGES: Mutex<Ranges> = Mutex::new(Ranges::new());

pub(crate) fn ranges() -> MutexGuard<'static, Ranges> {
    RANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Segments and their bytes, of one pool.
#[derive(Debug, Default)]
pub struct Account {
    /// How many there are.
    pub segments: AtomicUsize,
    /// Bytes of address space; pages come when they are touched.
    pub bytes: AtomicUsize,
}

/// Memory of this process that others may map.
#[derive(Debug)]
pub struct Segment {
    number: u32,
    file: Option<PrivateFd>,
    mapping: Mapping,
    writable: bool,
    account: Arc<Account>,
}

impl Segment {
    /// A new one of `size` bytes, which others may write if they are told so (`writable`).
    pub(super) fn new(number: u32, size: usize, writable: bool, account: &Arc<Account>) -> Result<Self, Errno> {
        let file = memory::open("motet-pool", size)?;
        let mapping = ranges().map(&file, size, PAGE)?;
        let more = if writable { SealFlags::empty() } else { SealFlags::FUTURE_WRITE };
        // Where the system cannot keep others from writing to it, nobody gets it.
        let sealed = memory::seal(&file, more).is_ok();
        account.segments.fetch_add(1, Ordering::Relaxed);
        account.bytes.fetch_add(size, Ordering::Relaxed);
        let file = sealed.then(|| PrivateFd::new(file));
        Ok(Self { number, file, mapping, writable, account: account.clone() })
    }

    /// Its number: of its pool, and never again another one's. Not 0.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// What others map it by, if they may.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Where it begins here.
    pub fn address(&self) -> u64 {
        self.mapping.base() as u64
    }

    /// Bytes.
    pub fn length(&self) -> usize {
        self.mapping.length()
    }

    /// Whether others may write to it.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// A view of its first `length` bytes. Once the segment is gone it shows zeros, or another segment.
    pub fn view(&self, length: usize) -> Option<Shared> {
        Shared::of(self.mapping, 0, length)
    }

    /// The address of a byte in it.
    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        self.mapping.base().wrapping_add(offset)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        ranges().give_up(self.mapping);
        self.account.segments.fetch_sub(1, Ordering::Relaxed);
        self.account.bytes.fetch_sub(self.mapping.length(), Ordering::Relaxed);
    }
}

/// A segment of another process, mapped here.
#[derive(Debug)]
pub struct Window {
    mapping: Mapping,
    writable: bool,
}

impl Window {
    /// Maps a file that is said to be a segment of `size` bytes; refused unless it is memory of that size that cannot shrink.
    pub fn map(file: &OwnedFd, size: u64, writable: bool) -> Result<Self, Errno> {
        let (length, sealed, ordinary) = memory::inspect(file)?;
        let bytes = usize::try_from(size).ok().filter(|size| *size > 0 && size.is_multiple_of(PAGE));
        let bytes = bytes.filter(|_| length == size && sealed && ordinary).ok_or(Errno::INVAL)?;
        let access = if writable { Access::Write } else { Access::Read };
        let mapping = ranges().map_for(file, bytes, PAGE, access)?;
        Ok(Self { mapping, writable })
    }

    /// Bytes.
    pub fn length(&self) -> usize {
        self.mapping.length()
    }

    /// Whether views of it may be written to; otherwise that is a fault (SIGSEGV).
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// A view of bytes in it; `None`: they do not lie inside. Once the window is gone it shows zeros, or another one.
    pub fn view(&self, offset: usize, length: usize) -> Option<Shared> {
        Shared::of(self.mapping, offset, length)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        ranges().give_up(self.mapping);
    }
}

/// Bytes in a window, which stay mapped as long as this.
///
/// Their owner is another process: it can write to them at any time, whatever it has promised. What is copied out of them is safe to look
/// at; a reference to them is not ([`Part::as_slice`]).
#[derive(Debug, Clone)]
pub struct Part {
    window: Arc<Window>,
    view: Shared,
}

impl Part {
    /// `length` bytes at `offset`, if they lie inside.
    pub fn of(window: &Arc<Window>, offset: u64, length: usize) -> Option<Self> {
        let view = Shared::of(window.mapping, usize::try_from(offset).ok()?, length)?;
        Some(Self { window: window.clone(), view })
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.view.length()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes out, as many as there are from `at` on; returns how many.
    pub fn read(&self, at: usize, into: &mut [u8]) -> usize {
        let fits = self.len().saturating_sub(at).min(into.len());
        self.view.read(at.min(self.len()), &mut into[..fits]).map_or(0, |()| fits)
    }

    /// All bytes, copied out.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.read(0, &mut bytes);
        bytes
    }

    /// Where they lie, for those who look at them by other means than references.
    pub fn as_ptr(&self) -> *const u8 {
        self.view.base()
    }

    /// The bytes, in place.
    ///
    /// # Safety
    /// Nobody writes to them as long as the slice is used. A peer that is a node of this project and has sent its loan does not, until it
    /// gets it back or the link is gone; whether the peer is to be trusted in that, and whether the link is up, is for the caller to know.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the window is mapped as long as this; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.view.base(), self.len()) }
    }

    /// The window that they are in.
    pub fn window(&self) -> &Arc<Window> {
        &self.window
    }
}
