//! The protocol between the client and the server of an export.
//!
//! All messages are on one channel. A request is a message whose body is a [`Request`] and, if they are short, its data. Longer data are a second message,
//! which the server receives when it has a buffer for them. An answer is a message whose headers are an [`Answer`] and whose body is what was read. Formats
//! are those of `postcard`: integers of variable length, little-endian, lengths before bytes.
//!
//! Paths are relative to the exported directory, without a leading slash; the empty path is the directory itself.

use crate::identity::{Identity, MAX_GROUPS};
use bitflags::bitflags;
use motet_session::paths::check_name;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The version of the protocol. Both ends must have the same.
pub const VERSION: u32 = 7;
/// The service of the engine under which a server accepts channels.
pub const SERVICE: u64 = u64::from_be_bytes(*b"mt.files");
/// Slots of a session: requests that a client may have outstanding.
pub const SLOTS: u16 = 64;
/// Longest data of one request or answer, bytes.
pub const MAX_DATA_BYTES: usize = 1 << 20;
/// Longest data that are part of the request message, bytes, if it has room for them.
const MAX_INLINE_BYTES: usize = 32 << 10;
/// Longest path, bytes. Programs of a client name files from their working directories on, so it is longer than PATH_MAX.
pub const MAX_PATH_BYTES: usize = 16 << 10;
/// Exports over which the content of a file may be striped, its own included.
pub const MAX_STRIPES: usize = 16;
/// Longest [`Layout`] in an answer, bytes.
pub const MAX_LAYOUT_BYTES: usize = 4096;
/// Longest value, list of extended attributes or target of a symbolic link, bytes.
pub const MAX_XATTR_BYTES: usize = 64 << 10;
/// Longest request message, bytes. It goes in one packet of the engine on every path: a server receives no other requests.
pub const MAX_REQUEST_BYTES: usize = 60 << 10;
const _: () = assert!(2 * MAX_PATH_BYTES + 256 + 5 * MAX_GROUPS <= MAX_REQUEST_BYTES, "two paths, the fields, groups");

/// The data that are part of a request message behind these bytes; others follow it. `None`: its paths are too long for any server.
pub fn inline_data<'a>(message: &[u8], data: &'a [u8]) -> Option<&'a [u8]> {
    let room = MAX_REQUEST_BYTES.checked_sub(message.len())?;
    Some(if data.len() <= MAX_INLINE_BYTES.min(room) { data } else { &[] })
}

/// The kind of a message, the upper bits of its tag. The lower bits are the slot.
const KIND_SHIFT: u32 = 60;
/// The tag of a request, and of data that follow it, and of an answer.
const REQUEST: u64 = 1 << KIND_SHIFT;
const DATA: u64 = 2 << KIND_SHIFT;
const ANSWER: u64 = 3 << KIND_SHIFT;
/// The tag of notices, and of what a client answers to them.
const NOTICE: u64 = 4 << KIND_SHIFT;
const ACKNOWLEDGEMENT: u64 = 5 << KIND_SHIFT;
/// The bits of the tag that say the slot.
pub const SLOT_MASK: u64 = (1 << KIND_SHIFT) - 1;
/// The modes of fallocate(2) that move what is behind the range: FALLOC_FL_COLLAPSE_RANGE and FALLOC_FL_INSERT_RANGE.
const FALLOCATE_MOVES: u32 = 0x08 | 0x20;
/// A tag that no message has. A receive for it completes when the channel is lost.
pub const NEVER: u64 = u64::MAX;

/// The tag of requests in this slot.
pub fn request_tag(slot: u16) -> u64 {
    REQUEST | u64::from(slot)
}

/// The tag of data of the request in this slot.
pub fn data_tag(slot: u16) -> u64 {
    DATA | u64::from(slot)
}

/// The tag of answers in this slot.
pub fn answer_tag(slot: u16) -> u64 {
    ANSWER | u64::from(slot)
}

/// The tag of notices. A notice is a number, one more than that of the notice before, and a [`Notice`].
pub fn notice_tag() -> u64 {
    NOTICE
}

/// The tag of acknowledgements: the number of a notice, of which and of all before the client uses nothing any more.
pub fn acknowledgement_tag() -> u64 {
    ACKNOWLEDGEMENT
}

