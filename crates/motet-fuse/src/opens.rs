//! Opens of files, and how the kernel caches what it reads of them.

use crate::convert::open_flags;
use crate::handles::Handle;
use crate::mounted::{GENERATION, MountedExport, Name, Result, look_up_again};
use crate::nodes::ContentVersion;
use fuser::{Errno, FileHandle, FopenFlags, INodeNo, ReplyCreate, ReplyOpen, Request};
use motet_files::client::File;
use motet_files::protocol::{Attributes, OpenFlags};
use rustix::fs::OFlags;
use std::sync::Arc;

impl MountedExport {
    /// Opens a file that has a path. Returns the open file, how the kernel may use what it has cached, and the number of the file: another one if it was replaced
    /// while the kernel was about to open it.
    fn open_file(&self, request: &Request, number: INodeNo, flags: i32) -> Result<(File, FopenFlags, u64)> {
        let wanted = open_flags(flags);
        let (path, has_name) = match self.path(number) {
            Ok(path) => (path, true),
            Err(_) => (self.path_or_last(number)?, false),
        };
        let opened = self.open_to_cache(request, &path, wanted, 0);
        let (file, found, read) = if has_name { opened? } else { opened.map_err(look_up_again)? };
        let opened = self.nodes_mut().number(&found);
        if opened != number.0 {
            // What was truncated would be, and its replacement, too.
            if !wanted.contains(OpenFlags::TRUNCATE) {
                self.use_replacement(number, &found)?;
            }
            // What the kernel caches is of the file that it knows.
            return Ok((file, FopenFlags::FOPEN_DIRECT_IO, opened));
        }
        let same = self.nodes_mut().cache(number.0, ContentVersion::of(&found));
        Ok((file, if read { cache_flags(flags, same) } else { FopenFlags::FOPEN_DIRECT_IO }, opened))
    }

    /// Opens a file. The last result: whether the kernel can cache it. A kernel that keeps written data reads the rest of their pages, so a file that is only
    /// written is opened to be read, too; one that its user may not read is not cached.
    fn open_to_cache(
        &self,
        request: &Request,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
    ) -> std::io::Result<(File, Attributes, bool)> {
        let client = self.client_of(request);
        if self.writeback && flags.contains(OpenFlags::WRITE) && !flags.contains(OpenFlags::READ) {
            match client.open_file(path, flags | OpenFlags::READ, mode) {
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    return client.open_file(path, flags, mode).map(|(file, found)| (file, found, false));
                }
                opened => return opened.map(|(file, found)| (file, found, true)),
            }
        }
        client.open_file(path, flags, mode).map(|(file, found)| (file, found, true))
    }

    fn create_file(
        &self,
        request: &Request,
        name: Name<'_>,
        mode: u32,
        flags: i32,
    ) -> Result<(File, Attributes, FopenFlags)> {
        let wanted = open_flags(flags) | OpenFlags::CREATE;
        let (file, found, read) = self.open_to_cache(request, &self.path_in(name)?, wanted, mode)?;
        Ok((file, found, if read { cache_flags(flags, false) } else { FopenFlags::FOPEN_DIRECT_IO }))
    }

    /// Opens a file and answers.
    pub fn answer_open(&self, request: &Request, number: INodeNo, flags: i32, reply: ReplyOpen) {
        let (file, cache, opened) = match self.open_file(request, number, flags) {
            Ok(opened) => opened,
            Err(error) => return reply.error(error),
        };
        // All opens of a file share what the kernel reads and writes, so it must be that file.
        let backing = (opened == number.0)
            .then(|| self.passthrough.backing(opened, &file, |descriptor| reply.open_backing(descriptor)))
            .flatten();
        let handle = FileHandle(self.handles.add(opened, file, backing.clone()));
        match backing {
            Some(backing) => reply.opened_passthrough(handle, FopenFlags::empty(), &backing),
            None => reply.opened(handle, cache),
        }
    }

    /// Opens a file that is made if it does not exist, and answers.
    pub fn answer_create(&self, request: &Request, name: Name<'_>, mode: u32, flags: i32, reply: ReplyCreate) {
        let (file, found, cache) = match self.create_file(request, name, mode, flags) {
            Ok(created) => created,
            Err(error) => return reply.error(error),
        };
        let entry = self.enter(name, &found);
        let number = entry.ino.0;
        self.nodes_mut().cache(number, ContentVersion::of(&found));
        let backing = self.passthrough.backing(number, &file, |descriptor| reply.open_backing(descriptor));
        let handle = FileHandle(self.handles.add(number, file, backing.clone()));
        let validity = &self.validity;
        match backing {
            Some(backing) => {
                reply.created_passthrough(validity, &entry, GENERATION, handle, FopenFlags::empty(), &backing);
            }
            None => reply.created(validity, &entry, GENERATION, handle, cache),
        }
    }

    /// Opens a directory and answers.
    pub fn answer_opendir(&self, request: &Request, number: INodeNo, reply: ReplyOpen) {
        let flags = OpenFlags::READ | OpenFlags::DIRECTORY;
        match self.path(number).and_then(|path| Ok(self.client_of(request).open_file(&path, flags, 0)?)) {
            Ok((file, _)) => reply.opened(FileHandle(self.handles.add(number.0, file, None)), FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }

    /// Copies between two open files on the server; returns how many bytes.
    pub fn copy(&self, from: (FileHandle, u64), to: (FileHandle, u64), length: u64) -> Result<u32> {
        let (source, target): (Arc<Handle>, Arc<Handle>) = (self.handle(from.0)?, self.handle(to.0)?);
        let copied = source.file.copy_to(from.1, &target.file, to.1, length.min(u64::from(u32::MAX)))?;
        u32::try_from(copied).map_err(|_| Errno::EIO)
    }
}

/// How the kernel caches an open file. `same`: what it has cached is the present content.
fn cache_flags(flags: i32, same: bool) -> FopenFlags {
    // Through its cache the kernel writes the end of a page and what follows apart, so records that two clients append could mix.
    if OFlags::from_bits_retain(flags.cast_unsigned()).intersects(OFlags::DIRECT | OFlags::APPEND) {
        FopenFlags::FOPEN_DIRECT_IO
    } else if same {
        FopenFlags::FOPEN_KEEP_CACHE
    } else {
        FopenFlags::empty()
    }
}
