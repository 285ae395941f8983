//! The client of an export. Every front end uses it: the mounted file system, the block server, the preload object.
//!
//! A client may be used by many threads; each request takes a slot of the session. A lost connection is made again: within 500 ms the session goes on, later,
//! or at a restarted server, the open files are opened again by their paths, and their locks are taken again. A file that is not the same any more gives ESTALE.
//! The server knows for minutes what the last requests have done. Where it does not, a request that may not be executed twice gives EIO.

mod completion_queue;
mod connection;
mod direct;
mod export_file;
mod failure;
mod file;
mod found;
mod locate;
mod lock_notes;
mod notices;
mod open_files;
mod slots;
mod stripes;
mod totals;
mod transport;
mod waits;

pub use completion_queue::{Completed, CompletionQueue, MAX_QUEUED, Submission};
pub use export_file::Transfer;
pub use file::File;
pub use found::Found;
pub use locate::Source;
pub use motet::node::{OperationMemory, UserMemory};
pub use notices::{Notice, Subscription};
pub use totals::Totals;
pub use waits::{HasEnded, UNATTENDED, call_for};

use crate::Result;
use crate::exports::{self, Query};
use crate::identity::{Identities, Identity};
use crate::protocol::{
    Attributes, Change, Layout, MAX_LAYOUT_BYTES, OpenFlags, Operation, RenameFlags, Reply, Space, Target,
};
use connection::Connection;
use direct::Direct;
use export_file::ExportFile;
use open_files::{OpenFiles, OpenState, again};
use rustix::io::Errno;
use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use stripes::{PartClients, Stripes};
use transport::Transport;
use waits::Waits;

/// A client of one export.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
    /// For whom it asks. `None`: for itself.
    identity: Option<Arc<Identity>>,
}

/// What a client shares with its open files.
#[derive(Debug)]
struct Shared {
    transport: Transport,
    files: Arc<OpenFiles>,
    /// Clients of exports that have parts of striped files. `None`: this is one of them.
    parts: Option<PartClients>,
    waits: Arc<Waits>,
}

impl Client {
    /// Connects to the server of an export. `limit`: how long a call waits for a server that is away, then it fails with EIO; `None`: until the server is back.
    pub fn connect(source: Source, limit: Option<Duration>) -> Result<Self> {
        let files = Arc::new(OpenFiles::default());
        let connection = Connection::open(source, limit, Arc::clone(&files))?;
        let transport = Transport::Messages(Arc::new(connection));
        Ok(Self::with(transport, files, Some(PartClients::new(limit))))
    }

    /// The export `name` ([`Source::Name`]): the directory itself if it is on this host and its server allows that, otherwise as [`Client::connect`] does.
    pub fn named(name: &str, limit: Option<Duration>) -> Result<Self> {
        let connect = || Self::connect(Source::Name(name.to_owned()), limit);
        if name.contains([':', '@']) {
            return connect();
        }
        let ask = || exports::ask(name, &Query { root: true, listen: None });
        if let Ok(found) = ask() {
            return Self::direct(found, limit)?.map_or_else(connect, Ok);
        }
        let connected = connect()?;
        // The server has begun to serve since it was asked.
        let direct = ask().map_or(Ok(None), |found| Self::direct(found, limit))?;
        Ok(direct.unwrap_or(connected))
    }

    /// A client that uses the directory of an export itself. `None`: the server does not hand it out, or as this user the client cannot take the identities of users,
    /// which leaves that to the server.
    fn direct(found: exports::Found, limit: Option<Duration>) -> Result<Option<Self>> {
        let exports::Found { info, root: Some(root) } = found else { return Ok(None) };
        let identities = if info.identities { Identities::find() } else { None };
        if identities.is_some() != info.identities {
            return Ok(None);
        }
        let transport = Transport::Direct(Box::new(Direct::new(root, info.read_only, identities)?));
        Ok(Some(Self::with(transport, Arc::default(), Some(PartClients::new(limit)))))
    }

    /// A directory of this host that no server exports.
    pub fn of_directory(root: OwnedFd, read_only: bool) -> Result<Self> {
        let transport = Transport::Direct(Box::new(Direct::new(root, read_only, Identities::find())?));
        Ok(Self::with(transport, Arc::default(), None))
    }

    fn with(transport: Transport, files: Arc<OpenFiles>, parts: Option<PartClients>) -> Self {
        Self { shared: Arc::new(Shared { transport, files, parts, waits: Arc::default() }), identity: None }
    }

    /// A client with the same session that asks for a user. A server of another user than root, or one that squashes, executes its requests as its own user all the same.
    pub fn for_user(&self, identity: Identity) -> Self {
        Self { shared: Arc::clone(&self.shared), identity: Some(Arc::new(identity)) }
    }

