//! For tests only (feature `test-mappings`): address ranges whose mappings a test changes, and references to pages as a registration has them.
//!
//! What it is: [`TestMappings`], a range of pages to which no Rust reference exists. A test reads and writes it by system calls on its
//! own process, so an access to an unmapped page is an error and not a crash. [`HeldPages`] refers to the pages themselves, as the
//! registration of a network card does: it shows what was registered, whatever is mapped at the address later.
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
pub const PAGE_BYTES: u64 = 4096;

/// A range of pages for a test to map, unmap, move and discard.
#[derive(Debug)]
pub struct TestMappings {
    base: u64,
    /// By page: mapped by this value. Other pages may belong to other code.
    owned: Vec<bool>,
}

fn at(address: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(address as usize)
}

impl TestMappings {
    /// Maps a range of zero pages.
    pub fn new(pages: u64) -> Result<Self, Errno> {
        let length = (pages * PAGE_BYTES) as usize;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, access(), MapFlags::PRIVATE) };
        Ok(Self { base: base.map_err(number)?.addr() as u64, owned: vec![true; pages as usize] })
    }

    /// The address of a page.
    pub fn address(&self, page: u64) -> u64 {
        self.base + page * PAGE_BYTES
    }

    /// Whether all of these pages are mapped by this value.
    pub fn has(&self, page: u64, pages: u64) -> bool {
        self.owned[page as usize..(page + pages) as usize].iter().all(|&owned| owned)
    }

    /// Maps zero pages, over own pages or free addresses. False: other code has mapped one of them.
    pub fn map(&mut self, page: u64, pages: u64) -> bool {
        (page..page + pages).all(|page| {
            let fixed = if self.has(page, 1) { MapFlags::FIXED } else { MapFlags::FIXED_NOREPLACE };
            // SAFETY: over an own page, to which no reference exists, or over free addresses.
            let new = unsafe {
                rustix::mm::mmap_anonymous(
                    at(self.address(page)),
                    PAGE_BYTES as usize,
                    access(),
                    MapFlags::PRIVATE | fixed,
                )
            };
            self.owned[page as usize] |= new.is_ok();
            new.is_ok()
        })
    }

    /// Replaces own pages by zero pages in one step (MAP_FIXED).
    pub fn replace(&mut self, page: u64, pages: u64) -> bool {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: over own pages, to which no reference exists.
        self.has(page, pages)
            && unsafe {
                rustix::mm::mmap_anonymous(at(self.address(page)), (pages * PAGE_BYTES) as usize, access(), flags)
            }
            .is_ok()
    }

    /// Unmaps own pages.
    pub fn unmap(&mut self, page: u64, pages: u64) -> bool {
        // SAFETY: own pages, to which no reference exists.
        let done = self.has(page, pages)
            && unsafe { rustix::mm::munmap(at(self.address(page)), (pages * PAGE_BYTES) as usize) }.is_ok();
        self.owned[page as usize..(page + pages) as usize].iter_mut().for_each(|owned| *owned &= !done);
        done
    }

    /// Discards own pages: MADV_FREE if `later`, else MADV_DONTNEED.
    pub fn discard(&self, page: u64, pages: u64, later: bool) -> bool {
        let advice = if later { Advice::LinuxFree } else { Advice::LinuxDontNeed };
        // SAFETY: own pages, to which no reference exists.
        self.has(page, pages)
            && unsafe { rustix::mm::madvise(at(self.address(page)), (pages * PAGE_BYTES) as usize, advice) }.is_ok()
    }

    /// Moves own pages onto other own pages (mremap); the ranges must not overlap. For a process without other threads that map memory: after
    /// a failure this asks the kernel which pages are left.
    pub fn move_pages(&mut self, page: u64, pages: u64, to: u64) -> bool {
        if !self.has(page, pages) || !self.has(to, pages) || page.abs_diff(to) < pages {
            return false;
        }
        let length = (pages * PAGE_BYTES) as usize;
        // SAFETY: both ranges are own pages, to which no reference exists.
        let moved = unsafe {
            let target = at(self.address(to));
            rustix::mm::mremap_fixed(at(self.address(page)), length, length, MremapFlags::MAYMOVE, target)
        };
        if moved.is_ok() {
            self.owned[page as usize..(page + pages) as usize].fill(false);
        } else {
            // The target is unmapped, and of several mappings some may have moved.
            for page in (page..page + pages).chain(to..to + pages) {
                self.owned[page as usize] = memory::is_mapped(self.address(page), self.address(page + 1));
            }
        }
        moved.is_ok()
    }

    /// Resizes own pages in place (mremap) to `now` pages.
    pub fn resize(&mut self, page: u64, pages: u64, now: u64) -> bool {
        let (old, new) = ((pages * PAGE_BYTES) as usize, (now * PAGE_BYTES) as usize);
        // SAFETY: own pages, to which no reference exists; without MREMAP_MAYMOVE no other mapping is replaced.
        let done = self.has(page, pages)
            && unsafe { rustix::mm::mremap(at(self.address(page)), old, new, MremapFlags::empty()) }.is_ok();
        if done {
            (0..pages.max(now)).for_each(|n| self.owned[(page + n) as usize] = n < now);
        }
        done
    }

    /// Writes a number at the start of a page. False: the page is not mapped.
    pub fn write(&self, page: u64, number: u64) -> bool {
        poke(self.address(page), number)
    }

    /// The number at the start of a page. `None`: the page is not mapped.
    pub fn read(&self, page: u64) -> Option<u64> {
        peek(self.address(page))
    }
}

