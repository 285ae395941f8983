//! The exported directory: every path is resolved beneath it by the kernel, and nothing leads out of it.
//!
//! `openat2` with RESOLVE_BENEATH refuses "..", absolute symbolic links and whatever else leaves the directory; RESOLVE_NO_MAGICLINKS refuses links of
//! /proc. Operations on names open the parent directory this way, then name the last component.

use super::stripes::{self, Striping};
use crate::Result;
use crate::identity::{Assumed, Identities, Identity};
use crate::protocol::{Attributes, Layout, MAX_PATH_BYTES, OpenFlags, Space, Time};
use rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags, accessat, fcntl_getfl, fcntl_setfl,
    fstatfs, fstatvfs, ftruncate, open, openat2, readlinkat, statx,
};
use rustix::io::{Errno, pwrite};
use rustix::process::geteuid;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{PoisonError, RwLock};

/// How paths are resolved.
const CONFINED: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
/// How often a path is resolved again when names change meanwhile.
const RESOLVE_ATTEMPTS: u32 = 64;
/// Longest path of a system call, bytes: PATH_MAX without the zero byte.
const LONGEST_OF_CALL: usize = 4095;
/// File systems whose operations never wait for a device: tmpfs and ramfs.
const MEMORY_FILE_SYSTEMS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// An exported directory.
#[derive(Debug)]
pub struct Tree {
    root: OwnedFd,
    read_only: bool,
    in_memory: bool,
    striping: Option<Striping>,
    /// Held by those who make a file and give it its layout; others who open files see it only with that.
    layouts: RwLock<()>,
    /// With which operations are executed as the users that they name. `None`: all as the user of this process.
    identities: Option<Identities>,
}

/// The directory in which a name is, and the name.
pub enum Parent<'a> {
    /// The exported directory itself.
    Root(BorrowedFd<'a>),
    /// A directory beneath it.
    Beneath(OwnedFd),
}

impl AsFd for Parent<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Root(root) => *root,
            Self::Beneath(directory) => directory.as_fd(),
        }
    }
}

impl Tree {
    /// The directory at `path`. `striping`: how new files are striped.
    pub fn open(
        path: &Path,
        read_only: bool,
        striping: Option<Striping>,
        identities: Option<Identities>,
    ) -> Result<Self> {
        let root = open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        if let Some(striping) = &striping {
            striping.check(root.as_fd())?;
        }
        Ok(Self { striping, ..Self::new(root, read_only, identities)? })
    }

    /// The directory behind this descriptor.
    pub fn new(root: OwnedFd, read_only: bool, identities: Option<Identities>) -> Result<Self> {
        let kind = fstatfs(&root)?.f_type;
        let in_memory = MEMORY_FILE_SYSTEMS.contains(&u64::try_from(kind).unwrap_or(0));
        Ok(Self { root, read_only, in_memory, striping: None, layouts: RwLock::default(), identities })
    }

    /// The directory itself.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Whether changes are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether operations are executed as the users that they name.
    pub fn has_identities(&self) -> bool {
        self.identities.is_some()
    }