    /// Whether requests are executed as the users that they name, or all as the server's user.
    pub fn has_identities(&self) -> bool {
        match &self.shared.transport {
            Transport::Messages(connection) => connection.has_identities(),
            Transport::Direct(direct) => direct.has_identities(),
        }
    }

    /// Whether the client uses the directory itself, without the server.
    pub fn is_direct(&self) -> bool {
        matches!(self.shared.transport, Transport::Direct(_))
    }

    /// What it uses, and has asked for. What the kernel reads and writes in files of a direct client by itself is not counted.
    pub fn totals(&self) -> Totals {
        match &self.shared.transport {
            Transport::Messages(connection) => connection.totals(),
            Transport::Direct(direct) => direct.totals(),
        }
    }

    /// What became of its opens with O_DIRECT, in words: how many use a page cache all the same, and why. Empty if none does.
    pub fn direct_opens(&self) -> String {
        match &self.shared.transport {
            Transport::Messages(connection) => connection.direct_opens(),
            Transport::Direct(direct) => direct.direct_opens(),
        }
    }

    /// Ends the session, and all calls that wait for the server.
    pub fn close(&self) {
        if let Transport::Messages(connection) = &self.shared.transport {
            connection.close();
        }
        if let Some(parts) = &self.shared.parts {
            parts.close();
        }
    }

    /// From now on calls that wait for the server for long end with EINTR when `has_ended` says so of their callers ([`call_for`]). It is asked in a thread of
    /// the client, and says also whether calls of an unknown caller (0) are to end.
    pub fn end_waits_by(&self, has_ended: Box<HasEnded>) -> Result<()> {
        self.shared.waits.ask(has_ended);
        if let Some(parts) = &self.shared.parts {
            parts.share_waits(&self.shared.waits);
        }
        self.share_waits(&self.shared.waits)
    }

    /// Its calls wait as those of another client do.
    fn share_waits(&self, waits: &Arc<Waits>) -> Result<()> {
        match &self.shared.transport {
            Transport::Messages(connection) => connection.share_waits(waits),
            Transport::Direct(_) => Ok(()),
        }
    }

    /// From now on no call waits for a server that is away: it fails with EIO. For clients with [`Client::end_waits_by`].
    pub fn stop_waiting(&self) {
        self.shared.waits.stop();
    }

    /// Whether the export refuses changes.
    pub fn is_read_only(&self) -> bool {
        match &self.shared.transport {
            Transport::Messages(connection) => connection.is_read_only(),
            Transport::Direct(direct) => direct.is_read_only(),
        }
    }

    /// Attributes of the file at `path`. A symbolic link is not followed.
    pub fn attributes(&self, path: &[u8]) -> Result<Attributes> {
        attributes(self.request(&Operation::GetAttributes(Target::Path(path)))?)
    }

    /// Changes attributes of the file at `path`, and returns the new ones.
    pub fn set_attributes(&self, path: &[u8], change: &Change) -> Result<Attributes> {
        match self.request(&Operation::SetAttributes(Target::Path(path), *change)) {
            // A striped file is changed in all its exports.
            Err(error) if change.size.is_some() && error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => {
                self.open_file(path, OpenFlags::WRITE, 0)?.0.set_attributes(change)
            }
            changed => attributes(changed?),
        }
    }

    /// Opens a file or directory. `mode`: the permissions of a new file.
    pub fn open_file(&self, path: &[u8], flags: OpenFlags, mode: u32) -> Result<(File, Attributes)> {
        let (file, attributes, layout) = self.open_in_export(path, flags, mode)?;
        let file = File::new(file, layout.map(|layout| Stripes::new(layout, flags)));
        let attributes = file.prepare_stripes(flags, attributes)?;
        Ok((file, attributes))
    }

    /// Opens what this export has of a file or directory; returns its attributes, and the layout of a striped file.
    fn open_in_export(
        &self,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
    ) -> Result<(ExportFile, Attributes, Option<Layout>)> {
        let mut layout = [0; MAX_LAYOUT_BYTES];
        let (state, attributes, length) = self.open_state(path, flags, mode, &mut layout)?;
        let file = ExportFile::new(Arc::clone(&self.shared), state);
        let layout = match length {
            0 => None,
            _ => Some(Layout::parse(&layout[..length]).ok_or_else(unexpected)?),
        };
        Ok((file, attributes, layout))
    }