impl Drop for TestMappings {
    fn drop(&mut self) {
        for page in 0..self.owned.len() as u64 {
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

/// Writes a number to an address of this process, if a page is mapped there. For memory to which no reference exists.
fn poke(address: u64, number: u64) -> bool {
    process_vm::write_to(thread::real_pid(), address, &number.to_ne_bytes()) == Ok(8)
}

/// The number at an address of this process. `None`: no page is mapped there.
pub fn peek(address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    (process_vm::read_from(thread::real_pid(), address, &mut bytes) == Ok(8)).then(|| u64::from_ne_bytes(bytes))
}

/// References to the pages of a range, held by a pipe (vmsplice).
#[derive(Debug)]
pub struct HeldPages {
    pages: OwnedFd,
    copy: Mutex<(OwnedFd, OwnedFd)>,
    count: usize,
}

impl HeldPages {
    /// Allocates all pages of a range and takes references to them. About 200 pages at most.
    pub fn new(start: u64, end: u64) -> Result<Self, Errno> {
        let length = (end - start) as usize;
        let count = length / PAGE_BYTES as usize;
        // SAFETY: allocates pages, and changes no contents.
        unsafe { rustix::mm::madvise(at(start), length, Advice::LinuxPopulateWrite) }.map_err(number)?;
        let pipe = || {
            let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(number)?;
            rustix::pipe::fcntl_setpipe_size(&write, count.next_power_of_two() * PAGE_BYTES as usize)
                .map_err(number)?;
            Ok::<_, Errno>((read, write))
        };
        let ((pages, write), copy) = (pipe()?, pipe()?);
        let mut done = 0;
        while done < length {
            let part = [start + done as u64, (length - done) as u64];
            // SAFETY: `part` is an iovec. The pipe refers to the pages and does not change them.
            let more = unsafe { syscall!(Sysno::vmsplice, write.as_raw_fd(), part.as_ptr(), 1, NONBLOCK) };
            done += more.map_err(errno)?;
        }
        Ok(Self { pages, copy: Mutex::new(copy), count })
    }

    /// The current numbers at the starts of the held pages.
    pub fn peek(&self) -> Vec<u64> {
        let copy = self.copy.lock().unwrap_or_else(PoisonError::into_inner);
        let (read, write) = &*copy;
        let mut bytes = vec![0; self.count * PAGE_BYTES as usize];
        let copied = rustix::pipe::tee(&self.pages, write, bytes.len(), SpliceFlags::NONBLOCK).unwrap_or(0);
        let mut got = 0;
        while got < copied {
            match rustix::io::read(read, &mut bytes[got..copied]) {
                Ok(more) if more > 0 => got += more,
                _ => break,
            }
        }
        let starts = bytes[..got].chunks_exact(PAGE_BYTES as usize);
        starts.map(|page| u64::from_ne_bytes(page[..8].try_into().unwrap_or_default())).collect()
    }
}

/// The end of the heap (program break), moved up by a test.
#[derive(Debug)]
pub struct ProgramBreak {
    /// First address of the added pages.
    pub start: u64,
    /// The end of the heap.
    pub end: u64,
}

impl ProgramBreak {
    /// Moves the end of the heap up to the next page boundary, and by `pages` pages.
    pub fn grow(pages: u64) -> Result<Self, Errno> {
        // SAFETY: brk(0) is refused and returns the end.
        let now = unsafe { syscall!(Sysno::brk, 0) }.map_err(errno)? as u64;
        let start = now.next_multiple_of(PAGE_BYTES);
        let end = start + pages * PAGE_BYTES;
        // SAFETY: growing the heap replaces no mapping.
        let got = unsafe { syscall!(Sysno::brk, end) }.map_err(errno)? as u64;
        if got == end { Ok(Self { start, end }) } else { Err(Error::NOMEM.raw_os_error()) }
    }

    /// Moves the end of the heap down to `pages` pages of this value. False: other code has moved it, or the system refuses.
    pub fn shrink(&mut self, pages: u64) -> bool {
        let end = self.start + pages * PAGE_BYTES;
        // SAFETY: the removed pages are this value's, as the end of the heap is where this value left it.
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
        page * PAGE_BYTES < self.end - self.start && poke(self.start + page * PAGE_BYTES, number)
    }
}

/// Runs `body` in a forked child; returns its result, false if it panics.
pub fn in_child(body: impl FnOnce() -> bool) -> Result<bool, Errno> {
    unsafe extern "C" {
        safe fn fork() -> i32;
    }
    match fork() {
        0 => {
            let fine = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
            // SAFETY: ends the child.
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

/// Denies this thread the userfaultfd system call and ioctl by a seccomp filter, as a container does.
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
    // SAFETY: `head` is a struct sock_fprog, on this architecture a length padded to eight bytes and an address; the kernel copies it.
    unsafe {
        program.as_ptr().expose_provenance();
        syscall!(Sysno::prctl, 38, 1, 0, 0, 0).map_err(errno)?; // PR_SET_NO_NEW_PRIVS
        syscall!(Sysno::seccomp, 1, 0, head.as_ptr()).map_err(errno)?; // SECCOMP_SET_MODE_FILTER
    }
    Ok(())
}

/// Closes all private descriptors, as a program does that closes every descriptor; returns how many. For a process that ends soon.
pub fn close_private() -> usize {
    let private = (0..1 << 16).filter(|&fd| crate::private_fds::is_private(fd));
    // SAFETY: close touches no memory. That the owner finds its descriptor closed is what the test is about.
    private.filter(|&fd| unsafe { syscall!(Sysno::close, fd) }.is_ok()).count()
}