    /// Gives this thread the identity of a user, if operations are executed as users and this is another one than that of the process.
    pub fn assume(&self, identity: Option<&Identity>) -> Result<Option<Assumed<'_>>> {
        match (&self.identities, identity) {
            (Some(own), Some(identity)) if !own.is_own(identity) => own.assume(identity).map(Some),
            _ => Ok(None),
        }
    }

    /// Whether operations never wait for a device.
    pub fn is_in_memory(&self) -> bool {
        self.in_memory
    }

    /// Opens the file at `path` as the flags of the system say.
    pub fn open_at(&self, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        let path = checked(path)?;
        let (directory, path) = self.within_reach(path)?;
        resolved(&directory, path, flags, mode)
    }

    /// A directory on the way to `path`, and a path from there on that a system call takes.
    fn within_reach<'a>(&'a self, mut path: &'a [u8]) -> Result<(Parent<'a>, &'a [u8])> {
        let mut directory = Parent::Root(self.root());
        while path.len() > LONGEST_OF_CALL {
            let slash = path[..LONGEST_OF_CALL].iter().rposition(|&byte| byte == b'/').ok_or(Errno::NAMETOOLONG)?;
            directory =
                Parent::Beneath(resolved(&directory, &path[..slash], OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?);
            path = &path[slash + 1..];
        }
        Ok((directory, if path.is_empty() { b"." } else { path }))
    }

    /// Opens the file at `path` for operations on its attributes. A symbolic link at the end is not followed.
    pub fn locate(&self, path: &[u8]) -> Result<OwnedFd> {
        self.open_at(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())
    }

    /// How new files are striped.
    pub fn striping(&self) -> Option<&Striping> {
        self.striping.as_ref()
    }

    /// Opens a file or directory for a client as a user, with the layout of a striped file, which is the server's.
    pub fn open_with_layout(
        &self,
        identity: Option<&Identity>,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
    ) -> Result<(OwnedFd, Option<Layout>)> {
        // A striped file is truncated by its client, in all exports.
        let (file, layout) = self.open_whole(identity, path, flags - OpenFlags::TRUNCATE, mode)?;
        match &layout {
            None if flags.contains(OpenFlags::TRUNCATE) => {
                let _assumed = self.assume(identity)?;
                match ftruncate(&file, 0) {
                    // Opened for reading only.
                    Err(Errno::INVAL | Errno::BADF) => {
                        drop(reopen(file.as_fd(), OFlags::WRONLY | OFlags::TRUNC | OFlags::NONBLOCK)?);
                    }
                    done => done?,
                }
            }
            // Its client decides where appended bytes go.
            Some(_) if flags.contains(OpenFlags::APPEND) => fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::APPEND)?,
            _ => {}
        }
        Ok((file, layout))
    }

    /// Opens a file, and reads or makes its layout.
    fn open_whole(
        &self,
        identity: Option<&Identity>,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
    ) -> Result<(OwnedFd, Option<Layout>)> {
        let found = |file: OwnedFd| stripes::layout(file.as_fd()).map(|layout| (file, layout));
        let Some(striping) = &self.striping else { return self.open_as(identity, path, flags, mode).and_then(found) };
        if !flags.contains(OpenFlags::TMPFILE) {
            let _reader = self.layouts.read().unwrap_or_else(PoisonError::into_inner);
            match self.open_as(identity, path, flags - OpenFlags::CREATE - OpenFlags::EXCLUSIVE, mode) {
                Ok(_) if flags.contains(OpenFlags::EXCLUSIVE) => return Err(Errno::EXIST.into()),
                Err(error) if flags.contains(OpenFlags::CREATE) && error.kind() == ErrorKind::NotFound => {}
                opened => return opened.and_then(found),
            }
        }
        let _writer = self.layouts.write().unwrap_or_else(PoisonError::into_inner);
        // With TMPFILE it would mean that the file gets no name later.
        let exclusive = if flags.contains(OpenFlags::TMPFILE) { flags } else { flags | OpenFlags::EXCLUSIVE };
        match self.open_as(identity, path, exclusive, mode) {
            // Another client has made it meanwhile, or a program of this host.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && !flags.contains(OpenFlags::EXCLUSIVE) => {
                self.open_as(identity, path, flags - OpenFlags::CREATE, mode).and_then(found)
            }
            made => {
                let file = made?;
                let layout = striping.give(file.as_fd())?;
                Ok((file, Some(layout)))
            }
        }
    }

    /// Opens a file as a user.
    fn open_as(&self, identity: Option<&Identity>, path: &[u8], flags: OpenFlags, mode: u32) -> Result<OwnedFd> {
        let assumed = self.assume(identity)?;
        match (self.open_file(path, flags, mode), assumed) {
            (Err(error), Some(assumed)) if flags.intersects(OpenFlags::EXECUTE | OpenFlags::AGAIN) => {
                self.open_refused(path, flags, assumed, error)
            }
            (opened, _) => opened,
        }
    }

    /// Makes a striped file longer, and returns its length before.
    pub fn reserve(&self, file: BorrowedFd<'_>, length: u64) -> Result<u64> {
        let _writer = self.layouts.write().unwrap_or_else(PoisonError::into_inner);
        let before = attributes_of(file)?.size;
        let last = before.checked_add(length).and_then(|end| end.checked_sub(1)).ok_or(Errno::FBIG)?;
        // The last byte is in another export or is written later.
        if length > 0 && pwrite(file, &[0], last)? != 1 {
            return Err(Errno::IO.into());
        }
        Ok(before)
    }

    /// Opens a file or directory for a client. Only regular files and directories are opened: a named pipe, socket or device belongs to the client's host.
    fn open_file(&self, path: &[u8], flags: OpenFlags, mode: u32) -> Result<OwnedFd> {
        // Without NONBLOCK the server waits in open() for the other end of a named pipe.
        let system = system_flags(flags)? | OFlags::NONBLOCK | OFlags::NOCTTY;
        let creates = flags.intersects(OpenFlags::CREATE | OpenFlags::TMPFILE);
        let mode = if creates { Mode::from_raw_mode(mode & 0o7777) } else { Mode::empty() };
        if !creates && !flags.contains(OpenFlags::DIRECTORY) {
            // The type is checked before the open, which has effects on a device.
            check_type(&statx_of(self.locate(path)?.as_fd())?)?;
        }
        let file = self.open_at(path, system, mode)?;
        check_type(&statx_of(file.as_fd())?)?;
        Ok(file)
    }

    /// Opens a file that was refused to the user of this thread, where the user may use it all the same: a program that it may execute and not read, for
    /// its system reads it; a file that it owns and has had open. `assumed`: the user's identity, which ends. `refused`: what is returned otherwise.
    fn open_refused(
        &self,
        path: &[u8],
        flags: OpenFlags,
        assumed: Assumed<'_>,
        refused: std::io::Error,
    ) -> Result<OwnedFd> {
        if refused.kind() != std::io::ErrorKind::PermissionDenied {
            return Err(refused);
        }
        let file = self.locate(path)?;
        let found = statx_of(file.as_fd())?;
        let executes = flags.contains(OpenFlags::EXECUTE) && !flags.intersects(OpenFlags::CHANGES);
        let may = executes && accessat(CWD, proc_path(file.as_fd()), Access::EXEC_OK, AtFlags::EACCESS).is_ok()
            || flags.contains(OpenFlags::AGAIN) && found.user == geteuid().as_raw();
        if !may || FileType::from_raw_mode(found.mode) != FileType::RegularFile {
            return Err(refused);
        }
        drop(assumed);
        reopen(file.as_fd(), system_flags(flags)? | OFlags::NONBLOCK)
    }

    /// The parent directory of `path`, and the last component of `path`.
    pub fn parent<'a>(&'a self, path: &'a [u8]) -> Result<(Parent<'a>, &'a OsStr)> {
        let path = checked(path)?;
        let (directory, name) = match path.iter().rposition(|&byte| byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&path[..0], path),
        };
        if name.is_empty() || name == b"." || name == b".." {
            return Err(Errno::INVAL.into());
        }
        let parent = if directory.is_empty() {
            Parent::Root(self.root())
        } else {
            Parent::Beneath(self.open_at(directory, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?)
        };
        Ok((parent, OsStr::from_bytes(name)))
    }

    /// Attributes of the file at `path`.
    pub fn attributes(&self, path: &[u8]) -> Result<Attributes> {
        attributes_of(self.locate(path)?.as_fd())
    }

    /// The target of the symbolic link at `path`.
    pub fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        let link = self.locate(path)?;
        Ok(readlinkat(&link, "", Vec::new())?.into_bytes())
    }

    /// Space of the directory's file system.
    pub fn statfs(&self) -> Result<Space> {
        let space = fstatvfs(&self.root)?;
        Ok(Space {
            block_size: u32::try_from(space.f_frsize).unwrap_or(u32::MAX),
            blocks: space.f_blocks,
            free: space.f_bfree,
            available: space.f_bavail,
            files: space.f_files,
            files_free: space.f_ffree,
            name_length: u32::try_from(space.f_namemax).unwrap_or(255),
        })
    }
}

