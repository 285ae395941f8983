//! Private descriptors of Motet: above the program's usual range, closed on exec, and recorded, so that the sockets adapter can report them
//! as not open to a program that closes every descriptor.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::{Errno, FdFlags};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The lowest private descriptor: select() works for descriptors below it. The kernel's descriptor table grows with the highest number, by
/// 8 bytes each. In a process with threads each growth waits for every CPU, so the sockets adapter makes the table large enough in time.
const FIRST_PRIVATE: u64 = 1024;
/// Descriptors below this number are recorded.
const TRACKED_FDS: usize = 1 << 20;
/// Bit set of the private descriptors.
static PRIVATE: [AtomicU64; TRACKED_FDS / 64] = [const { AtomicU64::new(0) }; TRACKED_FDS / 64];
/// Bit set of the private descriptors that a forked child closes, and the highest of these so far.
static CLOSE_ON_FORK: [AtomicU64; TRACKED_FDS / 64] = [const { AtomicU64::new(0) }; TRACKED_FDS / 64];
static HIGHEST_CLOSE_ON_FORK: AtomicUsize = AtomicUsize::new(0);
/// The highest private descriptor so far.
static HIGHEST_PRIVATE: AtomicUsize = AtomicUsize::new(0);
/// The number of private descriptors.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A private descriptor; closed when it is dropped.
#[derive(Debug)]
pub struct PrivateFd(OwnedFd);

impl PrivateFd {
    /// Moves a descriptor to a number of the private range. If there is none free, it keeps its number.
    pub fn new(fd: OwnedFd) -> Self {
        let (soft, _) = limit();
        let floor = (soft - soft / 4).min(FIRST_PRIVATE) as i32;
        let high = rustix::io::fcntl_dupfd_cloexec(&fd, floor);
        let fd = high.unwrap_or(fd);
        set_private(fd.as_raw_fd(), true);
        Self(fd)
    }

    /// Makes a private descriptor that forked children close: its file is closed when this process ends. A child that was not made by the
    /// C library's fork() keeps it until it execs. A child must not drop the value.
    pub fn close_on_fork(fd: OwnedFd) -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the handler makes system calls only. If there is no memory to register it, children keep the descriptors.
            let _ = unsafe { pthread_atfork(None, None, Some(close_in_child)) };
        });
        let this = Self::new(fd);
        if let Some(n) = usize::try_from(this.0.as_raw_fd()).ok().filter(|n| *n < TRACKED_FDS) {
            HIGHEST_CLOSE_ON_FORK.fetch_max(n, Ordering::Relaxed);
            CLOSE_ON_FORK[n / 64].fetch_or(1 << (n % 64), Ordering::Relaxed);
        }
        this
    }

    /// Drops the value without closing the descriptor: the program has closed it, and its number may belong to a file of the program.
    pub fn abandon(self) {
        let this = std::mem::ManuallyDrop::new(self);
        set_private(this.0.as_raw_fd(), false);
    }
}

impl Drop for PrivateFd {
    fn drop(&mut self) {
        set_private(self.0.as_raw_fd(), false);
    }
}

impl AsFd for PrivateFd {
    fn as_fd(&self) -> rustix::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether a descriptor is private.
pub fn is_private(fd: i32) -> bool {
    usize::try_from(fd).is_ok_and(|n| n < TRACKED_FDS && PRIVATE[n / 64].load(Ordering::Relaxed) >> (n % 64) & 1 == 1)
}

/// The first private descriptor from `from` on.
pub fn next_private(from: i32) -> Option<i32> {
    let from = from.max(0) as usize;
    let bits = |at: usize| {
        PRIVATE[at].load(Ordering::Relaxed) & if at == from / 64 { u64::MAX << (from % 64) } else { u64::MAX }
    };
    let last = HIGHEST_PRIVATE.load(Ordering::Relaxed) / 64;
    let at = (from / 64..=last.min(TRACKED_FDS / 64 - 1)).find(|at| bits(*at) != 0)?;
    Some((at * 64) as i32 + bits(at).trailing_zeros() as i32)
}

/// The number of private descriptors.
pub fn private_count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// The most descriptors that the process may have (RLIMIT_NOFILE).
pub fn descriptor_limit() -> usize {
    limit().0 as usize
}

unsafe extern "C" {
    fn pthread_atfork(
        before: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> i32;
}

/// Closes the close-on-fork descriptors in a forked child.
extern "C" fn close_in_child() {
    let words = HIGHEST_CLOSE_ON_FORK.load(Ordering::Relaxed) / 64 + 1;
    for (at, bits) in CLOSE_ON_FORK.iter().take(words).enumerate() {
        let mut bits = bits.load(Ordering::Relaxed);
        while bits != 0 {
            let fd = (at * 64) as i32 + bits.trailing_zeros() as i32;
            bits &= bits - 1;
            set_private(fd, false);
            // SAFETY: the descriptor is used by this call alone.
            let is_open = rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) }).is_ok();
            // The kernel copies the descriptors before the memory: one that another thread has made in between is recorded here, and not open.
            if is_open {
                // SAFETY: a private descriptor, which this process never uses or drops (contract of `PrivateFd::close_on_fork`).
                unsafe { rustix::io::close(fd) };
            }
        }
    }
}

