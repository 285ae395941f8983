//! A mounted export: the files that the kernel knows and has open, and the client that asks the server about them.

use crate::again::Again;
use crate::convert::attributes;
use crate::freshness::{Answering, Asked, Freshness};
use crate::handles::{Handle, Handles};
use crate::locks::Releases;
use crate::nodes::{ContentVersion, Moved, Nodes};
use crate::passthrough::Passthrough;
use fuser::{Errno, FileHandle, INodeNo, Notifier, RenameFlags, ReplyAttr, ReplyEntry, Request};
use motet_files::client::Client;
use motet_files::identity::Identity;
use motet_files::protocol::{self, Attributes};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// Numbers of files are not used for two files at a time, so there is one generation.
pub const GENERATION: fuser::Generation = fuser::Generation(0);
/// The result of a request of the kernel.
pub type Result<T> = std::result::Result<T, Errno>;

/// The attribute of a directory with the access list that files get which are made in it.
const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";

/// A mounted export.
#[derive(Debug)]
pub struct MountedExport {
    /// Asks for itself. Requests of programs are asked for by [`MountedExport::client_of`].
    pub client: Client,
    nodes: Arc<RwLock<Nodes>>,
    freshness: Arc<Freshness>,
    /// What programs have open.
    pub handles: Handles,
    /// How long the kernel may use names and attributes without asking.
    validity: Duration,
    /// Files that the kernel reads and writes itself.
    pub passthrough: Passthrough,
    /// Calls that the kernel makes again.
    pub again: Again,
    /// Who tells the kernel that what it has cached is not true any more.
    kernel: Arc<OnceLock<Notifier>>,
    /// Locks that programs have released.
    pub releases: Arc<Releases>,
    /// Whether the kernel keeps written data for a while.
    pub writeback: bool,
    /// Whether this process is root's, which speaks for other users.
    is_root: bool,
}

/// A name in a directory that the kernel knows.
pub type Name<'a> = (INodeNo, &'a OsStr);

impl MountedExport {
    /// The export of this client.
    pub fn new(client: Client, validity: Duration, writeback: bool) -> std::io::Result<Self> {
        Ok(Self {
            nodes: Arc::new(RwLock::new(Nodes::new(&client.attributes(b"")?))),
            writeback: writeback && !client.is_direct(),
            client,
            freshness: Arc::default(),
            handles: Handles::default(),
            validity,
            passthrough: Passthrough::default(),
            again: Again::default(),
            kernel: Arc::default(),
            releases: Arc::default(),
            is_root: rustix::process::geteuid().is_root(),
        })
    }

    /// A client that asks for the user whose program has made a request. Of another user than root the server knows that its client is of the same user.
    pub fn client_of(&self, request: &Request) -> Client {
        if !self.is_root {
            return self.client.clone();
        }
        self.client.for_user(Identity::of_thread(request.uid(), request.gid(), request.pid()))
    }

    /// What [`crate::notices`] needs besides the client.
    pub fn shared_nodes(&self) -> Arc<RwLock<Nodes>> {
        Arc::clone(&self.nodes)
    }

    /// Notices that come meanwhile make an answer one that is not kept.
    pub fn freshness(&self) -> Arc<Freshness> {
        Arc::clone(&self.freshness)
    }

    /// To be called before the server is asked for what the kernel may keep.
    pub fn asked(&self) -> Asked {
        self.freshness.asked()
    }

    /// To be held from before the file is entered until the kernel has its answer; says how long the kernel may keep it.
    pub fn answering(&self, asked: Asked) -> (Answering<'_>, Duration) {
        let answering = self.freshness.answering(asked);
        let validity = if answering.is_fresh() { self.validity } else { Duration::ZERO };
        (answering, validity)
    }

    /// Where the notifier of the session is put, once there is one.
    pub fn kernel(&self) -> Arc<OnceLock<Notifier>> {
        Arc::clone(&self.kernel)
    }

    /// The permissions of a new file: those of `mode` without `umask`, unless the directory has a default access list (acl(5)).
    pub fn masked(&self, request: &Request, directory: INodeNo, mode: u32, umask: u32) -> u32 {
        if mode & umask == 0 {
            return mode;
        }
        let known = self.nodes().has_default_list(directory.0, self.validity);
        let has_list = known.unwrap_or_else(|| {
            let has_list =
                self.with_found(request, directory, |client, file| client.xattr_of(file, DEFAULT_LIST)).is_ok();
            self.nodes_mut().note_default_list(directory.0, Some(has_list));
            has_list
        });
        if has_list { mode } else { mode & !umask }
    }