/// Opens the file at `path` beneath a directory.
fn resolved(directory: &Parent<'_>, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    for _ in 0..RESOLVE_ATTEMPTS {
        match openat2(directory, path, flags | OFlags::CLOEXEC, mode, CONFINED) {
            Err(Errno::AGAIN) if !flags.contains(OFlags::PATH) => {
                // A rename elsewhere, or a file that another process has leased: the first is over soon.
                std::thread::yield_now();
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            // What leads out of the directory does not exist for a client.
            Err(Errno::XDEV) => return Err(Errno::NOENT.into()),
            opened => return Ok(opened?),
        }
    }
    Err(Errno::AGAIN.into())
}

/// A path that may be resolved: relative, without a zero byte, not too long.
fn checked(path: &[u8]) -> Result<&[u8]> {
    if path.len() >= MAX_PATH_BYTES {
        return Err(Errno::NAMETOOLONG.into());
    }
    if path.starts_with(b"/") || path.contains(&0) {
        return Err(Errno::INVAL.into());
    }
    Ok(path)
}

fn system_flags(flags: OpenFlags) -> Result<OFlags> {
    let mut system = match (flags.contains(OpenFlags::READ), flags.intersects(OpenFlags::WRITE | OpenFlags::APPEND)) {
        (_, false) => OFlags::RDONLY,
        (false, true) => OFlags::WRONLY,
        (true, true) => OFlags::RDWR,
    };
    if flags.bits() & !OpenFlags::all().bits() != 0 {
        return Err(Errno::INVAL.into());
    }
    let pairs = [
        (OpenFlags::APPEND, OFlags::APPEND),
        (OpenFlags::CREATE, OFlags::CREATE),
        (OpenFlags::EXCLUSIVE, OFlags::EXCL),
        (OpenFlags::TRUNCATE, OFlags::TRUNC),
        (OpenFlags::DIRECTORY, OFlags::DIRECTORY),
        (OpenFlags::SYNC, OFlags::SYNC),
        (OpenFlags::TMPFILE, OFlags::TMPFILE),
    ];
    for (flag, bits) in pairs {
        if flags.contains(flag) {
            system |= bits;
        }
    }
    Ok(system)
}

