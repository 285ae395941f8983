//! The kernel's requests, each as one request to the server.

use crate::convert::{attributes, kind, lock_kind, lock_number, open_flags, set_time};
use crate::handles::{Handle, Handles};
use crate::locks;
use crate::nodes::{ContentVersion, Nodes};
use crate::passthrough::Passthrough;
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use motet_files::client::{Client, File};
use motet_files::protocol::{self, Attributes, Change, LockRange, MAX_DATA_BYTES};
use rustix::fs::OFlags;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, SystemTime};

/// Numbers of files are not used for two files at a time, so there is one generation.
const GENERATION: Generation = Generation(0);
type Result<T> = std::result::Result<T, Errno>;

/// A mounted export.
#[derive(Debug)]
pub struct MountedExport {
    client: Client,
    nodes: RwLock<Nodes>,
    handles: Handles,
    /// How long the kernel may use names and attributes without asking.
    validity: Duration,
    passthrough: Passthrough,
}

thread_local! {
    /// What is read for the kernel.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl MountedExport {
    /// The export of this client.
    pub fn new(client: Client, validity: Duration) -> std::io::Result<Self> {
        let nodes = RwLock::new(Nodes::new(&client.attributes(b"")?));
        let passthrough = Passthrough::default();
        Ok(Self { client, nodes, handles: Handles::default(), validity, passthrough })
    }

    fn nodes(&self) -> RwLockReadGuard<'_, Nodes> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn nodes_mut(&self) -> RwLockWriteGuard<'_, Nodes> {
        self.nodes.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, number: INodeNo) -> Result<Vec<u8>> {
        self.nodes().path(number.0).ok_or(Errno::ESTALE)
    }

    fn path_in(&self, directory: INodeNo, name: &OsStr) -> Result<Vec<u8>> {
        self.nodes().path_in(directory.0, name).ok_or(Errno::ESTALE)
    }

    fn handle(&self, handle: FileHandle) -> Result<Arc<Handle>> {
        self.handles.get(handle.0).ok_or(Errno::EBADF)
    }

    /// The file that a request concerns: the open one that it names; any open one, if the file has no name; otherwise the one at its path.
    fn with_file<T>(
        &self,
        number: INodeNo,
        handle: Option<FileHandle>,
        open: impl FnOnce(&File) -> std::io::Result<T>,
        at: impl FnOnce(&[u8]) -> std::io::Result<T>,
    ) -> Result<T> {
        if let Some(handle) = handle {
            return Ok(open(&self.handle(handle)?.file)?);
        }
        match self.path(number) {
            Ok(path) => Ok(at(&path)?),
            Err(error) => Ok(open(&self.handles.of(number.0).ok_or(error)?.file)?),
        }
    }

    /// A file that was found or made under a name.
    fn enter(&self, directory: INodeNo, name: &OsStr, found: &Attributes) -> fuser::FileAttr {
        attributes(self.nodes_mut().found(directory.0, name, found), found)
    }

    fn answer_entry(&self, directory: INodeNo, name: &OsStr, found: Result<Attributes>, reply: ReplyEntry) {
        match found {
            Ok(found) => reply.entry(&self.validity, &self.enter(directory, name, &found), GENERATION),
            Err(error) => reply.error(error),
        }
    }

    fn answer_attributes(&self, number: INodeNo, found: Result<Attributes>, reply: ReplyAttr) {
        match found {
            Ok(found) => reply.attr(&self.validity, &attributes(number.0, &found)),
            Err(error) => reply.error(error),
        }
    }

    /// Opens a file that has a path. Returns the open file, and whether the kernel may keep what it has cached.
    fn open_file(&self, number: INodeNo, flags: OpenFlags) -> Result<(File, FopenFlags)> {
        let (file, found) = self.client.open_file(&self.path(number)?, open_flags(flags.0), 0)?;
        let same = self.nodes_mut().cache(number.0, ContentVersion::of(&found));
        Ok((file, cache_flags(flags.0, same)))
    }

    fn create_file(&self, directory: INodeNo, name: &OsStr, mode: u32, flags: i32) -> Result<(File, Attributes)> {
        let flags = open_flags(flags) | protocol::OpenFlags::CREATE;
        Ok(self.client.open_file(&self.path_in(directory, name)?, flags, mode)?)
    }

    fn rename_file(&self, from: (INodeNo, &OsStr), to: (INodeNo, &OsStr), flags: RenameFlags) -> Result<()> {
        let (old, new) = (self.path_in(from.0, from.1)?, self.path_in(to.0, to.1)?);
        let known = RenameFlags::RENAME_NOREPLACE | RenameFlags::RENAME_EXCHANGE;
        if !known.contains(flags) {
            return Err(Errno::EINVAL);
        }
        let mut asked = protocol::RenameFlags::empty();
        asked.set(protocol::RenameFlags::NO_REPLACE, flags.contains(RenameFlags::RENAME_NOREPLACE));
        let exchange = flags.contains(RenameFlags::RENAME_EXCHANGE);
        asked.set(protocol::RenameFlags::EXCHANGE, exchange);
        self.client.rename(&old, &new, asked)?;
        let mut nodes = self.nodes_mut();
        nodes.renamed((from.0.0, from.1), (to.0.0, to.1), exchange);
        // Files below a renamed directory have other paths, too.
        for handle in self.handles.all() {
            if let Some(path) = nodes.path(handle.number) {
                handle.file.renamed(&path);
            }
        }
        Ok(())
    }
}

