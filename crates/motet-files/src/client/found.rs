//! Files that a caller has found before: operations on that very file, whatever has its name by now.

use super::export_file::ExportFile;
use super::file::File;
use super::open_files::{OpenState, again};
use super::stripes::Stripes;
use super::{Client, attributes, done, unexpected};
use crate::Result;
use crate::protocol::{
    Attributes, Change, Layout, MAX_LAYOUT_BYTES, MAX_XATTR_BYTES, OpenFlags, Operation, Reply, Target,
};
use rustix::io::Errno;
use std::cell::Cell;
use std::sync::Arc;

/// A file that was found before. Operations on it fail with ESTALE if it is not there any more.
#[derive(Debug, Clone, Copy)]
pub enum Found<'a> {
    /// At a path. If another file is there by now, operations fail with ESTALE; if there is none, with ENOENT or ENOTDIR.
    At {
        /// The path.
        path: &'a [u8],
        /// The device of the file on the server.
        device: u64,
        /// Its number there.
        inode: u64,
    },
    /// By this client, which has it open or located.
    Open(&'a File),
}

impl<'a> Found<'a> {
    /// The target of a request. ESTALE: the open file is lost.
    fn target(&self) -> Result<Target<'a>> {
        Ok(match *self {
            Self::At { path, device, inode } => Target::Known { path, device, inode },
            Self::Open(file) => Target::File(file.state().number()?),
        })
    }
}

impl Client {
    /// Its attributes.
    pub fn attributes_of(&self, file: Found<'_>) -> Result<Attributes> {
        attributes(self.ask(|| Ok(Operation::GetAttributes(file.target()?)), &[], &mut [])?.0)
    }

    /// Changes its attributes as the user of this client, and returns the new ones.
    pub fn set_attributes_of(&self, file: Found<'_>, change: &Change) -> Result<Attributes> {
        match (file, change.size) {
            (Found::Open(file), Some(_)) if file.is_striped() => return file.set_attributes(change),
            _ => {}
        }
        let changing = match file {
            Found::Open(file) if change.size.is_some() => Some(file.state().changing()),
            _ => None,
        };
        let changed = self.ask(|| Ok(Operation::SetAttributes(file.target()?, *change)), &[], &mut []);
        drop(changing);
        match changed {
            // A striped file is changed in all its exports.
            Err(error) if change.size.is_some() && error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => {
                self.open_found(file, OpenFlags::WRITE)?.0.set_attributes(change)
            }
            changed => attributes(changed?.0),
        }
    }

    /// The value of an extended attribute of it.
    pub fn xattr_of(&self, file: Found<'_>, name: &[u8]) -> Result<Vec<u8>> {
        self.ask_for_bytes(|| Ok(Operation::GetXattr { target: file.target()?, name }))
    }

    /// The names of its extended attributes, each with a zero byte at its end.
    pub fn xattrs_of(&self, file: Found<'_>) -> Result<Vec<u8>> {
        self.ask_for_bytes(|| Ok(Operation::ListXattr(file.target()?)))
    }

    /// Sets an extended attribute of it. `create`: only if it does not exist; `replace`: only if it does.
    pub fn set_xattr_of(
        &self,
        file: Found<'_>,
        name: &[u8],
        value: &[u8],
        (create, replace): (bool, bool),
    ) -> Result<()> {
        let operation = || Ok(Operation::SetXattr { target: file.target()?, name, create, replace });
        done(self.ask(operation, value, &mut [])?.0)
    }

    /// Removes an extended attribute of it.
    pub fn remove_xattr_of(&self, file: Found<'_>, name: &[u8]) -> Result<()> {
        done(self.ask(|| Ok(Operation::RemoveXattr { target: file.target()?, name }), &[], &mut [])?.0)
    }

    /// The target of a symbolic link.
    pub fn read_link_of(&self, file: Found<'_>) -> Result<Vec<u8>> {
        self.ask_for_bytes(|| Ok(Operation::Readlink { target: file.target()? }))
    }

    /// Makes the further name `to` of it.
    pub fn hard_link_of(&self, file: Found<'_>, to: &[u8]) -> Result<Attributes> {
        attributes(self.ask(|| Ok(Operation::Link { from: file.target()?, to }), &[], &mut [])?.0)
    }

    /// Opens it. It exists, so no flag makes it.
    pub fn open_found(&self, file: Found<'_>, flags: OpenFlags) -> Result<(File, Attributes)> {
        let flags = flags - OpenFlags::CREATE - OpenFlags::EXCLUSIVE - OpenFlags::TMPFILE;
        let mut bytes = [0; MAX_LAYOUT_BYTES];
        let (state, attributes, length) = self.open_found_state(file, flags, &mut bytes)?;
        let opened = ExportFile::new(Arc::clone(&self.shared), state);
        let layout = match length {
            0 => None,
            _ => Some(Layout::parse(&bytes[..length]).ok_or_else(unexpected)?),
        };
        let opened = File::new(opened, layout.map(|layout| Stripes::new(layout, flags)));
        let attributes = opened.prepare_stripes(flags, attributes)?;
        Ok((opened, attributes))
    }

    /// Opens it at the server, and again if the server was restarted before its number was noted. Returns also the length of the layout in `layout`.
    fn open_found_state(
        &self,
        file: Found<'_>,
        flags: OpenFlags,
        layout: &mut [u8],
    ) -> Result<(Arc<OpenState>, Attributes, usize)> {
        let files = &self.shared.files;
        let path = match file {
            Found::At { path, .. } => path.to_vec(),
            Found::Open(file) => file.state().path(),
        };
        let (generation, mut asked) = (Cell::new(0), flags);
        loop {
            let operation = || {
                generation.set(files.generation());
                Ok(Operation::OpenKnown { target: file.target()?, flags: asked })
            };
            let (reply, length) = self.shared.transport.call(self.identity.as_deref(), operation, &[], layout)?;
            let Reply::Opened { file, attributes, .. } = reply else { return Err(unexpected()) };
            let locks = files.locks(&attributes);
            let state = OpenState::new(file, &path, flags, self.identity.clone(), &attributes, locks);
            if files.add(&state, generation.get()) {
                return Ok((state, attributes, length));
            }
            asked = again(flags);
        }
    }

    fn ask<'a>(
        &self,
        operation: impl Fn() -> Result<Operation<'a>>,
        data: &[u8],
        into: &mut [u8],
    ) -> Result<(Reply, usize)> {
        self.shared.transport.call(self.identity.as_deref(), operation, data, into)
    }

    /// A request whose answer has a body of unknown length, at most 64 KiB.
    pub(super) fn ask_for_bytes<'a>(&self, operation: impl Fn() -> Result<Operation<'a>>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; MAX_XATTR_BYTES];
        let (_, length) = self.ask(operation, &[], &mut bytes)?;
        bytes.truncate(length);
        Ok(bytes)
    }
}
