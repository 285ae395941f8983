//! The exported directory: every path is resolved beneath it by the kernel, and nothing leads out of it.
//!
//! `openat2` with RESOLVE_BENEATH refuses "..", absolute symbolic links and whatever else leaves the directory; RESOLVE_NO_MAGICLINKS refuses links of
//! /proc. Operations on names open the parent directory this way, then name the last component.

use super::descriptors::{attributes_at, attributes_of};
use super::direct_opens::DirectOpens;
use super::locks::LockTable;
use super::open_file::OpenFile;
use super::past_cache::UnderWay;
use super::stripes::Striping;
use crate::Result;
use crate::identity::{Assumed, Identities, Identity};
use crate::protocol::{Attributes, Cached, MAX_PATH_BYTES, OpenFlags, Space};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, fstatfs, fstatvfs, open, openat2, readlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, RwLock};

/// How paths are resolved.
const CONFINED: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
/// How often a path is resolved again when names change meanwhile.
const RESOLVE_ATTEMPTS: u32 = 64;
/// Longest path of a system call, bytes: PATH_MAX without the zero byte.
const LONGEST_OF_CALL: usize = 4095;
/// File systems whose operations never wait for a device: tmpfs and ramfs.
const MEMORY_FILE_SYSTEMS: [u64; 2] = [0x0102_1994, 0x8584_58f6];
/// File systems of this host whose attributes are in memory as long as the kernel knows the file: ext2 to ext4, XFS, btrfs.
const DISK_FILE_SYSTEMS: [u64; 3] = [0xef53, 0x5846_5342, 0x9123_683e];

/// An exported directory.
#[derive(Debug)]
pub struct Tree {
    root: OwnedFd,
    read_only: bool,
    in_memory: bool,
    /// Whether its file system is one of this host, whose attributes do not wait for another process or host.
    local: bool,
    device: u64,
    pub(super) striping: Option<Striping>,
    /// Held by those who make a file and give it its layout; others who open files see it only with that.
    pub(super) layouts: RwLock<()>,
    /// The locks of all clients.
    pub(super) locks: Arc<LockTable>,
    /// With which operations are executed as the users that they name. `None`: all as the user of this process.
    identities: Option<Identities>,
    /// The user of this process.
    own: u32,
    /// Files are used through the cache also if they were opened with O_DIRECT.
    ignore_o_direct: bool,
    direct_opens: DirectOpens,
    /// Reads past the cache that are under way.
    direct_reads: UnderWay,
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
            striping.check(root.as_fd(), identities.is_some())?;
        }
        Ok(Self { striping, ..Self::new(root, read_only, identities)? })
    }

    /// The directory behind this descriptor.
    pub fn new(root: OwnedFd, read_only: bool, identities: Option<Identities>) -> Result<Self> {
        let kind = u64::try_from(fstatfs(&root)?.f_type).unwrap_or(0);
        let in_memory = MEMORY_FILE_SYSTEMS.contains(&kind);
        let local = in_memory || DISK_FILE_SYSTEMS.contains(&kind);
        let device = attributes_of(root.as_fd())?.device;
        Ok(Self {
            root,
            read_only,
            in_memory,
            local,
            device,
            striping: None,
            layouts: RwLock::default(),
            locks: Arc::default(),
            identities,
            own: geteuid().as_raw(),
            ignore_o_direct: false,
            direct_opens: DirectOpens::default(),
            direct_reads: UnderWay::default(),
        })
    }

    /// Its grants of locks are counted with those of another tree of the same directory.
    pub fn count_locks_with(&mut self, other: &Self) {
        self.locks = Arc::new(LockTable::with(other.locks.grants()));
    }

    /// How many owners of all clients have locks.
    pub fn lock_owners(&self) -> usize {
        self.locks.all_owners()
    }

    /// Files are used through the cache from now on, also if they are opened with O_DIRECT.
    pub fn ignore_o_direct(&mut self) {
        self.ignore_o_direct = true;
    }

    /// Whether O_DIRECT has no effect.
    pub fn ignores_o_direct(&self) -> bool {
        self.ignore_o_direct
    }

    /// A file that was opened with O_DIRECT is read and written past the cache, if that is possible. Returns why it is not.
    pub fn pass_cache(&self, file: &mut OpenFile, flags: OpenFlags, attributes: &Attributes) -> Option<Cached> {
        let is_file = FileType::from_raw_mode(attributes.mode) == FileType::RegularFile;
        if !flags.contains(OpenFlags::DIRECT) || !is_file {
            return None;
        }
        if self.ignore_o_direct {
            return Some(Cached::Ignored);
        }
        let passed = if self.in_memory { Err(Cached::InMemory) } else { file.pass_cache(&self.direct_reads) };
        let why = passed.err()?;
        self.direct_opens.note(why);
        Some(why)
    }

    /// What became of opens with O_DIRECT.
    pub fn direct_opens(&self) -> &DirectOpens {
        &self.direct_opens
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

    /// Whether an operation of this user is executed as the user of this process, and that is another one.
    pub fn squashes(&self, identity: Option<&Identity>) -> bool {
        self.identities.is_none() && identity.is_some_and(|identity| identity.user != self.own)
    }

    /// Whether its file system is one of this host, which answers by itself.
    pub fn is_local(&self) -> bool {
        self.local
    }

    /// Whether this is the device of its own file system.
    pub fn has_device(&self, device: u64) -> bool {
        self.device == device
    }

    /// Opens what is at `path` if it can be resolved as these flags say.
    pub(super) fn resolve(&self, path: &[u8], flags: OFlags, mode: Mode, how: ResolveFlags) -> Result<OwnedFd> {
        let path = checked(path)?;
        let (directory, path) = self.within_reach(path)?;
        Ok(openat2(&directory, path, flags | OFlags::CLOEXEC, mode, CONFINED | how)?)
    }

    /// Whether operations on its own file system never wait for a device.
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

    /// Attributes of the file at `path`. A symbolic link at the end is not followed.
    pub fn attributes(&self, path: &[u8]) -> Result<Attributes> {
        let name = checked(path)?;
        // A name that is an entry of the directory leads out of nothing: one system call instead of three.
        if !name.is_empty() && !name.contains(&b'/') && name != b".." {
            return attributes_at(self.root(), name, AtFlags::SYMLINK_NOFOLLOW);
        }
        attributes_of(self.locate(path)?.as_fd())
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

/// The target of a symbolic link that is open with O_PATH.
pub fn read_link(link: BorrowedFd<'_>) -> Result<Vec<u8>> {
    Ok(readlinkat(link, "", Vec::new())?.into_bytes())
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