/// How the kernel caches an open file. `same`: what it has cached is the present content.
fn cache_flags(flags: i32, same: bool) -> FopenFlags {
    if OFlags::from_bits_retain(flags.cast_unsigned()).contains(OFlags::DIRECT) {
        FopenFlags::FOPEN_DIRECT_IO
    } else if same {
        FopenFlags::FOPEN_KEEP_CACHE
    } else {
        FopenFlags::empty()
    }
}

/// Answers a request that has no result.
fn finish(result: Result<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

/// Answers with a value of an extended attribute, or its size.
fn answer_value(value: std::io::Result<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match value {
        Ok(value) if size == 0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        Ok(value) if value.len() <= size as usize => reply.data(&value),
        Ok(_) => reply.error(Errno::ERANGE),
        Err(error) => reply.error(error.into()),
    }
}

impl Filesystem for MountedExport {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_AUTO_INVAL_DATA
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_POSIX_LOCKS
            | InitFlags::FUSE_FLOCK_LOCKS
            | InitFlags::FUSE_CACHE_SYMLINKS;
        if self.client.is_direct() {
            self.passthrough.prepare(config);
        }
        // What a kernel does not have is left out.
        let _ = config.add_capabilities(wanted & config.capabilities());
        let bytes = MAX_DATA_BYTES as u32;
        let _ = config.set_max_write(bytes);
        let _ = config.set_max_readahead(bytes);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn destroy(&mut self) {
        self.client.close();
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.path_in(parent, name).and_then(|path| Ok(self.client.attributes(&path)?));
        self.answer_entry(parent, name, found, reply);
    }

    fn forget(&self, _: &Request, number: INodeNo, lookups: u64) {
        self.nodes_mut().forget(number.0, lookups);
    }

    fn getattr(&self, _: &Request, number: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        let found = self.with_file(number, handle, File::attributes, |path| self.client.attributes(path));
        self.answer_attributes(number, found, reply);
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (accessed, modified) = (accessed.map(set_time), modified.map(set_time));
        let change = Change { mode, user, group, size, accessed, modified };
        let changed = self.with_file(
            number,
            handle,
            |file| file.set_attributes(&change),
            |path| self.client.set_attributes(path, &change),
        );
        self.answer_attributes(number, changed, reply);
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        match self.path(number).and_then(|path| Ok(self.client.read_link(&path)?)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(error),
        }
    }

    fn mknod(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, _: u32, reply: ReplyEntry) {
        let made = self.path_in(parent, name).and_then(|path| Ok(self.client.mknod(&path, mode)?));
        self.answer_entry(parent, name, made, reply);
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        let made = self.path_in(parent, name).and_then(|path| Ok(self.client.mkdir(&path, mode)?));
        self.answer_entry(parent, name, made, reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.path_in(parent, name).and_then(|path| Ok(self.client.unlink(&path, false)?));
        finish(removed.map(|()| self.nodes_mut().removed(parent.0, name)), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.path_in(parent, name).and_then(|path| Ok(self.client.unlink(&path, true)?));
        finish(removed.map(|()| self.nodes_mut().removed(parent.0, name)), reply);
    }

    fn symlink(&self, _: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        let made = self.path_in(parent, name).and_then(|path| Ok(self.client.symlink(&path, target)?));
        self.answer_entry(parent, name, made, reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        finish(self.rename_file((parent, name), (new_parent, new_name), flags), reply);
    }

    fn link(&self, _: &Request, number: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let made = self.path(number).and_then(|from| Ok(self.client.hard_link(&from, &self.path_in(parent, name)?)?));
        self.answer_entry(parent, name, made, reply);
    }

    fn open(&self, _: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open_file(number, flags) {
            Ok((file, cache)) => {
                let backing = self.passthrough.backing(number.0, &file, |descriptor| reply.open_backing(descriptor));
                let handle = FileHandle(self.handles.add(number.0, file, backing.clone()));
                match backing {
                    Some(backing) => reply.opened_passthrough(handle, FopenFlags::empty(), &backing),
                    None => reply.opened(handle, cache),
                }
            }
            Err(error) => reply.error(error),
        }
    }

    fn create(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, flags: i32, reply: ReplyCreate) {
        match self.create_file(parent, name, mode, flags) {
            Ok((file, found)) => {
                let entry = self.enter(parent, name, &found);
                self.nodes_mut().cache(entry.ino.0, ContentVersion::of(&found));
                let number = entry.ino.0;
                let backing = self.passthrough.backing(number, &file, |descriptor| reply.open_backing(descriptor));
                let handle = FileHandle(self.handles.add(number, file, backing.clone()));
                let (validity, cache) = (&self.validity, cache_flags(flags, false));
                match backing {
                    Some(backing) => {
                        reply.created_passthrough(validity, &entry, GENERATION, handle, FopenFlags::empty(), &backing);
                    }
                    None => reply.created(validity, &entry, GENERATION, handle, cache),
                }
            }
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let handle = match self.handle(handle) {
            Ok(handle) => handle,
            Err(error) => return reply.error(error),
        };
        BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            match handle.file.read_at(&mut buffer[..size], offset) {
                Ok(read) => reply.data(&buffer[..read]),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.handle(handle).and_then(|handle| Ok(handle.file.write_at(data, offset)?)) {
            Ok(written) => reply.written(u32::try_from(written).unwrap_or(u32::MAX)),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, handle: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        // Writes are at the server when they return, so only locks are left to release.
        finish(self.handle(handle).and_then(|handle| Ok(handle.file.release_locks(owner.0)?)), reply);
    }

    fn release(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        owner: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        if let Some(closed) = self.handles.remove(handle.0) {
            // Closing the file releases its locks, too; another program may wait for them meanwhile.
            let _ = owner.map(|owner| closed.file.release_locks(owner.0));
            // Later opens keep what this one has cached, if the file has not changed since.
            if let Ok(found) = closed.file.attributes() {
                self.nodes_mut().cache(number.0, ContentVersion::of(&found));
            }
        }
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, data_only: bool, reply: ReplyEmpty) {
        finish(self.handle(handle).and_then(|handle| Ok(handle.file.sync(data_only)?)), reply);
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let flags = protocol::OpenFlags::READ | protocol::OpenFlags::DIRECTORY;
        match self.path(number).and_then(|path| Ok(self.client.open_file(&path, flags, 0)?)) {
            Ok((file, _)) => reply.opened(FileHandle(self.handles.add(number.0, file, None)), FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }

    fn readdir(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listed = self.handle(handle).and_then(|handle| {
            Ok(handle.list(offset, false, |entry| {
                let kind = kind(entry.kind).unwrap_or(fuser::FileType::RegularFile);
                !reply.add(INodeNo(entry.inode), entry.cookie, kind, &entry.name)
            })?)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = self.handle(handle).and_then(|handle| {
            Ok(handle.list(offset, true, |entry| {
                let itself = entry.name == "." || entry.name == "..";
                let found = match entry.attributes {
                    Some(found) => found,
                    // The kernel takes only the name of these two.
                    None if itself => Attributes { inode: entry.inode, mode: entry.kind, ..Attributes::default() },
                    // The file is gone by now.
                    None => return true,
                };
                let file = if itself { entry.inode } else { self.nodes_mut().number(&found) };
                let shown = attributes(file, &found);
                let full = reply.add(INodeNo(file), entry.cookie, &entry.name, &self.validity, &shown, GENERATION);
                if !full && !itself {
                    // The kernel has looked it up.
                    self.nodes_mut().found(number.0, &entry.name, &found);
                }
                !full
            })?)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        drop(self.handles.remove(handle.0));
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, handle: FileHandle, data_only: bool, reply: ReplyEmpty) {
        finish(self.handle(handle).and_then(|handle| Ok(handle.file.sync(data_only)?)), reply);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.client.statfs() {
            Ok(space) => reply.statfs(
                space.blocks,
                space.free,
                space.available,
                space.files,
                space.files_free,
                space.block_size,
                space.name_length,
                space.block_size,
            ),
            Err(error) => reply.error(error.into()),
        }
    }

    fn setxattr(
        &self,
        _: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let (create, replace) = (flags & 1 != 0, flags & 2 != 0);
        let set = self
            .path(number)
            .and_then(|path| Ok(self.client.set_xattr(&path, name.as_bytes(), value, create, replace)?));
        finish(set, reply);
    }

    fn getxattr(&self, _: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        // The kernel asks for this one at each write. No export has it.
        if name == "security.capability" {
            return reply.error(Errno::ENODATA);
        }
        match self.path(number) {
            Ok(path) => answer_value(self.client.xattr(&path, name.as_bytes()), size, reply),
            Err(error) => reply.error(error),
        }
    }

    fn listxattr(&self, _: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        match self.path(number) {
            Ok(path) => answer_value(self.client.xattrs(&path), size, reply),
            Err(error) => reply.error(error),
        }
    }

    fn removexattr(&self, _: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        finish(self.path(number).and_then(|path| Ok(self.client.remove_xattr(&path, name.as_bytes())?)), reply);
    }

    fn getlk(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        process: u32,
        reply: ReplyLock,
    ) {
        let found = self.handle(handle).and_then(|handle| {
            let kind = lock_kind(kind).ok_or(Errno::EINVAL)?;
            Ok(handle.file.test_lock(owner.0, LockRange { kind, start, end, process })?)
        });
        match found {
            Ok(lock) => {
                reply.locked(lock.start, lock.end.min(i64::MAX.cast_unsigned()), lock_number(lock.kind), lock.process)
            }
            Err(error) => reply.error(error),
        }
    }

    fn setlk(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        process: u32,
        waits: bool,
        reply: ReplyEmpty,
    ) {
        let asked = self.handle(handle).and_then(|handle| Ok((handle, lock_kind(kind).ok_or(Errno::EINVAL)?)));
        let (handle, kind) = match asked {
            Ok(asked) => asked,
            Err(error) => return reply.error(error),
        };
        let range = LockRange { kind, start, end, process };
        match handle.file.lock(owner.0, range) {
            Ok(()) => reply.ok(),
            Err(error) if waits && error.kind() == std::io::ErrorKind::WouldBlock => {
                locks::wait(handle, owner.0, range, reply);
            }
            Err(error) => reply.error(error.into()),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let allocated = self.handle(handle).and_then(|handle| {
            let mode = u32::try_from(mode).map_err(|_| Errno::EINVAL)?;
            Ok(handle.file.fallocate(mode, offset, length)?)
        });
        finish(allocated, reply);
    }

    fn lseek(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let data = match whence {
            3 => true,  // SEEK_DATA
            4 => false, // SEEK_HOLE
            _ => return reply.error(Errno::EINVAL),
        };
        let found = self.handle(handle).and_then(|handle| {
            let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
            Ok(handle.file.seek(offset, data)?)
        });
        match found {
            Ok(offset) => reply.offset(i64::try_from(offset).unwrap_or(i64::MAX)),
            Err(error) => reply.error(error),
        }
    }

    fn copy_file_range(
        &self,
        _: &Request,
        _: INodeNo,
        from: FileHandle,
        offset: u64,
        _: INodeNo,
        to: FileHandle,
        to_offset: u64,
        length: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let copied = self.handle(from).and_then(|from| {
            let to = self.handle(to)?;
            Ok(from.file.copy_to(offset, &to.file, to_offset, length.min(u64::from(u32::MAX)))?)
        });
        match copied {
            Ok(copied) => reply.written(u32::try_from(copied).unwrap_or(u32::MAX)),
            Err(error) => reply.error(error),
        }
    }
}