/// Records whether a descriptor is private.
fn set_private(fd: i32, private: bool) {
    if private {
        COUNT.fetch_add(1, Ordering::Relaxed);
    } else {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
    if let Ok(n) = usize::try_from(fd)
        && n < TRACKED_FDS
    {
        let bit = 1 << (n % 64);
        if private {
            HIGHEST_PRIVATE.fetch_max(n, Ordering::Relaxed);
            PRIVATE[n / 64].fetch_or(bit, Ordering::Relaxed);
        } else {
            PRIVATE[n / 64].fetch_and(!bit, Ordering::Relaxed);
            CLOSE_ON_FORK[n / 64].fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

/// Duplicates a descriptor, closed on exec. Unlike `try_clone` of std this works for private descriptors under the sockets adapter, whose
/// fcntl() reports them as not open.
///
/// # Errors
/// The system's: MFILE if the process has no number left.
pub fn duplicate(fd: impl AsFd) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(fd, 3) // never the number of a standard stream
}

/// Sets whether a descriptor is closed on exec.
pub fn set_cloexec(fd: i32, closes: bool) {
    let flags = if closes { FdFlags::CLOEXEC } else { FdFlags::empty() };
    let _ = rustix::io::fcntl_setfd(borrow(fd), flags);
}

/// Whether a descriptor from a peer may be used as a doorbell ([`crate::socket::ring_eventfd`]): an anonymous inode, as an eventfd is. A
/// write to it neither raises a signal nor changes a file. (The peer can make a write block; as it is a process of the same user, it could
/// also stop this one.)
pub fn is_doorbell(fd: &OwnedFd) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| stat.st_mode & 0o170_000 == 0)
}

/// Soft and hard limit of RLIMIT_NOFILE.
fn limit() -> (u64, u64) {
    let l = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    (l.current.unwrap_or(1 << 20), l.maximum.unwrap_or(1 << 20))
}

/// Borrows a descriptor that the caller of the engine owns.
///
/// The caller promises that it stays open while the stream exists. If not, system calls return EBADF or reach another file, as after any
/// misuse of close(2).
pub fn borrow(fd: i32) -> rustix::fd::BorrowedFd<'static> {
    // SAFETY: the descriptor is open as the caller promises, and not -1, the one value that must not be borrowed.
    unsafe { rustix::fd::BorrowedFd::borrow_raw(fd.max(0)) }
}

/// Takes ownership of a descriptor that a system call has just returned.
pub fn own(fd: i32) -> OwnedFd {
    // SAFETY: callers pass descriptors only that the kernel has just installed for them.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::pipe;

    #[test]
    fn duplicate_refers_to_the_same_file_and_closes_on_exec() {
        let (reader, writer) = pipe().unwrap();
        let private = PrivateFd::new(writer);
        let another = duplicate(&private).unwrap();
        assert_ne!(another.as_raw_fd(), private.as_fd().as_raw_fd());
        assert!(another.as_raw_fd() > 2 && !is_private(another.as_raw_fd()));
        assert!(rustix::io::fcntl_getfd(&another).unwrap().contains(FdFlags::CLOEXEC));
        drop(private);
        rustix::io::write(&another, b"x").unwrap();
        assert_eq!(rustix::io::read(&reader, &mut [0; 2]).unwrap(), 1);
    }
}
