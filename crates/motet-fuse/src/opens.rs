//! Opens of files, and how the kernel caches what it reads of them.

use crate::convert::{open_flags, raising_bits};
use crate::mounted::{GENERATION, MountedExport, Name, Result};
use crate::nodes::ContentVersion;
use fuser::{Errno, FileHandle, FopenFlags, INodeNo, ReplyCreate, ReplyOpen, Request};
use motet_files::client::File;
use motet_files::protocol::{Attributes, OpenFlags};
use rustix::fs::OFlags;

impl MountedExport {
    /// Opens a file. Returns its mode and how the kernel may use what it has cached, too.
    fn open_file(&self, request: &Request, number: INodeNo, flags: i32) -> Result<(File, u32, FopenFlags)> {
        let open = |flags| self.open_found(request, number, flags);
        let (file, found, read) = self.open_to_cache(open_flags(flags), open)?;
        let version = ContentVersion::of(&found);
        let mut nodes = self.nodes_mut();
        let (same, told) = (nodes.cache(number.0, version), nodes.tell(number.0, version));
        drop(nodes);
        if !told {
            // The kernel reads no further than the length that it knows, which may be the one before.
            self.forget_attributes(number);
        }
        Ok((file, found.mode, if read { cache_flags(flags, same) } else { FopenFlags::FOPEN_DIRECT_IO }))
    }

    /// Opens a file by `open`. The last result: whether the kernel can cache it. A kernel that keeps written data reads the rest of their pages, so a file that is
    /// only written is opened to be read, too; one that its user may not read is not cached.
    fn open_to_cache(
        &self,
        flags: OpenFlags,
        mut open: impl FnMut(OpenFlags) -> Result<(File, Attributes)>,
    ) -> Result<(File, Attributes, bool)> {
        let reads_too = self.writeback && flags.contains(OpenFlags::WRITE) && !flags.contains(OpenFlags::READ);
        let opened = if reads_too { open(flags | OpenFlags::READ) } else { open(flags) };
        match opened {
            Err(error) if reads_too && error.code() == Errno::EACCES.code() => {
                open(flags).map(|(file, found)| (file, found, false))
            }
            opened => opened.map(|(file, found)| (file, found, true)),
        }
    }

    fn create_file(
        &self,
        request: &Request,
        name: Name<'_>,
        mode: u32,
        flags: i32,
    ) -> Result<(File, Attributes, FopenFlags)> {
        let wanted = open_flags(flags) | OpenFlags::CREATE;
        let (path, client) = (self.path_in(name)?, self.client_of(request));
        let (file, found, read) = self.open_to_cache(wanted, |flags| Ok(client.open_file(&path, flags, mode)?))?;
        Ok((file, found, if read { cache_flags(flags, false) } else { FopenFlags::FOPEN_DIRECT_IO }))
    }

    /// Opens a file and answers.
    pub fn answer_open(&self, request: &Request, number: INodeNo, flags: i32, reply: ReplyOpen) {
        let (file, mode, cache) = match self.open_file(request, number, flags) {
            Ok(opened) => opened,
            Err(error) => return reply.error(error),
        };
        let backing = self.passthrough.backing((number.0, mode), &file, |descriptor| reply.open_backing(descriptor));
        let handle = FileHandle(self.handles.add(number.0, file, request.uid(), backing.clone()));
        match backing {
            Some(backing) => reply.opened_passthrough(handle, backed_flags(mode), &backing),
            None => reply.opened(handle, cache),
        }
    }

    /// Opens a file that is made if it does not exist, and answers.
    pub fn answer_create(&self, request: &Request, name: Name<'_>, mode: u32, flags: i32, reply: ReplyCreate) {
        let asked = self.asked();
        let (file, found, cache) = match self.create_file(request, name, mode, flags) {
            Ok(created) => created,
            Err(error) => return reply.error(error),
        };
        let (_answering, validity) = self.answering(asked);
        let entry = self.enter(name, &found);
        let number = entry.ino.0;
        self.nodes_mut().cache(number, ContentVersion::of(&found));
        let backing =
            self.passthrough.backing((number, found.mode), &file, |descriptor| reply.open_backing(descriptor));
        let handle = FileHandle(self.handles.add(number, file, request.uid(), backing.clone()));
        match backing {
            Some(backing) => {
                reply.created_passthrough(&validity, &entry, GENERATION, handle, backed_flags(found.mode), &backing);
            }
            None => reply.created(&validity, &entry, GENERATION, handle, cache),
        }
    }

    /// Opens a directory and answers.
    pub fn answer_opendir(&self, request: &Request, number: INodeNo, reply: ReplyOpen) {
        let flags = OpenFlags::READ | OpenFlags::DIRECTORY;
        match self.open_found(request, number, flags) {
            Ok((file, _)) => {
                let handle = self.handles.add(number.0, file, request.uid(), None);
                reply.opened(FileHandle(handle), FopenFlags::empty());
            }
            Err(error) => reply.error(error),
        }
    }

    /// Copies between two open files on the server; returns how many bytes.
    pub fn copy(&self, request: &Request, from: (FileHandle, u64), to: (FileHandle, u64), length: u64) -> Result<u32> {
        let (source, target) = (self.handle(from.0)?, self.handle_to_change(request, to.0)?);
        let copied = source.file.copy_to(from.1, &target.file, to.1, length.min(u64::from(u32::MAX)))?;
        u32::try_from(copied).map_err(|_| Errno::EIO)
    }
}

/// How the kernel uses an open file with a backing file. A program that raises has one if it was opened before it had the bits, as all opens of a
/// file must have the same; the kernel asks for its reads and writes all the same. The earlier open may only be about to be released.
fn backed_flags(mode: u32) -> FopenFlags {
    if raising_bits(mode) != 0 { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::empty() }
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
