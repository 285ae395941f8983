//! userfaultfd(2), for its events only: the kernel tells when watched addresses lose their pages.
//!
//! What it is: a descriptor that hears of munmap, mremap, madvise (DONTNEED, FREE, REMOVE), MAP_FIXED over a watched range and a heap
//! that shrinks. Ranges are registered for write-protection that nobody ever arms, so no access to memory faults to us or waits
//! for us, and user-mode mode is enough, which needs no privilege.
//!
//! What it is not: complete. The kernel says nothing when a file's pages go through its descriptor (a hole punched, a truncation) and
//! watches no mapping but private anonymous memory, memfds and their like, and huge pages.
//!
//! **A thread that takes watched pages away sleeps in the kernel until its event has been read.** Whoever reads must never wait
//! for anybody who might take memory away: no allocation, no lock, no signal handler of the program. A descriptor that is
//! closed lets them all go and hears no more. Of a fork the child's memory is not watched.

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
const MESSAGE: usize = 32;
/// Events that one read takes.
pub const BATCH: usize = 16;

const EAGAIN: Errno = 11;
const EINVAL: Errno = 22;

/// Something happened to watched addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Taken {
    /// First address that has lost its page, or is about to.
    pub start: u64,
    /// One behind the last.
    pub end: u64,
    /// The pages are at this address now, still watched; 0: gone.
    pub moved_to: u64,
}

/// The descriptor.
#[derive(Debug)]
pub struct Faults(PrivateFd);

impl Faults {
    /// Opens one: by system call, else through /dev/userfaultfd, which a system may give to some users.
    pub fn open() -> Result<Self, Errno> {
        let flags = OFlags::CLOEXEC | OFlags::NONBLOCK;
        let number = flags.bits() as usize | USER_MODE_ONLY;
        // SAFETY: makes a descriptor, touches no memory.
        let fd = match unsafe { syscall!(Sysno::userfaultfd, number) } {
            Ok(fd) => fd,
            Err(refused) => {
                let device = rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
                let device = device.map_err(|_| errno(refused))?;
                // SAFETY: the argument is a number.
                unsafe { syscall!(Sysno::ioctl, device.as_raw_fd(), IOCTL_NEW, number) }.map_err(errno)?
            }
        };
        // SAFETY: just made, nobody else's.
        let faults = Self(PrivateFd::new(unsafe { OwnedFd::from_raw_fd(fd as i32) }));
        let mut api = [API, EVENT_REMAP | EVENT_REMOVE | EVENT_UNMAP, 0];
        faults.call(IOCTL_API, &mut api)?;
        Ok(faults)
    }

    /// Watches these addresses, whole pages. What is watched already stays watched. EINVAL: such memory cannot be watched, or
    /// nothing is there; EBUSY: the program watches it itself; EPERM: a file that may not be written.
    pub fn watch(&self, start: u64, end: u64) -> Result<(), Errno> {
        self.call(IOCTL_REGISTER, &mut [start, end.wrapping_sub(start), MODE_WP, 0])
    }

    /// Watches them no more.
    pub fn unwatch(&self, start: u64, end: u64) -> Result<(), Errno> {
        self.call(IOCTL_UNREGISTER, &mut [start, end.wrapping_sub(start)])
    }

    /// Whether some thread is on its way of taking watched memory away and its event has not been read. The kernel counts such a
    /// thread before it lets others have the addresses. An error when the descriptor is ours no more.
    #[inline]
    pub fn is_changing(&self) -> Result<bool, Errno> {
        // An empty range is refused, but only after this question.
        match self.call(IOCTL_WRITEPROTECT, &mut [0, 0, 0]) {
            Err(EINVAL) => Ok(false),
            Err(EAGAIN) => Ok(true),
            Err(other) => Err(other),
            Ok(()) => Err(EINVAL),
        }
    }

    /// Waits until there may be something to read; false when there never will be again.
    pub fn wait(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut polled, None) {
            Ok(_) => !polled[0].revents().intersects(PollFlags::NVAL | PollFlags::ERR | PollFlags::HUP),
            Err(_) => {
                // The kernel lacks memory, say: not for ever.
                crate::thread::nap(1_000_000);
                true
            }
        }
    }

    /// Takes what has happened, without waiting; how many. The threads that wait for these go on as this returns, or sooner.
    pub fn read(&self, events: &mut [Taken; BATCH]) -> Result<usize, Errno> {
        let mut bytes = [0u8; MESSAGE * BATCH];
        let length = match rustix::io::read(self.0.as_fd(), &mut bytes) {
            Ok(length) => length,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => 0,
            Err(other) => return Err(other.raw_os_error()),
        };
        let mut count = 0;
        for message in bytes[..length].chunks_exact(MESSAGE) {
            if let Some(taken) = decode(message) {
                events[count] = taken;
                count += 1;
            }
        }
        Ok(count)
    }

    #[inline]
    fn call<const N: usize>(&self, operation: usize, argument: &mut [u64; N]) -> Result<(), Errno> {
        // SAFETY: each of the operations above reads and writes at most the words that it is called with. None changes what
        // memory holds or who may access it: nothing is ever write-protected.
        unsafe { syscall!(Sysno::ioctl, self.0.as_fd().as_raw_fd(), operation, argument.as_mut_ptr()) }
            .map(|_| ())
            .map_err(errno)
    }
}

/// A `struct uffd_msg`.
fn decode(message: &[u8]) -> Option<Taken> {
    let word = |at: usize| message.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
    let (first, second) = (word(8)?, word(16)?);
    match message.first()? {
        0x14 => Some(Taken { start: first, end: first.saturating_add(word(24)?), moved_to: second }),
        0x15 | 0x16 => Some(Taken { start: first, end: second, moved_to: 0 }),
        _ => None,
    }
}
