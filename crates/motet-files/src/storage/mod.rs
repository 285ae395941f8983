//! Executes operations on the files of an exported directory: in the server, and in clients of the same host that may use the directory themselves.
//!
//! | module | what |
//! | --- | --- |
//! | this one | what each operation does |
//! | `tree` | paths beneath the exported directory |
//! | `opens` | opens of files, as users and with layouts |
//! | `file_table` | the open files of one client |
//! | `in_place` | long reads that are sent from the file |
//! | `open_file` | reads, writes, listings |
//! | `locks` | the locks of all clients, and requests that wait for some |
//! | `lock_calls` | locks of the system |
//! | `grants` | how often locks were granted, for those who have lost theirs |
//! | `past_cache` | reads and writes past the page cache |
//! | `waiting` | which operations may wait for a device, or for another file system |
//! | `stripes` | layouts of files that are striped over several exports |
//! | `descriptors` | attributes and names of open files |
//! | `attributes` | changes of attributes, extended attributes |
//! | `quota` | how many descriptors a client may use |
//! | `squashed` | what requests may not do that are executed as the user of this process for another one |

mod attributes;
mod descriptors;
mod direct_opens;
mod file_table;
mod grants;
mod in_place;
mod lock_calls;
mod locks;
mod open_file;
mod opens;
mod past_cache;
mod quota;
mod squashed;
mod stripes;
mod tree;
mod waiting;

pub use direct_opens::DirectOpens;
pub use file_table::{ClosedFiles, FileTable};
pub use in_place::range_of_read;
pub use stripes::Striping;
pub use tree::Tree;
pub use waiting::waits;

use crate::Result;
use crate::identity::{Assumed, Identity};
use crate::protocol::{Attributes, Layout, MAX_DATA_BYTES, OpenFlags, Operation, RenameFlags, Reply, Target, append};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, SeekFrom, copy_file_range, fallocate, fdatasync, fsync, linkat,
    mkdirat, mknodat, renameat_with, seek, symlinkat, unlinkat,
};
use rustix::io::Errno;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use attributes::Located;
use descriptors::{attributes_at, attributes_of, proc_path};
pub use open_file::OpenFile;
use opens::Place;
pub use past_cache::{Counted, PastCache};
pub use quota::Quota;
use squashed::{Modes, WithoutFsetid};

/// Reads up to this many bytes are tried without waiting first, and sent by the thread that receives.
const SHORT_READ_BYTES: usize = 64 << 10;

/// The body of an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Body {
    /// There is none.
    Empty,
    /// The first bytes of the thread's buffer.
    Buffered(usize),
    /// These bytes.
    Owned(Vec<u8>),
}

impl Body {
    /// Its bytes. `buffer`: the thread's.
    pub fn bytes<'a>(&'a self, buffer: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Empty => &[],
            Self::Buffered(length) => buffer.get(..*length).unwrap_or(&[]),
            Self::Owned(bytes) => bytes,
        }
    }

    /// Its bytes, with the thread's buffer if they are in it.
    pub fn into_bytes(self, buffer: &mut Vec<u8>) -> Vec<u8> {
        match self {
            Self::Empty => Vec::new(),
            Self::Buffered(length) => {
                let mut bytes = std::mem::take(buffer);
                bytes.truncate(length);
                bytes
            }
            Self::Owned(bytes) => bytes,
        }
    }
}

