//! userfaultfd(2), for its events only: the kernel reports when watched addresses lose their pages.
//!
//! What it is: a descriptor that reports munmap, mremap, madvise (DONTNEED, FREE, REMOVE), MAP_FIXED over a watched range and a heap that
//! shrinks. Ranges are registered for write protection that is never armed, so no memory access faults or waits. That needs
//! USER_MODE_ONLY only, and no privilege.
//!
//! What it is not: complete. The kernel reports nothing when a file's pages are removed by its descriptor (a hole punched, a truncation), and
//! it can watch private anonymous memory, shmem (memfds) and huge pages only.
//!
//! **A thread that removes watched pages sleeps in the kernel until its event has been read.** So the reader must never wait for a thread
//! that may remove memory: it must not allocate, take a lock, or run a signal handler of the program. To close the descriptor wakes all
//! these threads and ends the watch. After a fork the child's memory is not watched.

use crate::private_fds::PrivateFd;
use crate::{Errno, errno};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use syscalls::{Sysno, syscall};

/// From linux/userfaultfd.h.
const API: u64 = 0xaa;
const EVENT_REMAP: u64 = 1 << 2;
const EVENT_REMOVE: u64 = 1 << 3;
const EVENT_UNMAP: u64 = 1 << 6;
const USER_MODE_ONLY: usize = 1;
const MODE_WP: u64 = 1 << 1;
const IOCTL_API: usize = 0xc018_aa3f;
const IOCTL_REGISTER: usize = 0xc020_aa00;
const IOCTL_UNREGISTER: usize = 0x8010_aa01;
const IOCTL_WRITEPROTECT: usize = 0xc018_aa06;
const IOCTL_NEW: usize = 0xaa00;
/// Size of `struct uffd_msg`.
const MESSAGE_BYTES: usize = 32;
/// Most events of one read.
pub const EVENTS_PER_READ: usize = 16;

const EAGAIN: Errno = 11;
const EINVAL: Errno = 22;

/// A range of watched addresses has lost its pages, or has moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MappingEvent {
    /// First address.
    pub start: u64,
    /// End address, exclusive.
    pub end: u64,
    /// New address of the pages, which are still watched; 0: the pages are removed.
    pub moved_to: u64,
}

/// A userfaultfd.
#[derive(Debug)]
pub struct Userfaultfd(PrivateFd);

impl Userfaultfd {
    /// Opens one: by the system call, or else through /dev/userfaultfd, to which a system may give some users access.
    pub fn open() -> Result<Self, Errno> {
        let flags = OFlags::CLOEXEC | OFlags::NONBLOCK;
        let number = flags.bits() as usize | USER_MODE_ONLY;
        // SAFETY: the call creates a descriptor and touches no memory.
        let fd = match unsafe { syscall!(Sysno::userfaultfd, number) } {
            Ok(fd) => fd,
            Err(refused) => {
                let device = rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
                let device = device.map_err(|_| errno(refused))?;
                // SAFETY: the argument is a number.
                unsafe { syscall!(Sysno::ioctl, device.as_raw_fd(), IOCTL_NEW, number) }.map_err(errno)?
            }
        };
        // SAFETY: the kernel has just created the descriptor for this call.
        let uffd = Self(PrivateFd::new(unsafe { OwnedFd::from_raw_fd(fd as i32) }));
        let mut api = [API, EVENT_REMAP | EVENT_REMOVE | EVENT_UNMAP, 0];
        uffd.call(IOCTL_API, &mut api)?;
        Ok(uffd)
    }

    /// Watches the pages from `start` to `end`. Pages that are watched already stay watched. Errors: EINVAL (memory that cannot be watched, or
    /// nothing mapped), EBUSY (watched by a userfaultfd of the program), EPERM (a file that may not be written).
    pub fn watch(&self, start: u64, end: u64) -> Result<(), Errno> {
        self.call(IOCTL_REGISTER, &mut [start, end.wrapping_sub(start), MODE_WP, 0])
    }

    /// Ends the watch of the pages from `start` to `end`.
    pub fn unwatch(&self, start: u64, end: u64) -> Result<(), Errno> {
        self.call(IOCTL_UNREGISTER, &mut [start, end.wrapping_sub(start)])
    }

    /// Whether a thread is removing watched memory and its event has not been read (`mmap_changing` of the kernel). The kernel counts such a
    /// thread before it makes the addresses available to others. An error: the descriptor is closed or is another file.
    #[inline]
    pub fn is_mmap_changing(&self) -> Result<bool, Errno> {
        // The kernel refuses an empty range (EINVAL), but checks mmap_changing first (EAGAIN).
        match self.call(IOCTL_WRITEPROTECT, &mut [0, 0, 0]) {
            Err(EINVAL) => Ok(false),
            Err(EAGAIN) => Ok(true),
            Err(other) => Err(other),
            Ok(()) => Err(EINVAL),
        }
    }

    /// Waits until an event may be readable. False: there will be no more events.
    pub fn wait(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut polled, None) {
            Ok(_) => !polled[0].revents().intersects(PollFlags::NVAL | PollFlags::ERR | PollFlags::HUP),
            Err(_) => {
                // A transient error, for example no memory in the kernel.
                crate::thread::sleep_ns(1_000_000);
                true
            }
        }
    }

    /// Reads events without waiting; returns how many. The threads that wait for them continue at the latest when this returns.
    pub fn read_events(&self, events: &mut [MappingEvent; EVENTS_PER_READ]) -> Result<usize, Errno> {
        let mut bytes = [0u8; MESSAGE_BYTES * EVENTS_PER_READ];
        let length = match rustix::io::read(self.0.as_fd(), &mut bytes) {
            Ok(length) => length,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => 0,
            Err(other) => return Err(other.raw_os_error()),
        };
        let mut count = 0;
        for message in bytes[..length].chunks_exact(MESSAGE_BYTES) {
            if let Some(event) = decode(message) {
                events[count] = event;
                count += 1;
            }
        }
        Ok(count)
    }

    #[inline]
    fn call<const N: usize>(&self, operation: usize, argument: &mut [u64; N]) -> Result<(), Errno> {
        // SAFETY: each ioctl above reads and writes at most the words that it gets. None changes contents or protection of memory: nothing is
        // ever write-protected.
        unsafe { syscall!(Sysno::ioctl, self.0.as_fd().as_raw_fd(), operation, argument.as_mut_ptr()) }
            .map(|_| ())
            .map_err(errno)
    }
}

/// Decodes a `struct uffd_msg`. `None`: an event of another kind.
fn decode(message: &[u8]) -> Option<MappingEvent> {
    let word = |at: usize| message.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
    let (first, second) = (word(8)?, word(16)?);
    match message.first()? {
        0x14 => Some(MappingEvent { start: first, end: first.saturating_add(word(24)?), moved_to: second }),
        0x15 | 0x16 => Some(MappingEvent { start: first, end: second, moved_to: 0 }),
        _ => None,
    }
}