    /// Opens a file at the server, and again if the server was restarted before its number was noted. Returns also the length of the layout in `layout`.
    fn open_state(
        &self,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
        layout: &mut [u8],
    ) -> Result<(Arc<OpenState>, Attributes, usize)> {
        let Shared { transport, files, .. } = &*self.shared;
        let generation = Cell::new(0);
        let (mut asked, mut opened) = (flags, None);
        loop {
            // Called for each attempt, after the connection is there.
            let operation = || {
                generation.set(files.generation());
                Ok(Operation::Open { path, flags: asked, mode })
            };
            let (reply, length) = transport.call(self.identity.as_deref(), operation, &[], layout)?;
            let Reply::Opened { file, attributes, .. } = reply else { return Err(unexpected()) };
            let is_same =
                *opened.get_or_insert((attributes.device, attributes.inode)) == (attributes.device, attributes.inode);
            // Only a striped file has a layout. What is appended to it has a place.
            let kept = if length > 0 { flags.positioned() } else { flags };
            let state = OpenState::new(file, path, kept, self.identity.clone(), &attributes, files.locks(&attributes));
            if files.add(&state, generation.get()) {
                if is_same {
                    return Ok((state, attributes, length));
                }
                // Closes it.
                drop(ExportFile::new(Arc::clone(&self.shared), state));
                return Err(Errno::STALE.into());
            }
            if flags.contains(OpenFlags::TMPFILE) {
                return Err(Errno::STALE.into());
            }
            asked = again(flags);
        }
    }

    /// Makes a directory.
    pub fn mkdir(&self, path: &[u8], mode: u32) -> Result<Attributes> {
        attributes(self.request(&Operation::Mkdir { path, mode })?)
    }

    /// Makes a named pipe, a socket or an empty file, by the type in `mode`; for a user also the file of the device `device`, which only root may.
    pub fn mknod(&self, path: &[u8], mode: u32, device: u64) -> Result<Attributes> {
        attributes(self.request(&Operation::Mknod { path, mode, device })?)
    }

    /// Makes a symbolic link at `path`.
    pub fn symlink(&self, path: &[u8], target: &[u8]) -> Result<Attributes> {
        attributes(self.request(&Operation::Symlink { path, target })?)
    }

    /// Makes the further name `to` of the file at `from`.
    pub fn hard_link(&self, from: &[u8], to: &[u8]) -> Result<Attributes> {
        attributes(self.request(&Operation::Link { from: Target::Path(from), to })?)
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.ask_for_bytes(|| Ok(Operation::Readlink { target: Target::Path(path) }))
    }

    /// Removes a name, of a file or of an empty directory.
    pub fn unlink(&self, path: &[u8], directory: bool) -> Result<()> {
        self.removing(&Operation::Unlink { path, directory })
    }

    /// Renames.
    pub fn rename(&self, from: &[u8], to: &[u8], flags: RenameFlags) -> Result<()> {
        self.removing(&Operation::Rename { from, to, flags })
    }

    /// Space of the export's file system.
    pub fn statfs(&self) -> Result<Space> {
        match self.request(&Operation::Statfs)? {
            Reply::Space(space) => Ok(space),
            _ => Err(unexpected()),
        }
    }

    /// The value of an extended attribute.
    pub fn xattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>> {
        self.ask_for_bytes(|| Ok(Operation::GetXattr { target: Target::Path(path), name }))
    }

    /// The names of extended attributes, each with a zero byte at its end.
    pub fn xattrs(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.ask_for_bytes(|| Ok(Operation::ListXattr(Target::Path(path))))
    }

    /// Sets an extended attribute. `create`: only if it does not exist; `replace`: only if it does.
    pub fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8], create: bool, replace: bool) -> Result<()> {
        let operation = Operation::SetXattr { target: Target::Path(path), name, create, replace };
        done(self.shared.transport.call(self.identity.as_deref(), || Ok(operation.clone()), value, &mut [])?.0)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Result<()> {
        done(self.request(&Operation::RemoveXattr { target: Target::Path(path), name })?)
    }

    /// A request that may remove the last name of a striped file.
    fn removing(&self, operation: &Operation<'_>) -> Result<()> {
        let mut layout = [0; MAX_LAYOUT_BYTES];
        let (reply, length) =
            self.shared.transport.call(self.identity.as_deref(), || Ok(operation.clone()), &[], &mut layout)?;
        if let (Some(layout), Some(parts)) = (Layout::parse(&layout[..length]), &self.shared.parts) {
            parts.remove(&layout);
        }
        done(reply)
    }

    fn request(&self, operation: &Operation<'_>) -> Result<Reply> {
        Ok(self.shared.transport.call(self.identity.as_deref(), || Ok(operation.clone()), &[], &mut [])?.0)
    }
}

/// The error for an answer of another kind than the request's.
fn unexpected() -> std::io::Error {
    Errno::PROTO.into()
}

fn done(reply: Reply) -> Result<()> {
    if reply == Reply::Done { Ok(()) } else { Err(unexpected()) }
}

fn attributes(reply: Reply) -> Result<Attributes> {
    match reply {
        Reply::Attributes(attributes) => Ok(attributes),
        _ => Err(unexpected()),
    }
}

fn count(reply: Reply) -> Result<u64> {
    match reply {
        Reply::Count(count) => Ok(count),
        _ => Err(unexpected()),
    }
}