/// Executes an operation as `identity`, if the tree has identities. `files`: the open files of the client. `data`: what came with the request. `buffer`: for what is
/// read. `before_waiting` is called before the operation may wait for a device.
pub fn execute(
    tree: &Tree,
    files: &FileTable,
    identity: Option<&Identity>,
    operation: &Operation<'_>,
    data: &[u8],
    buffer: &mut [u8],
    before_waiting: &mut impl FnMut(),
) -> Result<(Reply, Body)> {
    if tree.is_read_only() && operation.is_change() {
        return Err(Errno::ROFS.into());
    }
    if waits(tree, files, operation) {
        before_waiting();
    }
    let modes = Modes::of(tree, identity);
    let _without = (modes.is_squashed() && operation.is_change()).then(WithoutFsetid::begin).transpose()?;
    let _assumed = assume(tree, files, identity, operation)?;
    let done = |result: Result<()>| result.map(|()| (Reply::Done, Body::Empty));
    let count = |count: usize| Ok((Reply::Count(count as u64), Body::Empty));
    match *operation {
        Operation::Attach { .. } | Operation::AttachMember { .. } | Operation::Subscribe { .. } | Operation::Detach => {
            Err(Errno::PROTO.into())
        }
        Operation::Read { file, offset, length } => {
            let buffer = buffer.get_mut(..length as usize).ok_or(Errno::INVAL)?;
            let read = read(tree, &*files.get(file)?, buffer, offset, before_waiting)?;
            Ok((Reply::Count(read as u64), Body::Buffered(read)))
        }
        Operation::Write { file, offset } => count(files.get(file)?.write(data, offset)?),
        Operation::Append { file } => count(files.get(file)?.append(data)?),
        Operation::Ping => Ok((Reply::Done, Body::Empty)),
        Operation::GetAttributes(Target::Path(path)) => Ok((Reply::Attributes(tree.attributes(path)?), Body::Empty)),
        Operation::GetAttributes(Target::Known { path, device, inode }) => {
            let found = is_known(tree.attributes(path)?, (device, inode))?;
            Ok((Reply::Attributes(found), Body::Empty))
        }
        Operation::GetAttributes(Target::File(file)) => {
            Ok((Reply::Attributes(attributes_of(files.get(file)?.descriptor())?), Body::Empty))
        }
        Operation::SetAttributes(target, ref change) => {
            if let (Target::Path(path) | Target::Known { path, .. }, Some(_)) = (target, change.size)
                && let Ok(file) = tree.locate(path)
                && stripes::layout_of_located(file.as_fd())?.is_some()
            {
                // A striped file must be open: its client has to change the other exports, too.
                return Err(Errno::OPNOTSUPP.into());
            }
            let _assumed = tree.assume(identity)?;
            let changed = located(tree, files, target, |file| attributes::change(file, change, modes))?;
            Ok((Reply::Attributes(changed), Body::Empty))
        }
        Operation::Open { path, flags, mode } => opened(
            tree,
            files,
            identity,
            tree.open_with_layout(identity, Place::Path(path), flags, modes.of_new(mode))?,
            flags,
        ),
        Operation::OpenKnown { target, flags } => {
            if flags.intersects(OpenFlags::CREATE | OpenFlags::EXCLUSIVE | OpenFlags::TMPFILE) {
                return Err(Errno::INVAL.into());
            }
            let assumed = tree.assume(identity)?;
            let file = located(tree, files, target, |file| file.file.try_clone_to_owned())?;
            drop(assumed);
            opened(tree, files, identity, tree.open_with_layout(identity, Place::File(file.as_fd()), flags, 0)?, flags)
        }
        Operation::Close { file } => done(files.close(file)),
        Operation::Reserve { file, length } => {
            let before = tree.reserve(files.get(file)?.descriptor(), length)?;
            Ok((Reply::Count(before), Body::Empty))
        }
        Operation::Fsync { file, data_only } => {
            let file = files.get(file)?;
            done((if data_only { fdatasync(file.descriptor()) } else { fsync(file.descriptor()) }).map_err(Into::into))
        }
        Operation::Readdir { file, cookie, length, attributes } => {
            let mut listing = Vec::new();
            let length = (length as usize).min(MAX_DATA_BYTES);
            files.get(file)?.list(cookie, length, attributes, &mut listing)?;
            Ok((Reply::Count(listing.len() as u64), Body::Owned(listing)))
        }
        Operation::Mkdir { path, mode } => {
            made(tree, path, |parent, name| mkdirat(parent, name, Mode::from_raw_mode(modes.of_new(mode))))
        }
        Operation::Mknod { path, mode, device } => {
            let kind = FileType::from_raw_mode(mode);
            let device = match kind {
                FileType::RegularFile | FileType::Fifo | FileType::Socket => 0,
                // The system refuses it to users other than root.
                FileType::CharacterDevice | FileType::BlockDevice if tree.has_identities() && identity.is_some() => {
                    device
                }
                _ => return Err(Errno::PERM.into()),
            };
            let permissions = Mode::from_raw_mode(modes.of_new(mode));
            made(tree, path, |parent, name| mknodat(parent, name, kind, permissions, device))
        }
        Operation::Symlink { path, target } => made(tree, path, |parent, name| symlinkat(target, parent, name)),
        Operation::Link { from, to } => {
            if let Target::Path(from) = from {
                let (old, old_name) = tree.parent(from)?;
                return made(tree, to, |parent, name| linkat(&old, old_name, parent, name, AtFlags::empty()));
            }
            located(tree, files, from, |file| {
                let old = proc_path(file.file);
                made(tree, to, |parent, name| linkat(CWD, &*old, parent, name, AtFlags::SYMLINK_FOLLOW))
            })
        }
        Operation::Readlink { target } => owned(located(tree, files, target, |file| tree::read_link(file.file))?),
        Operation::Unlink { path, directory } => {
            let flags = if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            let before = if directory { None } else { striped_file(tree, path)? };
            let assumed = tree.assume(identity)?;
            let (parent, name) = tree.parent(path)?;
            unlinkat(&parent, name, flags)?;
            drop(assumed);
            Ok((Reply::Done, removed(before)?))
        }
        Operation::Rename { from, to, flags } => {
            let before = if flags.is_empty() { striped_file(tree, to)? } else { None };
            let assumed = tree.assume(identity)?;
            rename(tree, from, to, flags)?;
            drop(assumed);
            Ok((Reply::Done, removed(before)?))
        }
        Operation::Statfs => Ok((Reply::Space(tree.statfs()?), Body::Empty)),
        Operation::GetXattr { target, name } => {
            owned(located(tree, files, target, |file| attributes::get_xattr(file, name))?)
        }
        Operation::ListXattr(target) => owned(located(tree, files, target, attributes::list_xattr)?),
        Operation::SetXattr { target, name, create, replace } => {
            done(located(tree, files, target, |file| attributes::set_xattr(file, name, data, create, replace)))
        }
        Operation::RemoveXattr { target, name } => {
            done(located(tree, files, target, |file| attributes::remove_xattr(file, name)))
        }
        Operation::Lock { file, owner, ref range, wait } => done(files.get(file)?.lock(owner, range, wait)),
        Operation::StopWaiting { file, owner, ref range } => done(files.get(file)?.stop_waiting(owner, range)),
        Operation::TestLock { file, owner, ref range } => {
            Ok((Reply::Lock(files.get(file)?.test_lock(owner, range)?), Body::Empty))
        }
        Operation::Fallocate { file, mode, offset, length } => {
            let flags = FallocateFlags::from_bits(mode).ok_or(Errno::OPNOTSUPP)?;
            done(fallocate(files.get(file)?.descriptor(), flags, offset, length).map_err(Into::into))
        }
        Operation::Seek { file, offset, data } => {
            let position = if data { SeekFrom::Data(offset) } else { SeekFrom::Hole(offset) };
            Ok((Reply::Count(seek(files.get(file)?.descriptor(), position)?), Body::Empty))
        }
        Operation::CopyFileRange { from, from_offset, to, to_offset, length } => {
            let (from, to) = (files.get(from)?, files.get(to)?);
            let (mut read_at, mut write_at) = (from_offset, to_offset);
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            count(copy_file_range(from.descriptor(), Some(&mut read_at), to.descriptor(), Some(&mut write_at), length)?)
        }
    }
}

