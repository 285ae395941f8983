//! Listings of directories.

use crate::convert::{attributes, kind};
use crate::handles::Unseen;
use crate::mounted::{GENERATION, MountedExport};
use fuser::{FileHandle, FileType, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use motet_files::protocol::Attributes;
use rustix::fs::FileType as FileTypeBits;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::time::Duration;

impl MountedExport {
    /// Answers with names from `offset` on.
    pub fn answer_listing(&self, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listed = self.handle(handle).and_then(|handle| {
            handle.listing(offset, false, || self.asked(), |_| Unseen::Unknown)?.take(|entry| {
                let kind = kind(entry.kind).unwrap_or(FileType::RegularFile);
                !reply.add(INodeNo(entry.inode), entry.cookie, kind, &entry.name)
            });
            Ok(())
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    /// Answers with names and attributes from `offset` on: the kernel has looked each of them up.
    pub fn answer_listing_with_attributes(
        &self,
        directory: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let handle = match self.handle(handle) {
            Ok(handle) => handle,
            Err(error) => return reply.error(error),
        };
        let unseen = |name: &OsStr| self.unseen(directory, name);
        let mut listing = match handle.listing(offset, true, || self.asked(), unseen) {
            Ok(listing) => listing,
            Err(error) => return reply.error(error.into()),
        };
        let (_answering, validity) = self.answering(listing.asked());
        listing.take(|entry| {
            // The kernel takes only the name of the directory itself and its parent. Of others whose attributes are not known it asks before it uses them.
            let mode = if entry.kind == 0 { FileTypeBits::RegularFile.as_raw_mode() } else { entry.kind };
            let nameless = Attributes { inode: entry.inode, mode, links: 1, ..Attributes::default() };
            let found = entry.attributes.unwrap_or(nameless);
            let validity = if entry.is_unseen { Duration::ZERO } else { validity };
            let file = if entry.is_itself { entry.inode } else { self.nodes_mut().number(&found) };
            let shown = attributes(file, &found);
            let full = reply.add(INodeNo(file), entry.cookie, &entry.name, &validity, &shown, GENERATION);
            if !full && !entry.is_itself {
                self.nodes_mut().listed(directory.0, &entry.name, &found);
            }
            !full
        });
        reply.ok();
    }

    /// What this mount's own user sees of an entry that was listed without attributes.
    fn unseen(&self, directory: INodeNo, name: &OsStr) -> Unseen {
        let Ok(path) = self.path_in((directory, name)) else { return Unseen::Unknown };
        match self.client.attributes(&path) {
            Ok(attributes) => Unseen::Known(attributes),
            Err(error) if error.kind() == ErrorKind::NotFound => Unseen::Gone,
            Err(_) => Unseen::Unknown,
        }
    }
}
