//! For tests only (feature `ground`): addresses whose mappings a test changes as it likes, and registrations that hold pages.
//!
//! What it is: a [`Ground`], a piece of the address space of which only the kernel and its owner know. What lies there is read and
//! written by system calls on this process, so what is not mapped is an error, not a crash. A [`Held`] refers to the pages
//! of a range themselves, as a network card's registration does: through it one sees what was registered, whatever is mapped there now.
//!
//! What it is not: part of the engine.

use crate::{Errno, errno, memory, process_vm, thread};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno as Error;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
use rustix::pipe::SpliceFlags;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};
use syscalls::{Sysno, syscall};

const NONBLOCK: usize = 2;
/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// Some pages of address space.
#[derive(Debug)]
pub struct Ground {
    base: u64,
    /// Which pages are ours: mapped by us. The others may be anybody's.
    ours: Vec<bool>,
}

fn at(address: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(address as usize)
}

impl Ground {
    /// So many pages, mapped and empty.
    pub fn new(pages: u64) -> Result<Self, Errno> {
        let length = (pages * PAGE) as usize;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, access(), MapFlags::PRIVATE) };
        Ok(Self { base: base.map_err(number)?.addr() as u64, ours: vec![true; pages as usize] })
    }

    /// The address of a page.
    pub fn address(&self, page: u64) -> u64 {
        self.base + page * PAGE
    }

    /// Whether all of these pages are mapped by this.
    pub fn has(&self, page: u64, pages: u64) -> bool {
        self.ours[page as usize..(page + pages) as usize].iter().all(|&ours| ours)
    }

    /// Maps fresh pages there, in the place of what is ours; false when others have a part.
    pub fn map(&mut self, page: u64, pages: u64) -> bool {
        (page..page + pages).all(|page| {
            let fixed = if self.has(page, 1) { MapFlags::FIXED } else { MapFlags::FIXED_NOREPLACE };
            // SAFETY: over a page that is ours, or over nothing.
            let new = unsafe {
                rustix::mm::mmap_anonymous(at(self.address(page)), PAGE as usize, access(), MapFlags::PRIVATE | fixed)
            };
            self.ours[page as usize] |= new.is_ok();
            new.is_ok()
        })
    }

    /// MAP_FIXED over pages of ours, at one stroke.
    pub fn replace(&mut self, page: u64, pages: u64) -> bool {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: over pages that are ours.
        self.has(page, pages)
            && unsafe { rustix::mm::mmap_anonymous(at(self.address(page)), (pages * PAGE) as usize, access(), flags) }
                .is_ok()
    }

    /// Unmaps pages of ours.
    pub fn unmap(&mut self, page: u64, pages: u64) -> bool {
        // SAFETY: pages that are ours.
        let done = self.has(page, pages)
            && unsafe { rustix::mm::munmap(at(self.address(page)), (pages * PAGE) as usize) }.is_ok();
        self.ours[page as usize..(page + pages) as usize].iter_mut().for_each(|ours| *ours &= !done);
        done
    }

    /// madvise of pages of ours: MADV_DONTNEED, or MADV_FREE.
    pub fn discard(&self, page: u64, pages: u64, later: bool) -> bool {
        let advice = if later { Advice::LinuxFree } else { Advice::LinuxDontNeed };
        // SAFETY: pages that are ours, and that nobody refers to.
        self.has(page, pages)
            && unsafe { rustix::mm::madvise(at(self.address(page)), (pages * PAGE) as usize, advice) }.is_ok()
    }

    /// mremap of pages of ours onto others of ours, which do not overlap. For a process in which nobody else maps memory: what is
    /// left after a failure is found out by looking.
    pub fn shift(&mut self, page: u64, pages: u64, to: u64) -> bool {
        if !self.has(page, pages) || !self.has(to, pages) || page.abs_diff(to) < pages {
            return false;
        }
        let length = (pages * PAGE) as usize;
        // SAFETY: both are ours.
        let moved = unsafe {
            let target = at(self.address(to));
            rustix::mm::mremap_fixed(at(self.address(page)), length, length, MremapFlags::MAYMOVE, target)
        };
        if moved.is_ok() {
            self.ours[page as usize..(page + pages) as usize].fill(false);
        } else {
            // The target is gone, and of several mappings some may have moved. Where other threads map memory, do not shift.
            for page in (page..page + pages).chain(to..to + pages) {
                self.ours[page as usize] = memory::is_mapped(self.address(page), self.address(page + 1));
            }
        }
        moved.is_ok()
    }

    /// mremap of pages of ours to another number, in place.
    pub fn resize(&mut self, page: u64, pages: u64, now: u64) -> bool {
        let (old, new) = ((pages * PAGE) as usize, (now * PAGE) as usize);
        // SAFETY: ours; nothing else is replaced, as it may not move.
        let done = self.has(page, pages)
            && unsafe { rustix::mm::mremap(at(self.address(page)), old, new, MremapFlags::empty()) }.is_ok();
        if done {
            (0..pages.max(now)).for_each(|n| self.ours[(page + n) as usize] = n < now);
        }
        done
    }

    /// Writes a number at the start of a page; false when it is not there.
    pub fn write(&self, page: u64, number: u64) -> bool {
        poke(self.address(page), number)
    }

    /// The number at the start of a page.
    pub fn read(&self, page: u64) -> Option<u64> {
        peek(self.address(page))
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        for page in 0..self.ours.len() as u64 {
            if self.has(page, 1) {
                self.unmap(page, 1);
            }
        }
    }
}