/// A request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request<'a> {
    /// The slot of the session.
    pub slot: u16,
    /// The number of the request in its slot: one more than that of the request before, or the same if it is sent again.
    pub sequence: u32,
    /// Bytes of data that belong to the request.
    pub data: u32,
    /// The user for whom the client asks. `None`: the client itself, whose user is the server's.
    pub identity: Option<Identity>,
    /// What to do.
    #[serde(borrow)]
    pub operation: Operation<'a>,
}

/// An answer: what was done, or the error number of the system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The number of the request.
    pub sequence: u32,
    /// The result.
    pub result: Result<Reply, i32>,
}

/// The file that an operation concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target<'a> {
    /// The file at a path. A symbolic link at its end is not followed.
    Path(#[serde(with = "serde_bytes")] &'a [u8]),
    /// An open file.
    File(u32),
    /// The file at a path that was found there before, by its device and its number there. ESTALE: by now another one has the path.
    Known {
        /// The path. A symbolic link at its end is not followed.
        #[serde(with = "serde_bytes")]
        path: &'a [u8],
        /// The device.
        device: u64,
        /// The number.
        inode: u64,
    },
}

/// What a client can ask for. Fields have the names of the system calls' arguments: `file` is the number of an open file, `offset` and `length` are bytes.
#[expect(missing_docs, reason = "the comment of the operation says what its fields are")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation<'a> {
    /// Begins a session on this channel, or goes on with one. The first request of a channel, always in slot 0 with sequence 0.
    Attach {
        /// The client's [`VERSION`].
        version: u32,
        /// The session to go on with.
        resume: Option<SessionKey>,
    },
    /// Makes this channel the one on which the client of a session gets notices. The first request of a channel, always in slot 0 with sequence 0.
    Subscribe {
        /// The session.
        session: SessionKey,
    },
    /// Ends the session.
    Detach,
    /// Attributes of a file.
    GetAttributes(#[serde(borrow)] Target<'a>),
    /// Changes attributes, and returns the new ones.
    SetAttributes(#[serde(borrow)] Target<'a>, Change),
    /// Opens a file or a directory. The answer's body is the [`Layout`] of a file that is striped.
    Open {
        /// Its path.
        #[serde(with = "serde_bytes")]
        path: &'a [u8],
        /// How it is opened.
        flags: OpenFlags,
        /// Permissions of a new file.
        mode: u32,
    },
    /// Closes an open file.
    Close { file: u32 },
    /// Reads; the answer's body is what was read, shorter at the end of the file.
    Read { file: u32, offset: u64, length: u32 },
    /// Writes the request's data.
    Write { file: u32, offset: u64 },
    /// Makes the file longer by `length` bytes, and returns its length before. No other client gets the same bytes.
    Reserve { file: u32, length: u64 },
    /// Waits until written data, and with `!data_only` attributes, are on the disk.
    Fsync { file: u32, data_only: bool },
    /// Lists an open directory from `cookie` on (0: from the beginning). The answer's body is [`Entry`] after [`Entry`], of at most `length` bytes.
    Readdir { file: u32, cookie: u64, length: u32, attributes: bool },
    /// Makes a directory.
    Mkdir {
        #[serde(with = "serde_bytes")]
        path: &'a [u8],
        mode: u32,
    },
    /// Makes a named pipe, a socket or an empty file, by the type in `mode`. For a user that the server takes the identity of, also the file of the device
    /// `device`, which only root may.
    Mknod {
        #[serde(with = "serde_bytes")]
        path: &'a [u8],
        mode: u32,
        device: u64,
    },
    /// Makes a symbolic link.
    Symlink {
        #[serde(with = "serde_bytes")]
        path: &'a [u8],
        #[serde(with = "serde_bytes")]
        target: &'a [u8],
    },
    /// Makes a further name for a file.
    Link {
        #[serde(borrow)]
        from: Target<'a>,
        #[serde(with = "serde_bytes")]
        to: &'a [u8],
    },
    /// The target of a symbolic link, in the answer's body.
    Readlink {
        #[serde(borrow)]
        target: Target<'a>,
    },
    /// Removes a name, of a file or of an empty directory. The answer's body is the [`Layout`] of a striped file that has no name any more.
    Unlink {
        #[serde(with = "serde_bytes")]
        path: &'a [u8],
        directory: bool,
    },
    /// Renames. The answer's body is as that of [`Operation::Unlink`], for a file that was replaced.
    Rename {
        #[serde(with = "serde_bytes")]
        from: &'a [u8],
        #[serde(with = "serde_bytes")]
        to: &'a [u8],
        flags: RenameFlags,
    },
    /// Space of the file system.
    Statfs,
    /// The value of an extended attribute, in the answer's body.
    GetXattr {
        target: Target<'a>,
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
    },
    /// The names of extended attributes, in the answer's body, each with a zero byte at its end.
    ListXattr(#[serde(borrow)] Target<'a>),
    /// Sets an extended attribute to the request's data. `create`: only if it does not exist; `replace`: only if it does.
    SetXattr {
        target: Target<'a>,
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        create: bool,
        replace: bool,
    },
    /// Removes an extended attribute.
    RemoveXattr {
        target: Target<'a>,
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
    },
    /// Sets or releases a lock on a range of bytes, without waiting. EAGAIN: another owner has it. EDEADLK: the owner would wait for itself. A lock belongs to
    /// the owner, through whichever open file it was set. When an open file is closed, the locks of owners that have locked through it last are released.
    Lock { file: u32, owner: u64, range: LockRange, wait: LockWait },
    /// A program that waits for a lock gives up. [`Operation::Lock`] has given the request a place among others that wait.
    StopWaiting { file: u32, owner: u64, range: LockRange },
    /// The lock that keeps `owner` from this one, or an unlocked range.
    TestLock { file: u32, owner: u64, range: LockRange },
    /// Allocates or frees space (the modes of fallocate(2) on Linux).
    Fallocate { file: u32, mode: u32, offset: u64, length: u64 },
    /// The next data, or the next hole, from `offset` on.
    Seek { file: u32, offset: u64, data: bool },
    /// Copies between two open files on the server.
    CopyFileRange { from: u32, from_offset: u64, to: u32, to_offset: u64, length: u64 },
    /// As [`Operation::Attach`], of a client of another user of the server's host. Its requests are executed as that user, whatever they name.
    AttachMember {
        version: u32,
        resume: Option<SessionKey>,
        /// What the client got at the socket of the export.
        ticket: [u8; 16],
    },
    /// Writes the request's data at the end of a file that is open for appending.
    Append { file: u32 },
    /// Nothing: a client asks whether its server is there.
    Ping,
    /// Opens a file that exists, without making one; otherwise as [`Operation::Open`].
    OpenKnown {
        #[serde(borrow)]
        target: Target<'a>,
        flags: OpenFlags,
    },
}

impl Operation<'_> {
    /// Whether the operation may be executed again without a different result, so that its answer need not be kept.
    pub fn is_idempotent(&self) -> bool {
        matches!(
            self,
            Self::GetAttributes(_)
                | Self::Read { .. }
                | Self::Readdir { .. }
                | Self::Readlink { .. }
                | Self::Statfs
                | Self::GetXattr { .. }
                | Self::ListXattr(_)
                | Self::StopWaiting { .. }
                | Self::TestLock { .. }
                | Self::Seek { .. }
                | Self::Fsync { .. }
                | Self::Ping
        )
    }

    /// Whether the operation may be executed a second time where the server cannot know that it was executed: it says what the file becomes, whatever that is before. The
    /// others would do their work twice, or fail because they have done it.
    pub fn is_repeatable(&self) -> bool {
        match *self {
            Self::Open { flags, .. } => !flags.contains(OpenFlags::EXCLUSIVE) || flags.contains(OpenFlags::TMPFILE),
            Self::SetXattr { create, replace, .. } => !create && !replace,
            Self::Fallocate { mode, .. } => mode & FALLOCATE_MOVES == 0,
            Self::Append { .. }
            | Self::Reserve { .. }
            | Self::Mkdir { .. }
            | Self::Mknod { .. }
            | Self::Symlink { .. }
            | Self::Link { .. }
            | Self::Unlink { .. }
            | Self::Rename { .. }
            | Self::RemoveXattr { .. } => false,
            _ => true,
        }
    }

    /// What it does, in words, for the log.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Open { .. } | Self::OpenKnown { .. } => "opening a file",
            Self::Append { .. } => "appending",
            Self::Reserve { .. } => "appending to a striped file",
            Self::Mkdir { .. } => "making a directory",
            Self::Mknod { .. } => "making a file or a pipe",
            Self::Symlink { .. } => "making a symbolic link",
            Self::Link { .. } => "making a link",
            Self::Unlink { .. } => "removing a name",
            Self::Rename { .. } => "renaming",
            Self::SetXattr { .. } | Self::RemoveXattr { .. } => "changing an extended attribute",
            Self::Fallocate { .. } => "allocating space",
            _ => "a request",
        }
    }

    /// Whether the answer is about the open files of the session, and is of no use without them.
    pub fn concerns_open_files(&self) -> bool {
        matches!(self, Self::Open { .. } | Self::OpenKnown { .. } | Self::Close { .. } | Self::Lock { .. })
    }

    /// Whether data belong to the operation.
    pub fn takes_data(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Append { .. } | Self::SetXattr { .. })
    }

    /// Whether the operation changes files: what a read-only export refuses.
    pub fn is_change(&self) -> bool {
        match self {
            Self::Open { flags, .. } | Self::OpenKnown { flags, .. } => flags.intersects(OpenFlags::CHANGES),
            Self::SetAttributes(..)
            | Self::Write { .. }
            | Self::Append { .. }
            | Self::Reserve { .. }
            | Self::Mkdir { .. }
            | Self::Mknod { .. }
            | Self::Symlink { .. }
            | Self::Link { .. }
            | Self::Unlink { .. }
            | Self::Rename { .. }
            | Self::SetXattr { .. }
            | Self::RemoveXattr { .. }
            | Self::Fallocate { .. }
            | Self::CopyFileRange { .. } => true,
            _ => false,
        }
    }
}