/// The body with a layout.
fn layout_body(layout: Option<&Layout>) -> Body {
    layout.map_or(Body::Empty, |layout| {
        let mut bytes = Vec::new();
        append(layout, &mut bytes);
        Body::Owned(bytes)
    })
}

/// The file at `path` with its layout, if its export stripes files and this is one. A layout that cannot be used names no parts.
fn striped_file(tree: &Tree, path: &[u8]) -> Result<Option<(OwnedFd, Layout)>> {
    if tree.striping().is_none() {
        return Ok(None);
    }
    let file = match tree.locate(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        located => located?,
    };
    Ok(stripes::layout_of_located(file.as_fd()).ok().flatten().map(|layout| (file, layout)))
}

/// The body of the answer to an operation that has removed a name of this striped file.
fn removed(file: Option<(OwnedFd, Layout)>) -> Result<Body> {
    match file {
        Some((file, layout)) if attributes_of(file.as_fd())?.links == 0 => Ok(layout_body(Some(&layout))),
        _ => Ok(Body::Empty),
    }
}

/// Gives the thread the identity with which an operation is executed: that of its user; for changes of an open file that of who has opened it. What the open
/// has allowed already, and what needs no permission, is executed as the process. Operations that read layouts, which are the server's, take the identity themselves.
fn assume<'a>(
    tree: &'a Tree,
    files: &FileTable,
    identity: Option<&Identity>,
    operation: &Operation<'_>,
) -> Result<Option<Assumed<'a>>> {
    if !tree.has_identities() {
        return Ok(None);
    }
    match *operation {
        Operation::Write { file, .. }
        | Operation::Append { file }
        | Operation::Reserve { file, .. }
        | Operation::Fallocate { file, .. }
        | Operation::CopyFileRange { to: file, .. }
        // The attributes of an entry are those that its user can ask for by its name.
        | Operation::Readdir { file, attributes: true, .. } => tree.assume(files.get(file)?.opener()),
        Operation::Attach { .. }
        | Operation::AttachMember { .. }
        | Operation::Subscribe { .. }
        | Operation::Detach
        | Operation::GetAttributes(Target::File(_))
        | Operation::Close { .. }
        | Operation::Read { .. }
        | Operation::Fsync { .. }
        | Operation::Readdir { .. }
        | Operation::Statfs
        | Operation::Ping
        | Operation::Lock { .. }
        | Operation::StopWaiting { .. }
        | Operation::TestLock { .. }
        | Operation::Seek { .. } => Ok(None),
        Operation::Open { .. }
        | Operation::OpenKnown { .. }
        | Operation::SetAttributes(..)
        | Operation::Unlink { .. }
        | Operation::Rename { .. } => Ok(None),
        Operation::GetAttributes(Target::Path(_) | Target::Known { .. })
        | Operation::Mkdir { .. }
        | Operation::Mknod { .. }
        | Operation::Symlink { .. }
        | Operation::Link { .. }
        | Operation::Readlink { .. }
        | Operation::GetXattr { .. }
        | Operation::ListXattr(_)
        | Operation::SetXattr { .. }
        | Operation::RemoveXattr { .. } => tree.assume(identity),
    }
}