fn access() -> ProtFlags {
    ProtFlags::READ | ProtFlags::WRITE
}

fn number(error: Error) -> Errno {
    error.raw_os_error()
}

/// Writes a number to an address of this process, if a page is there: for memory that nobody refers to.
fn poke(address: u64, number: u64) -> bool {
    process_vm::write_to(thread::real_pid(), address, &number.to_ne_bytes()) == Ok(8)
}

/// The number at an address of this process.
pub fn peek(address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    (process_vm::read_from(thread::real_pid(), address, &mut bytes) == Ok(8)).then(|| u64::from_ne_bytes(bytes))
}

/// References to the pages of a range: a pipe that holds them.
#[derive(Debug)]
pub struct Held {
    pages: OwnedFd,
    copy: Mutex<(OwnedFd, OwnedFd)>,
    count: usize,
}

impl Held {
    /// Takes them, after it has brought all of them into being. At most some 200 pages.
    pub fn new(start: u64, end: u64) -> Result<Self, Errno> {
        let length = (end - start) as usize;
        let count = length / PAGE as usize;
        // SAFETY: makes pages, changes none.
        unsafe { rustix::mm::madvise(at(start), length, Advice::LinuxPopulateWrite) }.map_err(number)?;
        let pipe = || {
            let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(number)?;
            rustix::pipe::fcntl_setpipe_size(&write, count.next_power_of_two() * PAGE as usize).map_err(number)?;
            Ok::<_, Errno>((read, write))
        };
        let ((pages, write), copy) = (pipe()?, pipe()?);
        let mut done = 0;
        while done < length {
            let part = [start + done as u64, (length - done) as u64];
            // SAFETY: an iovec. The pipe refers to the pages and changes none; that they change under it is what it is for.
            let more = unsafe { syscall!(Sysno::vmsplice, write.as_raw_fd(), part.as_ptr(), 1, NONBLOCK) };
            done += more.map_err(errno)?;
        }
        Ok(Self { pages, copy: Mutex::new(copy), count })
    }

    /// The numbers at the starts of the pages that are held, as they are now.
    pub fn peek(&self) -> Vec<u64> {
        let copy = self.copy.lock().unwrap_or_else(PoisonError::into_inner);
        let (read, write) = &*copy;
        let mut bytes = vec![0; self.count * PAGE as usize];
        let copied = rustix::pipe::tee(&self.pages, write, bytes.len(), SpliceFlags::NONBLOCK).unwrap_or(0);
        let mut got = 0;
        while got < copied {
            match rustix::io::read(read, &mut bytes[got..copied]) {
                Ok(more) if more > 0 => got += more,
                _ => break,
            }
        }
        let starts = bytes[..got].chunks_exact(PAGE as usize);
        starts.map(|page| u64::from_ne_bytes(page[..8].try_into().unwrap_or_default())).collect()
    }
}