/// The result of an operation that succeeded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Nothing more to say.
    Done,
    /// A session has begun, or goes on.
    Attached {
        /// By which a lost connection is resumed.
        key: SessionKey,
        /// Whether the export refuses changes.
        read_only: bool,
        /// What is left of the session that the client wanted to go on with.
        resumed: Resumed,
        /// Whether requests are executed as the users that they name, or all as the server's user.
        identities: bool,
        /// Names the time since the server's host has started: what was not synchronised before may be lost.
        boot: [u8; 16],
    },
    /// Attributes.
    Attributes(Attributes),
    /// An open file.
    Opened {
        /// Its number.
        file: u32,
        /// Its attributes.
        attributes: Attributes,
        /// Why it uses the server's page cache, although it is open with `O_DIRECT`.
        cached: Option<Cached>,
    },
    /// Bytes that were written or copied, bytes of the whole value, or a position.
    Count(u64),
    /// A lock.
    Lock(LockRange),
    /// Space.
    Space(Space),
}

/// What is left of a session with which a client goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resumed {
    /// Nothing: this is another session. What was asked for in the one before may have been executed.
    Nothing,
    /// The answers to its last requests: none is executed twice. Its files are closed, and its locks released.
    Answers,
    /// All of it.
    Whole,
}

/// Why a file that is open with `O_DIRECT` is read and written through the server's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cached {
    /// Its server was told so.
    Ignored,
    /// Its file system is in memory.
    InMemory,
    /// Its file system has no direct I/O.
    NoDirectIo,
    /// Its file system has none for this file.
    NoneForIt,
    /// Its file system wants other units than the server uses.
    Units {
        /// Bytes of which offsets would be multiples.
        block: u32,
        /// Bytes of which addresses would be multiples.
        memory: u32,
    },
    /// It could not be opened with `O_DIRECT`: the number of the error.
    Refused(i32),
}

