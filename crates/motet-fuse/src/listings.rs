//! Listings of directories.

use crate::convert::{attributes, kind};
use crate::mounted::{GENERATION, MountedExport, Result};
use fuser::{FileHandle, FileType, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use motet_files::protocol::Attributes;

impl MountedExport {
    /// Lists names from `offset` on.
    pub fn list(&self, handle: FileHandle, offset: u64, reply: &mut ReplyDirectory) -> Result<()> {
        Ok(self.handle(handle)?.list(offset, false, |entry| {
            let kind = kind(entry.kind).unwrap_or(FileType::RegularFile);
            !reply.add(INodeNo(entry.inode), entry.cookie, kind, &entry.name)
        })?)
    }

    /// Lists names with attributes from `offset` on: the kernel has looked each of them up.
    pub fn list_with_attributes(
        &self,
        directory: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: &mut ReplyDirectoryPlus,
    ) -> Result<()> {
        Ok(self.handle(handle)?.list(offset, true, |entry| {
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
                self.nodes_mut().listed(directory.0, &entry.name, &found);
            }
            !full
        })?)
    }
}
