//! Private descriptors: above the program's usual range, closed on exec, remembered so that a program's close-everything
//! loop can be told that they are not open.

use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::io::{Errno, FdFlags};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Where private descriptors begin, below which select() works. The kernel's table of descriptors grows with their numbers,
/// by 8 bytes each; in a process with threads it waits for every CPU, too, each time (the sockets voice makes room in time).
const FROM: u64 = 1024;
/// Descriptors that can be told apart.
const TRACKED: usize = 1 << 20;
static PRIVATE: [AtomicU64; TRACKED / 64] = [const { AtomicU64::new(0) }; TRACKED / 64];
/// Those that forked children are to close at once, and the highest there has been.
static ALONE: [AtomicU64; TRACKED / 64] = [const { AtomicU64::new(0) }; TRACKED / 64];
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
/// The highest private number there has been.
static TOP: AtomicUsize = AtomicUsize::new(0);
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A descriptor of the engine's own.
#[derive(Debug)]
pub struct PrivateFd(OwnedFd);

impl PrivateFd {
    /// Moves a descriptor out of the program's way.
    pub fn new(fd: OwnedFd) -> Self {
        let (soft, _) = limit();
        let floor = (soft - soft / 4).min(FROM) as i32;
        let high = rustix::io::fcntl_dupfd_cloexec(&fd, floor);
        let fd = high.unwrap_or(fd);
        mark(fd.as_raw_fd(), true);
        Self(fd)
    }

    /// The same, and forked children do not keep it: what it leads to ends with this process alone. (A child that was made behind the
    /// C library's back keeps it until it execs.) There it must not be dropped.
    pub fn alone(fd: OwnedFd) -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the handler makes system calls only. Where there is no memory for it children keep what they inherit.
            let _ = unsafe { pthread_atfork(None, None, Some(close_in_child)) };
        });
        let this = Self::new(fd);
        if let Some(n) = usize::try_from(this.0.as_raw_fd()).ok().filter(|n| *n < TRACKED) {
            HIGHEST.fetch_max(n, Ordering::Relaxed);
            ALONE[n / 64].fetch_or(1 << (n % 64), Ordering::Relaxed);
        }
        this
    }

    /// Leaves the descriptor alone from now on: somebody else closed it, and its number may be theirs.
    pub fn abandon(self) {
        let this = std::mem::ManuallyDrop::new(self);
        mark(this.0.as_raw_fd(), false);
    }
}

impl Drop for PrivateFd {
    fn drop(&mut self) {
        mark(self.0.as_raw_fd(), false);
    }
}

impl AsFd for PrivateFd {
    fn as_fd(&self) -> rustix::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether a descriptor is one of ours.
pub fn is_private(fd: i32) -> bool {
    usize::try_from(fd).is_ok_and(|n| n < TRACKED && PRIVATE[n / 64].load(Ordering::Relaxed) >> (n % 64) & 1 == 1)
}

/// The first one from a number on.
pub fn next_private(from: i32) -> Option<i32> {
    let from = from.max(0) as usize;
    let bits = |at: usize| {
        PRIVATE[at].load(Ordering::Relaxed) & if at == from / 64 { u64::MAX << (from % 64) } else { u64::MAX }
    };
    let most = TOP.load(Ordering::Relaxed) / 64;
    let at = (from / 64..=most.min(TRACKED / 64 - 1)).find(|at| bits(*at) != 0)?;
    Some((at * 64) as i32 + bits(at).trailing_zeros() as i32)
}

/// How many there are.
pub fn private_ones() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// How many descriptors the process may have now.
pub fn most() -> usize {
    limit().0 as usize
}

unsafe extern "C" {
    fn pthread_atfork(
        before: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> i32;
}

/// In a forked child.
extern "C" fn close_in_child() {
    let words = HIGHEST.load(Ordering::Relaxed) / 64 + 1;
    for (at, bits) in ALONE.iter().take(words).enumerate() {
        let mut bits = bits.load(Ordering::Relaxed);
        while bits != 0 {
            let fd = (at * 64) as i32 + bits.trailing_zeros() as i32;
            bits &= bits - 1;
            mark(fd, false);
            // SAFETY: it is ours, and whoever has it in this process never uses or drops it: see `alone`.
            unsafe { rustix::io::close(fd) };
        }
    }
}

fn mark(fd: i32, private: bool) {
    if private {
        COUNT.fetch_add(1, Ordering::Relaxed);
    } else {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
    if let Ok(n) = usize::try_from(fd)
        && n < TRACKED
    {
        let bit = 1 << (n % 64);
        if private {
            TOP.fetch_max(n, Ordering::Relaxed);
            PRIVATE[n / 64].fetch_or(bit, Ordering::Relaxed);
        } else {
            PRIVATE[n / 64].fetch_and(!bit, Ordering::Relaxed);
            ALONE[n / 64].fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

/// Another number for what a descriptor leads to, closed on exec. By a system call of our own: where the sockets voice is preloaded the C
/// library's fcntl says of private descriptors that they are not open, and std's `try_clone` asks that.
///
/// # Errors
/// The system's: MFILE where there is no number left.
pub fn copy(fd: impl AsFd) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(fd, 3) // never the place of a standard stream
}

/// Whether a descriptor closes on exec.
pub fn set_cloexec(fd: i32, closes: bool) {
    let flags = if closes { FdFlags::CLOEXEC } else { FdFlags::empty() };
    let _ = rustix::io::fcntl_setfd(borrow(fd), flags);
}

/// Whether a descriptor that a peer passed may be rung ([`crate::socket::ring`]): something without a type, as an eventfd is. A
/// write to it neither raises a signal nor changes a file. (A peer that shares it can make a write block; of the same user, it
/// could stop us, too.)
pub fn is_bell(fd: &OwnedFd) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| stat.st_mode & 0o170_000 == 0)
}

fn limit() -> (u64, u64) {
    let l = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    (l.current.unwrap_or(1 << 20), l.maximum.unwrap_or(1 << 20))
}

/// Borrows a descriptor that the caller of the engine owns.
///
/// The engine's interface promises that it stays open while the stream exists; if that promise is broken the kernel
/// answers EBADF or the call meets another descriptor, as with any misuse of close(2).
pub fn borrow(fd: i32) -> rustix::fd::BorrowedFd<'static> {
    // SAFETY: see above; -1 is the one value that must not be borrowed.
    unsafe { rustix::fd::BorrowedFd::borrow_raw(fd.max(0)) }
}

/// Takes over a descriptor that a message delivered.
pub fn own(fd: i32) -> OwnedFd {
    // SAFETY: only called with descriptors that the kernel has just installed for us.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::pipe;

    #[test]
    fn a_copy_leads_to_the_same_and_closes_on_exec() {
        let (reader, writer) = pipe().unwrap();
        let private = PrivateFd::new(writer);
        let another = copy(&private).unwrap();
        assert_ne!(another.as_raw_fd(), private.as_fd().as_raw_fd());
        assert!(another.as_raw_fd() > 2 && !is_private(another.as_raw_fd()));
        assert!(rustix::io::fcntl_getfd(&another).unwrap().contains(FdFlags::CLOEXEC));
        drop(private);
        rustix::io::write(&another, b"x").unwrap();
        assert_eq!(rustix::io::read(&reader, &mut [0; 2]).unwrap(), 1);
    }
}