impl fmt::Display for Cached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Ignored => f.write_str("its server has --ignore-o-direct"),
            Self::InMemory => f.write_str("its file system is in memory"),
            Self::NoDirectIo => f.write_str("its file system has no direct I/O"),
            Self::NoneForIt => f.write_str("its file system has no direct I/O for it"),
            Self::Units { block, memory } => {
                write!(f, "its file system wants direct I/O in units of {block} bytes, at addresses of {memory}")
            }
            Self::Refused(errno) => {
                let error = std::io::Error::from_raw_os_error(errno);
                write!(f, "it could not be opened with O_DIRECT: {error}")
            }
        }
    }
}

/// What identifies a session. Only its client and its server know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SessionKey(pub [u8; 16]);

/// What a client must not use any more if it has cached it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice<'a> {
    /// The attributes of a file have changed, and with its times and length its content.
    Attributes {
        /// Its device on the server.
        device: u64,
        /// Its number there.
        inode: u64,
    },
    /// A name was removed, or names another file.
    Name {
        /// Its path.
        #[serde(with = "serde_bytes")]
        path: &'a [u8],
    },
}

/// Longest notice with its number, bytes.
pub const MAX_NOTICE_BYTES: usize = MAX_PATH_BYTES + 32;

/// How the content of a file is divided among exports (the RAID-0 pattern): its first unit is in the file itself, the second one in the first of the other
/// exports, and so on in turn. In each export a unit is at the offset that it has in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Names the file in the other exports.
    pub id: [u8; 16],
    /// Bytes of a unit, at least [`Layout::MIN_UNIT_BYTES`].
    pub unit: u32,
    /// The other exports, as `NAME` or `HOST:NAME`: 1 to [`MAX_STRIPES`]` - 1`.
    pub others: Vec<String>,
}