    /// An extended attribute was set or removed. An access list contains the permissions of the mode (acl(5)), which the kernel has cached.
    pub fn access_list_changed(&self, number: INodeNo, name: &OsStr) {
        if name.as_bytes() == DEFAULT_LIST {
            self.nodes_mut().note_default_list(number.0, None);
        }
        if name.as_bytes().starts_with(b"system.") {
            self.forget_attributes(number);
        }
    }

    /// The kernel must not use the attributes that it has of a file.
    pub fn forget_attributes(&self, number: INodeNo) {
        if let Some(kernel) = self.kernel.get() {
            // What the kernel does not know any more need not be forgotten. It takes no lock for attributes, so a request may wait for it.
            let _ = kernel.inval_inode(number, -1, 0);
        }
    }

    /// The files that the kernel knows.
    pub fn nodes(&self) -> RwLockReadGuard<'_, Nodes> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The files that the kernel knows, to be changed.
    pub fn nodes_mut(&self) -> RwLockWriteGuard<'_, Nodes> {
        self.nodes.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path of a file. ESTALE: it has none any more.
    pub fn path(&self, number: INodeNo) -> Result<Vec<u8>> {
        self.nodes().path(number.0).ok_or(Errno::ESTALE)
    }

    /// The path of a name.
    pub fn path_in(&self, (directory, name): Name<'_>) -> Result<Vec<u8>> {
        self.nodes().path_in(directory.0, name).ok_or(Errno::ESTALE)
    }

    /// An open file.
    pub fn handle(&self, handle: FileHandle) -> Result<Arc<Handle>> {
        self.handles.get(handle.0).ok_or(Errno::EBADF)
    }

    /// A file that was found or made under a name.
    pub fn enter(&self, (directory, name): Name<'_>, found: &Attributes) -> fuser::FileAttr {
        attributes(self.nodes_mut().found(directory.0, name, found), found)
    }

    /// Makes or finds what `name` names by `make`, and answers with it.
    pub fn answer_entry(
        &self,
        name: Name<'_>,
        make: impl FnOnce(&[u8]) -> std::io::Result<Attributes>,
        reply: ReplyEntry,
    ) {
        let asked = self.asked();
        let made = self.path_in(name).and_then(|path| Ok(make(&path)?));
        self.reply_entry(asked, name, made, reply);
    }

    /// Answers with a file that was found or made under a name.
    pub fn reply_entry(&self, asked: Asked, name: Name<'_>, found: Result<Attributes>, reply: ReplyEntry) {
        match found {
            Ok(found) => {
                let (_answering, validity) = self.answering(asked);
                reply.entry(&validity, &self.enter(name, &found), GENERATION);
            }
            Err(error) => reply.error(error),
        }
    }

    /// Answers with the attributes of a file.
    pub fn reply_attributes(&self, asked: Asked, number: INodeNo, found: Result<Attributes>, reply: ReplyAttr) {
        match found {
            Ok(found) => {
                let (_answering, validity) = self.answering(asked);
                self.nodes_mut().tell(number.0, ContentVersion::of(&found));
                reply.attr(&validity, &attributes(number.0, &found));
            }
            Err(error) => reply.error(error),
        }
    }

    /// Removes a name.
    pub fn remove(&self, request: &Request, name: Name<'_>, directory: bool) -> Result<()> {
        self.client_of(request).unlink(&self.path_in(name)?, directory)?;
        self.nodes_mut().removed(name.0.0, name.1);
        Ok(())
    }

    /// Gives a file another name.
    pub fn rename_file(&self, request: &Request, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<()> {
        let (old, new) = (self.path_in(from)?, self.path_in(to)?);
        let known = RenameFlags::RENAME_NOREPLACE | RenameFlags::RENAME_EXCHANGE;
        if !known.contains(flags) {
            return Err(Errno::EINVAL);
        }
        let mut asked = protocol::RenameFlags::empty();
        asked.set(protocol::RenameFlags::NO_REPLACE, flags.contains(RenameFlags::RENAME_NOREPLACE));
        let exchange = flags.contains(RenameFlags::RENAME_EXCHANGE);
        asked.set(protocol::RenameFlags::EXCHANGE, exchange);
        self.client_of(request).rename(&old, &new, asked)?;
        let mut nodes = self.nodes_mut();
        let moved = nodes.renamed((from.0.0, from.1), (to.0.0, to.1), exchange);
        // Files below a renamed directory have other paths, too.
        let open = match moved {
            Moved::Files(moved) => moved.into_iter().flatten().flat_map(|number| self.handles.all_of(number)).collect(),
            Moved::Directory => self.handles.all(),
        };
        for handle in open {
            if let Some(path) = nodes.path(handle.number) {
                handle.file.renamed(&path);
            }
        }
        Ok(())
    }
}