fn check_type(stat: &Attributes) -> Result<()> {
    match FileType::from_raw_mode(stat.mode) {
        FileType::RegularFile | FileType::Directory => Ok(()),
        FileType::Symlink => Err(Errno::LOOP.into()),
        _ => Err(Errno::NXIO.into()),
    }
}

/// Attributes of an open file.
pub fn attributes_of(file: BorrowedFd<'_>) -> Result<Attributes> {
    statx_of(file)
}

fn statx_of(file: BorrowedFd<'_>) -> Result<Attributes> {
    attributes_at(file, "", AtFlags::EMPTY_PATH)
}

/// Attributes of the file `name` in `directory`.
pub fn attributes_at(directory: BorrowedFd<'_>, name: impl rustix::path::Arg, flags: AtFlags) -> Result<Attributes> {
    let stat = statx(directory, name, flags | AtFlags::NO_AUTOMOUNT, StatxFlags::BASIC_STATS)?;
    let time = |time: rustix::fs::StatxTimestamp| Time { seconds: time.tv_sec, nanoseconds: time.tv_nsec };
    Ok(Attributes {
        device: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
        inode: stat.stx_ino,
        mode: u32::from(stat.stx_mode),
        links: stat.stx_nlink,
        user: stat.stx_uid,
        group: stat.stx_gid,
        represents: rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        block_size: stat.stx_blksize,
        accessed: time(stat.stx_atime),
        modified: time(stat.stx_mtime),
        changed: time(stat.stx_ctime),
    })
}

/// Opens an open file again, with a file description of its own. `flags`: the access.
pub fn reopen(file: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
    Ok(rustix::fs::openat(CWD, proc_path(file), flags | OFlags::CLOEXEC, Mode::empty())?)
}

/// The path by which system calls that know only paths reach an open file, also one opened with O_PATH.
pub fn proc_path(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}
