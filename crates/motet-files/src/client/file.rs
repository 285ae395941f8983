//! An open file of a client: in one export, or striped over several.

use super::Shared;
use super::export_file::{ExportFile, Transfer};
use super::open_files::OpenState;
use super::stripes::Stripes;
use crate::Result;
use crate::identity::Assumed;
use crate::protocol::{Attributes, Change, LockRange, LockWait, OpenFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The mode of fallocate(2) that frees space and keeps the length: FALLOC_FL_PUNCH_HOLE and FALLOC_FL_KEEP_SIZE.
const FALLOC_PUNCH_HOLE: u32 = 0x02 | 0x01;

/// An open file or directory. Dropping it closes it.
#[derive(Debug)]
pub struct File {
    /// Its parts in other exports, which are closed first.
    stripes: Option<Stripes>,
    file: ExportFile,
}

impl File {
    pub(super) fn new(file: ExportFile, stripes: Option<Stripes>) -> Self {
        Self { stripes, file }
    }

    /// Finishes the opening of a striped file: makes the parts of a new one, and removes the content if the flags say so. Returns the attributes.
    pub(super) fn prepare_stripes(&self, flags: OpenFlags, attributes: Attributes) -> Result<Attributes> {
        let Some(stripes) = &self.stripes else { return Ok(attributes) };
        if attributes.size == 0 && flags.intersects(OpenFlags::CREATE | OpenFlags::TMPFILE) {
            stripes.make(&self.file)?;
        } else if flags.contains(OpenFlags::TRUNCATE) {
            return self.set_attributes(&Change { size: Some(0), ..Change::default() });
        }
        Ok(attributes)
    }

    /// What the client knows of it.
    pub(super) fn state(&self) -> &Arc<OpenState> {
        self.file.state()
    }

    /// Whether it is striped over several exports.
    pub(super) fn is_striped(&self) -> bool {
        self.stripes.is_some()
    }

    /// Whether it is one of this client.
    pub(super) fn is_of(&self, client: &Arc<Shared>) -> bool {
        self.file.is_of(client)
    }

    /// Reads into `buffer` from `offset` on; returns how many bytes, fewer only at the end of the file.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        match &self.stripes {
            Some(stripes) => stripes.read(&self.file, buffer, offset),
            None => self.file.read_at(buffer, offset),
        }
    }

    /// Writes `data` at `offset`, or at the end of a file that is open for appending; returns how many bytes.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        match &self.stripes {
            Some(stripes) => stripes.write(&self.file, data, offset),
            None => self.file.write_at(data, offset),
        }
    }

    /// Writes what a kernel has in its cache at its place, also into a file that is open for appending; returns how many bytes. 1 MiB at most.
    pub fn write_back(&self, data: &[u8], offset: u64) -> Result<usize> {
        match &self.stripes {
            Some(stripes) => stripes.write_back(&self.file, data, offset),
            None => self.file.write_back(data, offset),
        }
    }

    /// Makes several reads and writes at once, in any order; returns how many bytes of each. Longer ones than 1 MiB of a file that is not striped are made one
    /// after the other.
    pub fn transfer(&self, transfers: &mut [Transfer<'_>]) -> Vec<Result<usize>> {
        match &self.stripes {
            Some(stripes) => stripes.transfer(&self.file, transfers),
            None => self.file.transfer(transfers),
        }
    }

    /// Waits until what was written is on the server's disk; with `data_only` without times.
    pub fn sync(&self, data_only: bool) -> Result<()> {
        if let Some(stripes) = &self.stripes {
            stripes.sync(&self.file, data_only)?;
        }
        self.file.sync(data_only)
    }

    /// Its attributes.
    pub fn attributes(&self) -> Result<Attributes> {
        self.file.attributes()
    }

    /// Changes attributes, and returns the new ones.
    pub fn set_attributes(&self, change: &Change) -> Result<Attributes> {
        if let (Some(stripes), Some(size)) = (&self.stripes, change.size) {
            // First, so that what was cut off does not come back when the file grows.
            stripes.truncate(&self.file, size)?;
        }
        self.file.set_attributes(change)
    }

    /// Lists the directory from `cookie` on (0: from the beginning) into `buffer`; returns how many bytes, 0 at the end. [`crate::protocol::entries`] reads them.
    pub fn readdir(&self, cookie: u64, with_attributes: bool, buffer: &mut [u8]) -> Result<usize> {
        self.file.readdir(cookie, with_attributes, buffer)
    }

    /// Sets or releases a lock without waiting. EAGAIN: another owner has it. A lock belongs to its owner, through whichever open file it was set.
    pub fn lock(&self, owner: u64, range: LockRange) -> Result<()> {
        self.file.lock(owner, range, LockWait::No)
    }

    /// Asks for a lock for a program that waits for it. EAGAIN: it has to be asked again, within a second, or [`File::stop_waiting`] called. EDEADLK: the owner
    /// would wait for itself.
    pub fn lock_for_waiter(&self, owner: u64, range: LockRange, wait: LockWait) -> Result<()> {
        self.file.lock(owner, range, wait)
    }

    /// A program that waits for a lock gives up.
    pub fn stop_waiting(&self, owner: u64, range: LockRange) -> Result<()> {
        self.file.stop_waiting(owner, range)
    }

    /// The owners that have locked through this open file last, which lose their locks when it is closed.
    pub fn lock_owners(&self) -> Vec<u64> {
        self.file.lock_owners()
    }

    /// Releases all locks of an owner on the file, through whichever open file they were set. Without any the server is not asked.
    pub fn release_locks(&self, owner: u64) -> Result<()> {
        self.file.release_locks(owner)
    }

    /// The lock that keeps `owner` from this one, or an unlocked range.
    pub fn test_lock(&self, owner: u64, range: LockRange) -> Result<LockRange> {
        self.file.test_lock(owner, range)
    }

    /// Allocates or frees space, as fallocate(2) does with this mode. EOPNOTSUPP: a striped file, whose space can only be freed.
    pub fn fallocate(&self, mode: u32, offset: u64, length: u64) -> Result<()> {
        match &self.stripes {
            Some(_) if mode != FALLOC_PUNCH_HOLE => return Err(Errno::OPNOTSUPP.into()),
            Some(stripes) => stripes.punch_hole(&self.file, mode, offset, length)?,
            None => {}
        }
        self.file.fallocate(mode, offset, length)
    }

    /// The next data, or the next hole, from `offset` on. ENXIO: there is none.
    pub fn seek(&self, offset: u64, data: bool) -> Result<u64> {
        if self.stripes.is_none() {
            return self.file.seek(offset, data);
        }
        // All of a striped file counts as data.
        let size = self.attributes()?.size;
        if offset >= size { Err(Errno::NXIO.into()) } else { Ok(if data { offset } else { size }) }
    }

    /// Copies to another open file of the same client, on the server; returns how many bytes. EOPNOTSUPP: one of them is striped.
    pub fn copy_to(&self, offset: u64, to: &File, to_offset: u64, length: u64) -> Result<u64> {
        if self.stripes.is_some() || to.stripes.is_some() {
            return Err(Errno::OPNOTSUPP.into());
        }
        self.file.copy_to(offset, &to.file, to_offset, length)
    }

    /// A descriptor of the file, if the client uses the directory itself and the whole file is there.
    pub fn descriptor(&self) -> Option<OwnedFd> {
        if self.stripes.is_none() { self.file.descriptor() } else { None }
    }

    /// Gives this thread the identity with which the file was opened, if the client uses the directory itself and that is another one than its own.
    pub fn assume_opener(&self) -> Result<Option<Assumed<'_>>> {
        self.file.assume_opener()
    }

    /// The file has another path now, for the case that it has to be opened again.
    pub fn renamed(&self, path: &[u8]) {
        self.file.renamed(path);
    }
}