impl Layout {
    /// Smallest unit, bytes.
    pub const MIN_UNIT_BYTES: u32 = 4096;

    /// The layout in bytes that a peer or a file has given. `None`: it is none, or one that cannot be used.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let layout: Self = postcard::from_bytes(bytes).ok()?;
        layout.is_usable().then_some(layout)
    }

    /// Whether numbers are within their limits, and names are such.
    pub fn is_usable(&self) -> bool {
        // The names may be a peer's: they become parts of paths.
        let is_name = |name: &str| check_name("export", name).is_ok();
        let is_export = |export: &String| match export.split_once(':') {
            Some((host, name)) => is_name(host) && is_name(name),
            None => is_name(export),
        };
        self.unit >= Self::MIN_UNIT_BYTES
            && (1..MAX_STRIPES).contains(&self.others.len())
            && self.others.iter().all(is_export)
    }
}

/// A moment, since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Time {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds, below 10^9.
    pub nanoseconds: u32,
}

/// Attributes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Attributes {
    /// The device on the server; one export may contain several.
    pub device: u64,
    /// The number of the file on its device.
    pub inode: u64,
    /// Type and permissions, as `st_mode` of Linux.
    pub mode: u32,
    /// Names of the file.
    pub links: u32,
    /// Owner.
    pub user: u32,
    /// Group.
    pub group: u32,
    /// The device that a device file stands for.
    pub represents: u64,
    /// Length, bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Bytes of the best transfers.
    pub block_size: u32,
    /// Last access.
    pub accessed: Time,
    /// Last change of the content.
    pub modified: Time,
    /// Last change of content or attributes.
    pub changed: Time,
}

/// A moment to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetTime {
    /// The server's present time.
    Now,
    /// This moment.
    At(Time),
}

/// A change of attributes: what is `None` stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Change {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub user: Option<u32>,
    /// Group.
    pub group: Option<u32>,
    /// Length, bytes.
    pub size: Option<u64>,
    /// Last access.
    pub accessed: Option<SetTime>,
    /// Last change of the content.
    pub modified: Option<SetTime>,
}

bitflags! {
    /// How a file is opened.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    pub struct OpenFlags: u32 {
        /// It is read.
        const READ = 1;
        /// It is written.
        const WRITE = 1 << 1;
        /// Each write goes to the end of the file.
        const APPEND = 1 << 2;
        /// It is made if it does not exist.
        const CREATE = 1 << 3;
        /// With `CREATE`: it must not exist.
        const EXCLUSIVE = 1 << 4;
        /// Its content is removed.
        const TRUNCATE = 1 << 5;
        /// It must be a directory.
        const DIRECTORY = 1 << 6;
        /// A write is done when it is on the disk (`O_SYNC`).
        const SYNC = 1 << 7;
        /// A file without a name, in the directory at the path (`O_TMPFILE`).
        const TMPFILE = 1 << 8;
        /// It is read to be executed, for which the permission to execute it is enough.
        const EXECUTE = 1 << 9;
        /// It was open at a server that was restarted: its owner may go on, whatever the permissions of the file are.
        const AGAIN = 1 << 10;
        /// It is read and written past the server's page cache, where its file system can do that (`O_DIRECT`).
        const DIRECT = 1 << 11;
        /// It is neither read nor written (`O_PATH`): it is kept, to be opened or to have its attributes used, whatever becomes of its name. It may be of any type.
        const LOCATE = 1 << 12;
        /// What a read-only export refuses.
        const CHANGES = Self::WRITE.bits() | Self::CREATE.bits() | Self::TRUNCATE.bits() | Self::TMPFILE.bits() | Self::APPEND.bits();
    }

    /// How a name is replaced.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    pub struct RenameFlags: u32 {
        /// The new name must not exist.
        const NO_REPLACE = 1;
        /// Both names exist and are exchanged.
        const EXCHANGE = 1 << 1;
    }
}

