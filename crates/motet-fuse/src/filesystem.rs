//! The kernel's requests, each as one request to the server.

use crate::callers;
use crate::convert::{lock_kind, lock_number, set_time};
use crate::device;
use crate::handles::Awaited;
use crate::locks::Asked;
use crate::mounted::{MountedExport, Result};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use motet_files::protocol::{Change, LockKind, LockRange, LockWait, MAX_DATA_BYTES};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

thread_local! {
    /// What is read for the kernel.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Answers a request that has no result.
fn finish(result: Result<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

/// Answers with a value of an extended attribute, or its size.
fn answer_value(value: Result<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match value {
        Ok(value) if size == 0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        Ok(value) if value.len() <= size as usize => reply.data(&value),
        Ok(_) => reply.error(Errno::ERANGE),
        Err(error) => reply.error(error),
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
            | InitFlags::FUSE_DONT_MASK
            | InitFlags::FUSE_POSIX_LOCKS
            | InitFlags::FUSE_FLOCK_LOCKS
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        device::note_kernel(config.capabilities());
        if self.client.is_direct() {
            self.passthrough.prepare(config);
        }
        if self.writeback {
            self.writeback = config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE).is_ok();
        }
        if self.client.has_identities() {
            // The server's system removes set-user-id when a file is written as a user who may not keep it. The kernel could not ask for that as this user.
            let _ = config.add_capabilities(InitFlags::FUSE_HANDLE_KILLPRIV_V2);
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

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        callers::serve(request);
        self.answer_lookup(request, (parent, name), reply);
    }

    fn forget(&self, _: &Request, number: INodeNo, lookups: u64) {
        self.nodes_mut().forget(number.0, lookups);
    }

    fn getattr(&self, request: &Request, number: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        callers::serve(request);
        let asked = self.asked();
        let found = match handle {
            Some(handle) => self.handle(handle).and_then(|handle| Ok(handle.file.attributes()?)),
            None => self.attributes(request, number),
        };
        self.reply_attributes(asked, number, found, reply);
    }

    fn setattr(
        &self,
        request: &Request,
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
        callers::serve(request);
        let asked = self.asked();
        let (accessed, modified) = (accessed.map(set_time), modified.map(set_time));
        let change = Change { mode, user, group, size, accessed, modified };
        let changed = match handle {
            Some(handle) if size.is_some() => {
                self.handle_to_change(request, handle).and_then(|handle| Ok(handle.file.set_attributes(&change)?))
            }
            Some(handle) => self.handle(handle).and_then(|handle| Ok(handle.file.set_attributes(&change)?)),
            None => self.change(request, number, &change),
        };
        self.reply_attributes(asked, number, changed, reply);
    }

    fn readlink(&self, request: &Request, number: INodeNo, reply: ReplyData) {
        callers::serve(request);
        match self.link_target(request, number) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(error),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        callers::serve(request);
        let mode = self.masked(request, parent, mode, umask);
        let make = |path: &[u8]| self.client_of(request).mknod(path, mode, device.into());
        self.answer_entry((parent, name), make, reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        callers::serve(request);
        let mode = self.masked(request, parent, mode, umask);
        self.answer_entry((parent, name), |path| self.client_of(request).mkdir(path, mode), reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        callers::serve(request);
        finish(self.remove(request, (parent, name), false), reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        callers::serve(request);
        finish(self.remove(request, (parent, name), true), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        callers::serve(request);
        let target = target.as_os_str().as_bytes();
        self.answer_entry((parent, name), |path| self.client_of(request).symlink(path, target), reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        callers::serve(request);
        finish(self.rename_file(request, (parent, name), (new_parent, new_name), flags), reply);
    }

    fn link(&self, request: &Request, number: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        callers::serve(request);
        let asked = self.asked();
        let linked = self
            .path_in((parent, name))
            .and_then(|path| self.with_found(request, number, |client, file| client.hard_link_of(file, &path)));
        self.reply_entry(asked, (parent, name), linked, reply);
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        callers::serve(request);
        self.answer_open(request, number, flags.0, reply);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        callers::serve(request);
        let mode = self.masked(request, parent, mode, umask);
        self.answer_create(request, (parent, name), mode, flags, reply);
    }

    fn read(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        callers::serve(request);
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
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        callers::serve(request);
        match self.write_file(handle, data, offset, flags) {
            Ok(written) => reply.written(u32::try_from(written).unwrap_or(u32::MAX)),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, request: &Request, _: INodeNo, handle: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        callers::serve(request);
        finish(self.close_descriptor(handle, owner.0), reply);
    }

    fn release(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        callers::serve_unattended();
        self.close(number, handle);
        reply.ok();
    }

    fn fsync(&self, request: &Request, _: INodeNo, handle: FileHandle, data_only: bool, reply: ReplyEmpty) {
        callers::serve(request);
        finish(self.handle(handle).and_then(|handle| Ok(handle.file.sync(data_only)?)), reply);
    }

    fn opendir(&self, request: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        callers::serve(request);
        self.answer_opendir(request, number, reply);
    }

    fn readdir(&self, request: &Request, _: INodeNo, handle: FileHandle, offset: u64, reply: ReplyDirectory) {
        callers::serve(request);
        self.answer_listing(handle, offset, reply);
    }

    fn readdirplus(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        callers::serve(request);
        self.answer_listing_with_attributes(number, handle, offset, reply);
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        callers::serve_unattended();
        drop(self.handles.remove(handle.0));
        reply.ok();
    }

    fn fsyncdir(&self, request: &Request, _: INodeNo, handle: FileHandle, data_only: bool, reply: ReplyEmpty) {
        callers::serve(request);
        finish(self.handle(handle).and_then(|handle| Ok(handle.file.sync(data_only)?)), reply);
    }

    fn statfs(&self, request: &Request, _: INodeNo, reply: ReplyStatfs) {
        callers::serve(request);
        match self.space() {
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
            Err(error) => reply.error(error),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        callers::serve(request);
        let (create, replace) = (flags & 1 != 0, flags & 2 != 0);
        let set = self.with_found(request, number, |client, file| {
            client.set_xattr_of(file, name.as_bytes(), value, (create, replace))
        });
        self.access_list_changed(number, name);
        finish(set, reply);
    }

    fn getxattr(&self, request: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        callers::serve(request);
        // The kernel asks for this one at each write. No export has it.
        if name == "security.capability" {
            return reply.error(Errno::ENODATA);
        }
        answer_value(
            self.with_found(request, number, |client, file| client.xattr_of(file, name.as_bytes())),
            size,
            reply,
        );
    }

    fn listxattr(&self, request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        callers::serve(request);
        answer_value(self.with_found(request, number, |client, file| client.xattrs_of(file)), size, reply);
    }

    fn removexattr(&self, request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        callers::serve(request);
        let removed = self.with_found(request, number, |client, file| client.remove_xattr_of(file, name.as_bytes()));
        self.access_list_changed(number, name);
        finish(removed, reply);
    }

    fn getlk(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        process: u32,
        reply: ReplyLock,
    ) {
        callers::serve(request);
        let found = self.handle(handle).and_then(|handle| {
            let kind = lock_kind(kind).ok_or(Errno::EINVAL)?;
            let ask = || handle.file.test_lock(owner.0, LockRange { kind, start, end, process });
            let is_free =
                |found: &std::io::Result<LockRange>| found.as_ref().is_ok_and(|found| found.kind == LockKind::Unlocked);
            Ok(self.after_closing(Awaited::Locks(handle.number), ask, is_free)?)
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
        request: &Request,
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
        callers::serve(request);
        let asked = self.handle(handle).and_then(|handle| Ok((handle, lock_kind(kind).ok_or(Errno::EINVAL)?)));
        let (handle, kind) = match asked {
            Ok(asked) => asked,
            Err(error) => return reply.error(error),
        };
        let (range, owner, thread) = (LockRange { kind, start, end, process }, owner.0, request.pid());
        let is_refused = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
        let asked = if waits {
            handle.file.lock_for_waiter(owner, range, LockWait::OfOpenFile)
        } else {
            let ask = || handle.file.lock(owner, range);
            let is_free = |asked: &std::io::Result<()>| !asked.as_ref().is_err_and(is_refused);
            self.after_closing(Awaited::Locks(handle.number), ask, is_free)
        };
        match asked {
            Err(error) if waits && is_refused(&error) => {
                self.releases.wait_for(Asked { handle, owner, range, thread }, reply);
            }
            Err(error) => reply.error(error.into()),
            Ok(()) => {
                self.releases.note();
                reply.ok();
            }
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        callers::serve(request);
        let allocated = self.handle_to_change(request, handle).and_then(|handle| {
            let mode = u32::try_from(mode).map_err(|_| Errno::EINVAL)?;
            Ok(handle.file.fallocate(mode, offset, length)?)
        });
        finish(allocated, reply);
    }

    fn lseek(&self, request: &Request, _: INodeNo, handle: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        callers::serve(request);
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
        request: &Request,
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
        callers::serve(request);
        match self.copy(request, (from, offset), (to, to_offset), length) {
            Ok(copied) => reply.written(copied),
            Err(error) => reply.error(error),
        }
    }
}
