//! Reads and writes past the server's page cache: O_DIRECT.
//!
//! A file that is open this way has two descriptors: one with O_DIRECT, and the ordinary one, which what is no whole block is written through. The system keeps the two
//! coherent: before a direct read it writes what the cache has to the device, after a direct write it drops what the cache has.

use super::descriptors::reopen;
use crate::Result;
use crate::protocol::Cached;
use rustix::fs::{Advice, AtFlags, OFlags, StatxFlags, fadvise, fcntl_getfl, statx};
use rustix::io::{Errno, pread, pwrite, retry_on_intr};
use std::cell::RefCell;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The unit of direct reads and writes where the system does not say it: no device of today has larger blocks.
const USUAL_BLOCK: usize = 4096;
/// Largest unit that is used. A file system that wants more is used through its cache.
const MAX_BLOCK: usize = 64 << 10;
/// Bytes of the aligned memory of a thread: a request, and the blocks at its ends.
const ALIGNED_BYTES: usize = (1 << 20) + 2 * MAX_BLOCK;
/// Alignment of that memory, bytes.
const ALIGNMENT: usize = 4096;

thread_local! {
    /// Memory for data that are not aligned in the caller's. A thread allocates it when it needs it.
    static ALIGNED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A file that is read and written past the cache.
#[derive(Debug)]
pub struct PastCache {
    descriptor: OwnedFd,
    /// Bytes of which offsets and lengths are multiples.
    block: usize,
    /// Bytes of which addresses are multiples.
    memory: usize,
    /// The direct reads of all files of the server.
    under_way: UnderWay,
}

/// Counts the direct reads of a server that are under way.
#[derive(Debug, Clone, Default)]
pub struct UnderWay(Arc<AtomicUsize>);

/// A direct read that is under way.
#[derive(Debug)]
pub struct Counted(UnderWay);

impl UnderWay {
    /// A read begins. It ends when this is dropped.
    pub fn begin(&self) -> Counted {
        self.0.fetch_add(1, Ordering::Relaxed);
        Counted(self.clone())
    }

    /// Whether there are any.
    pub fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Calls `with` with aligned memory of this thread.
fn with_aligned<T>(with: impl FnOnce(&mut [u8]) -> T) -> T {
    ALIGNED.with_borrow_mut(|memory| {
        memory.resize(ALIGNED_BYTES + ALIGNMENT, 0);
        let start = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        with(&mut memory[start..start + ALIGNED_BYTES])
    })
}

/// What direct reads and writes of a file need: multiples for offsets, and for addresses. An error says why there are none.
fn alignment(file: BorrowedFd<'_>) -> std::result::Result<(usize, usize), Cached> {
    let unknown = (USUAL_BLOCK, USUAL_BLOCK.min(ALIGNMENT));
    let Ok(found) = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else { return Ok(unknown) };
    if found.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return Ok(unknown);
    }
    let (block, memory) = (found.stx_dio_offset_align as usize, found.stx_dio_mem_align as usize);
    if block == 0 || memory == 0 {
        return Err(Cached::NoneForIt);
    }
    if block > MAX_BLOCK || !block.is_power_of_two() || memory > ALIGNMENT || !memory.is_power_of_two() {
        return Err(Cached::Units { block: found.stx_dio_offset_align, memory: found.stx_dio_mem_align });
    }
    Ok((block, memory))
}

impl PastCache {
    /// Opens an open file again, past the cache. `under_way` counts its reads. An error says why that is not possible.
    pub fn open(file: BorrowedFd<'_>, under_way: &UnderWay) -> std::result::Result<Self, Cached> {
        let kept = OFlags::RWMODE | OFlags::APPEND | OFlags::NONBLOCK | OFlags::SYNC | OFlags::DSYNC;
        let flags = fcntl_getfl(file).map_err(|error| Cached::Refused(error.raw_os_error()))? & kept;
        let descriptor = reopen(file, flags | OFlags::DIRECT).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::INVAL | Errno::OPNOTSUPP) => Cached::NoDirectIo,
            _ => Cached::Refused(error.raw_os_error().unwrap_or(Errno::IO.raw_os_error())),
        })?;
        let (block, memory) = alignment(descriptor.as_fd())?;
        Ok(Self { descriptor, block, memory, under_way: under_way.clone() })
    }

    /// The descriptor with O_DIRECT.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// The direct reads of all files of the server.
    pub fn under_way(&self) -> &UnderWay {
        &self.under_way
    }

    /// Bytes of which offsets and lengths of direct reads and writes are multiples.
    pub fn block(&self) -> usize {
        self.block
    }

    /// Whether a range consists of whole blocks.
    pub fn is_whole(&self, offset: u64, length: usize) -> bool {
        offset.is_multiple_of(self.block as u64) && length.is_multiple_of(self.block)
    }

    fn is_aligned(&self, memory: &[u8]) -> bool {
        memory.as_ptr().addr().is_multiple_of(self.memory)
    }

    /// Reads into `buffer` from `offset` on until it is full or the file ends; returns how many bytes. Of blocks that are wanted in part, the whole is read. EINVAL:
    /// the file system refuses these direct reads.
    pub fn read(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let _counted = self.under_way.begin();
        if self.is_whole(offset, buffer.len()) && self.is_aligned(buffer) {
            return self.read_blocks(buffer, offset);
        }
        with_aligned(|aligned| {
            let mut done = 0;
            while done < buffer.len() {
                let at = offset.checked_add(done as u64).ok_or(Errno::INVAL)?;
                let before = usize::try_from(at % self.block as u64).unwrap_or(0);
                let wanted = (before + buffer.len() - done).next_multiple_of(self.block);
                let blocks = &mut aligned[..wanted.min(ALIGNED_BYTES / self.block * self.block)];
                let read = self.read_blocks(blocks, at - before as u64)?;
                let found = blocks.get(before..read).unwrap_or(&[]);
                let found = &found[..found.len().min(buffer.len() - done)];
                buffer[done..done + found.len()].copy_from_slice(found);
                done += found.len();
                if read < blocks.len() {
                    break;
                }
            }
            Ok(done)
        })
    }

    /// Reads whole blocks into aligned memory.
    fn read_blocks(&self, blocks: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while done < blocks.len() {
            let at = offset.saturating_add(done as u64);
            match retry_on_intr(|| pread(&self.descriptor, &mut blocks[done..], at)) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) => return Err(error.into()),
            }
            // What is no whole block is the end of the file.
            if !done.is_multiple_of(self.block) {
                break;
            }
        }
        Ok(done)
    }

    /// Writes data at `offset`, or at the end of a file that is open for appending; returns how many bytes. What is no range of whole blocks goes through the cache,
    /// by the ordinary descriptor `cached`, and the system need not keep it there.
    pub fn write(&self, data: &[u8], offset: u64, cached: BorrowedFd<'_>, appends: bool) -> Result<usize> {
        let whole = data.len().is_multiple_of(self.block) && (appends || offset.is_multiple_of(self.block as u64));
        if whole && !data.is_empty() {
            let written = if self.is_aligned(data) {
                write_all(self.descriptor(), data, offset)
            } else {
                with_aligned(|aligned| {
                    // A request is shorter, so what is appended stays whole.
                    let mut done = 0;
                    for part in data.chunks(ALIGNED_BYTES / self.block * self.block) {
                        aligned[..part.len()].copy_from_slice(part);
                        match write_all(self.descriptor(), &aligned[..part.len()], offset.saturating_add(done as u64)) {
                            Ok(written) if written == part.len() => done += written,
                            Ok(written) => return Ok(done + written),
                            Err(_) if done > 0 => break,
                            Err(error) => return Err(error),
                        }
                    }
                    Ok(done)
                })
            };
            match written {
                // The end to which is appended is within a block, or the file system refuses it for another reason.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {}
                written => return written,
            }
        }
        let written = write_all(cached, data, offset)?;
        if !appends {
            // Only a hint. Where the end was to which was appended is not known.
            let _ = fadvise(cached, offset, NonZeroU64::new(written as u64), Advice::DontNeed);
        }
        Ok(written)
    }
}

/// Writes all of `data`; less, if an error comes in its middle.
pub fn write_all(file: BorrowedFd<'_>, data: &[u8], offset: u64) -> Result<usize> {
    let mut done = 0;
    while done < data.len() {
        match retry_on_intr(|| pwrite(file, &data[done..], offset.saturating_add(done as u64))) {
            Ok(0) => break,
            Ok(written) => done += written,
            // What is written is written: the client sees the error at its next write.
            Err(_) if done > 0 => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(done)
}