impl OpenFlags {
    /// The flags of a file whose writes all have a place.
    pub fn positioned(self) -> Self {
        if self.contains(Self::APPEND) { (self - Self::APPEND) | Self::WRITE } else { self }
    }
}

/// How a range of bytes is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockKind {
    /// Not at all.
    Unlocked,
    /// Others may have shared locks.
    Shared,
    /// No other owner has a lock.
    Exclusive,
}

/// Whether a program waits for a lock. The protocol has no request that waits: the client asks again, and the request keeps its place among others meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockWait {
    /// It does not wait.
    No,
    /// It waits for a lock that belongs to a process, which must not wait for itself.
    OfProcess,
    /// It waits for a lock that belongs to an open file. Whether it would wait for itself cannot be known.
    OfOpenFile,
    /// It does not wait: it had the lock before the session's files ended, or at a server before. ESTALE: another client may have had the lock since.
    Again,
}

/// A lock on a range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRange {
    /// How.
    pub kind: LockKind,
    /// First byte.
    pub start: u64,
    /// Last byte; `i64::MAX` and more: to the end, however long the file becomes.
    pub end: u64,
    /// The process that holds it, for [`Operation::TestLock`].
    pub process: u32,
}

/// Space of a file system, as statfs(2) reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Bytes of a block.
    pub block_size: u32,
    /// All blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Free blocks that users other than root may have.
    pub available: u64,
    /// All files.
    pub files: u64,
    /// Files that may still be made.
    pub files_free: u64,
    /// Longest name, bytes.
    pub name_length: u32,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry<'a> {
    /// With which [`Operation::Readdir`] goes on behind this entry.
    pub cookie: u64,
    /// The number of the file.
    pub inode: u64,
    /// Its type, as the upper bits of `st_mode`; 0: not known.
    pub kind: u32,
    /// Its name.
    #[serde(with = "serde_bytes")]
    pub name: &'a [u8],
    /// Its attributes, if they were asked for and it still exists.
    pub attributes: Option<Attributes>,
}

/// Takes the request from the front of a message; the rest is data of the request. `None`: it is no request.
pub fn parse_request(message: &[u8]) -> Option<(Request<'_>, &[u8])> {
    postcard::take_from_bytes(message).ok()
}

/// The number and the notice in a message. `None`: it is none.
pub fn parse_notice(message: &[u8]) -> Option<(u32, Notice<'_>)> {
    postcard::from_bytes(message).ok()
}

/// The number in an acknowledgement. `None`: it is none.
pub fn parse_acknowledgement(message: &[u8]) -> Option<u32> {
    postcard::from_bytes(message).ok()
}

/// The answer in the headers of a message. `None`: it is none.
pub fn parse_answer(headers: &[u8]) -> Option<Answer> {
    postcard::from_bytes(headers).ok()
}

/// The entries of a listing, up to the first that is damaged.
pub fn entries(mut listing: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    std::iter::from_fn(move || {
        let (entry, rest) = postcard::take_from_bytes(listing).ok()?;
        listing = rest;
        Some(entry)
    })
}

/// Writes `value` to the end of `bytes`.
pub fn append(value: &impl Serialize, bytes: &mut Vec<u8>) {
    // Writing to memory does not fail, and every type here has a known length.
    let written = postcard::to_extend(value, std::mem::take(bytes));
    *bytes = written.unwrap_or_default();
}