fn read(
    tree: &Tree,
    file: &OpenFile,
    buffer: &mut [u8],
    offset: u64,
    before_waiting: &mut impl FnMut(),
) -> Result<usize> {
    if buffer.len() > SHORT_READ_BYTES || file.past_cache().is_some() {
        before_waiting();
    } else if !tree.is_in_memory() {
        if let Some(read) = file.read_cached(buffer, offset) {
            return Ok(read);
        }
        before_waiting();
    }
    file.read(buffer, offset)
}

fn owned(bytes: Vec<u8>) -> Result<(Reply, Body)> {
    Ok((Reply::Count(bytes.len() as u64), Body::Owned(bytes)))
}

/// Makes a name by `make`, and returns the attributes of what it names.
fn made(
    tree: &Tree,
    path: &[u8],
    make: impl FnOnce(std::os::fd::BorrowedFd<'_>, &std::ffi::OsStr) -> rustix::io::Result<()>,
) -> Result<(Reply, Body)> {
    let (parent, name) = tree.parent(path)?;
    make(parent.as_fd(), name)?;
    let attributes = attributes_at(parent.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok((Reply::Attributes(attributes), Body::Empty))
}

fn rename(tree: &Tree, from: &[u8], to: &[u8], flags: RenameFlags) -> Result<()> {
    let (old, old_name) = tree.parent(from)?;
    let (new, new_name) = tree.parent(to)?;
    let mut system = rustix::fs::RenameFlags::empty();
    system.set(rustix::fs::RenameFlags::NOREPLACE, flags.contains(RenameFlags::NO_REPLACE));
    system.set(rustix::fs::RenameFlags::EXCHANGE, flags.contains(RenameFlags::EXCHANGE));
    Ok(renameat_with(&old, old_name, &new, new_name, system)?)
}

/// Calls `with` with the file of a target.
fn located<T>(
    tree: &Tree,
    files: &FileTable,
    target: Target<'_>,
    with: impl FnOnce(Located<'_>) -> Result<T>,
) -> Result<T> {
    match target {
        Target::Path(path) => with(Located { file: tree.locate(path)?.as_fd(), open: false }),
        Target::File(file) => {
            let file = files.get(file)?;
            with(Located { file: file.descriptor(), open: !file.is_located() })
        }
        Target::Known { path, device, inode } => {
            let file = tree.locate(path)?;
            is_known(attributes_of(file.as_fd())?, (device, inode))?;
            with(Located { file: file.as_fd(), open: false })
        }
    }
}

/// The attributes that were found, if they are those of the file with this device and number. ESTALE: they are another one's.
fn is_known(found: Attributes, known: (u64, u64)) -> Result<Attributes> {
    if (found.device, found.inode) == known { Ok(found) } else { Err(Errno::STALE.into()) }
}

/// Takes a file that was opened with these flags, as this user, into the open files of a client.
fn opened(
    tree: &Tree,
    files: &FileTable,
    identity: Option<&Identity>,
    (descriptor, layout): (OwnedFd, Option<Layout>),
    flags: OpenFlags,
) -> Result<(Reply, Body)> {
    let attributes = attributes_of(descriptor.as_fd())?;
    let opener = identity.filter(|_| tree.has_identities()).cloned();
    let (locks, client) = (Arc::clone(&tree.locks), (files.lock_client(), Arc::clone(files.quota())));
    // The client of a striped file decides where appended bytes go.
    let flags = if layout.is_some() { flags.positioned() } else { flags };
    let mut opened = OpenFile::new(descriptor, flags, opener, &attributes, locks, client);
    let cached = tree.pass_cache(&mut opened, flags, &attributes);
    let file = files.add(opened)?;
    Ok((Reply::Opened { file, attributes, cached }, layout_body(layout.as_ref())))
}