/// The end of the heap, moved up. Down again at last, if nobody has moved it on.
#[derive(Debug)]
pub struct Heap {
    /// Where it was.
    pub start: u64,
    /// Where it is.
    pub end: u64,
}

impl Heap {
    /// Moves it up by so many whole pages, after the next border of pages.
    pub fn grow(pages: u64) -> Result<Self, Errno> {
        // SAFETY: 0 is refused, which tells where the end is; growing takes nobody's memory.
        let now = unsafe { syscall!(Sysno::brk, 0) }.map_err(errno)? as u64;
        let start = now.next_multiple_of(PAGE);
        let end = start + pages * PAGE;
        // SAFETY: as above.
        let got = unsafe { syscall!(Sysno::brk, end) }.map_err(errno)? as u64;
        if got == end { Ok(Self { start, end }) } else { Err(Error::NOMEM.raw_os_error()) }
    }

    /// Moves it down to so many pages.
    pub fn shrink(&mut self, pages: u64) -> bool {
        let end = self.start + pages * PAGE;
        // SAFETY: what goes was ours, as long as the end is where we left it.
        let got = unsafe {
            if syscall!(Sysno::brk, 0) != Ok(self.end as usize) {
                return false;
            }
            syscall!(Sysno::brk, end)
        };
        self.end = end;
        got == Ok(end as usize)
    }

    /// Writes a number at the start of a page.
    pub fn write(&self, page: u64, number: u64) -> bool {
        page * PAGE < self.end - self.start && poke(self.start + page * PAGE, number)
    }
}

/// Forks as a program does; what `body` says in the child.
pub fn in_child(body: impl FnOnce() -> bool) -> Result<bool, Errno> {
    unsafe extern "C" {
        safe fn fork() -> i32;
    }
    match fork() {
        0 => {
            let fine = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
            // SAFETY: ends the process.
            let _ = unsafe { syscall!(Sysno::exit_group, usize::from(!fine)) };
            unreachable!("exit_group returned")
        }
        child => {
            let child = rustix::process::Pid::from_raw(child).ok_or(Error::AGAIN.raw_os_error())?;
            let ended = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()).map_err(number)?;
            Ok(ended.and_then(|(_, status)| status.exit_status()) == Some(0))
        }
    }
}

/// From now on this thread may have no userfaultfd, as in a container: neither call nor device.
pub fn deny_userfaultfd() -> Result<(), Errno> {
    // linux/filter.h: code, jump if true, jump if false, value.
    let load = |at: u64| 0x20 | at << 32;
    let skip_unless = |value: u64, skip: u64| 0x15 | skip << 24 | value << 32;
    let refuse = 0x06 | (0x0005_0000 | 1) << 32; // EPERM
    let allow = 0x06 | 0x7fff_0000 << 32;
    let program: [u64; 8] = [
        load(0),
        skip_unless(Sysno::userfaultfd as u64, 1),
        refuse,
        skip_unless(Sysno::ioctl as u64, 3),
        load(24),
        skip_unless(0xaa00, 1),
        refuse,
        allow,
    ];
    let head = [program.len() as u64, program.as_ptr().addr() as u64];
    // SAFETY: a struct sock_fprog, on this architecture a length padded to eight bytes and an address; the kernel copies it.
    unsafe {
        program.as_ptr().expose_provenance();
        syscall!(Sysno::prctl, 38, 1, 0, 0, 0).map_err(errno)?; // PR_SET_NO_NEW_PRIVS
        syscall!(Sysno::seccomp, 1, 0, head.as_ptr()).map_err(errno)?; // SECCOMP_SET_MODE_FILTER
    }
    Ok(())
}

/// Closes this library's own descriptors behind its back, as a program does that closes all; how many. For a process that ends soon.
pub fn close_private() -> usize {
    let private = (0..1 << 16).filter(|&fd| crate::private_fds::is_private(fd));
    // SAFETY: close touches no memory. Whoever owned the descriptor finds it closed: what the test is about.
    private.filter(|&fd| unsafe { syscall!(Sysno::close, fd) }.is_ok()).count()
}
