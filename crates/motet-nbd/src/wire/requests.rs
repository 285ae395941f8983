//! Requests after the handshake, and replies to them.

use super::{ExportFlags, take_u16, take_u32, take_u64};
use bitflags::bitflags;
use rustix::io::Errno;

const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Bytes of the header of a request.
pub const REQUEST_HEADER_BYTES: usize = 28;
/// Longest data of a read or a write, bytes. A client that announces a longer write is disconnected.
pub const MAX_PAYLOAD_BYTES: u32 = 32 << 20;

/// The error numbers of the protocol.
#[expect(missing_docs, reason = "they have the names of the protocol")]
pub mod errors {
    pub const EPERM: u32 = 1;
    pub const EIO: u32 = 5;
    pub const ENOMEM: u32 = 12;
    pub const EINVAL: u32 = 22;
    pub const ENOSPC: u32 = 28;
    pub const EOVERFLOW: u32 = 75;
    pub const ENOTSUP: u32 = 95;
    pub const ESHUTDOWN: u32 = 108;
}

/// The error number of the protocol for an error of the system.
pub fn error_number(error: &std::io::Error) -> u32 {
    match Errno::from_io_error(error) {
        Some(Errno::PERM | Errno::ACCESS | Errno::ROFS) => errors::EPERM,
        Some(Errno::NOMEM) => errors::ENOMEM,
        Some(Errno::INVAL) => errors::EINVAL,
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => errors::ENOSPC,
        Some(Errno::OPNOTSUPP) => errors::ENOTSUP,
        Some(Errno::SHUTDOWN) => errors::ESHUTDOWN,
        _ => errors::EIO,
    }
}

bitflags! {
    /// Flags of a request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct CommandFlags: u16 {
        /// Answered when the data are on the disk.
        const FUA = 1;
        /// Zeroes shall occupy space.
        const NO_HOLE = 1 << 1;
        /// The data of a read come in one chunk.
        const DF = 1 << 2;
        /// One extent is enough.
        const REQ_ONE = 1 << 3;
        /// Zeroes are written only if that is faster than a write.
        const FAST_ZERO = 1 << 4;
        /// Flags that do not exist.
        const _ = !0;
    }
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Data.
    Read,
    /// Takes the data behind the header.
    Write,
    /// All that was answered shall be on the disk.
    Flush,
    /// The data are not needed any more.
    Trim,
    /// The data will be needed soon.
    Cache,
    /// Zeroes.
    WriteZeroes,
    /// `NBD_CMD_BLOCK_STATUS`: the client asks which ranges are holes.
    BlockStatus,
}

/// The header of a request, as it was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Its flags.
    pub flags: CommandFlags,
    /// What it asks for, a number of the protocol.
    pub kind: u16,
    /// What its reply repeats.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

/// What a request is checked against.
#[derive(Debug, Clone, Copy)]
pub struct ExportLimits {
    /// Bytes of the export.
    pub size: u64,
    /// What it can do.
    pub flags: ExportFlags,
    /// The client has asked for the metadata context.
    pub has_status: bool,
}

impl Request {
    const READ: u16 = 0;
    const WRITE: u16 = 1;
    const DISCONNECT: u16 = 2;
    const FLUSH: u16 = 3;
    const TRIM: u16 = 4;
    const CACHE: u16 = 5;
    const WRITE_ZEROES: u16 = 6;
    const BLOCK_STATUS: u16 = 7;

    /// Reads a header. `None`: it is none, and what follows cannot be understood.
    pub fn parse(header: &[u8; REQUEST_HEADER_BYTES]) -> Option<Self> {
        let bytes = &mut &header[..];
        if take_u32(bytes)? != REQUEST_MAGIC {
            return None;
        }
        Some(Self {
            flags: CommandFlags::from_bits_retain(take_u16(bytes)?),
            kind: take_u16(bytes)?,
            cookie: take_u64(bytes)?,
            offset: take_u64(bytes)?,
            length: take_u32(bytes)?,
        })
    }

    /// The client ends the connection.
    pub fn is_disconnect(&self) -> bool {
        self.kind == Self::DISCONNECT
    }

    /// Its reply has data, so that its failure has the form of a structured reply.
    pub fn returns_data(&self) -> bool {
        matches!(self.kind, Self::READ | Self::BLOCK_STATUS)
    }

    /// It changes the disk.
    pub fn is_change(&self) -> bool {
        matches!(self.kind, Self::WRITE | Self::TRIM | Self::WRITE_ZEROES)
    }

    /// Bytes of data that follow the header. `None`: more than a client may send.
    pub fn payload(&self) -> Option<usize> {
        match self.kind {
            Self::WRITE if self.length > MAX_PAYLOAD_BYTES => None,
            Self::WRITE => usize::try_from(self.length).ok(),
            _ => Some(0),
        }
    }

    /// What is to be done, or the error number of the reply.
    pub fn check(&self, export: &ExportLimits) -> Result<Command, u32> {
        let (command, allowed) = match self.kind {
            Self::READ => (Command::Read, CommandFlags::DF),
            Self::WRITE => (Command::Write, CommandFlags::empty()),
            Self::FLUSH => (Command::Flush, CommandFlags::empty()),
            Self::TRIM => (Command::Trim, CommandFlags::empty()),
            Self::CACHE => (Command::Cache, CommandFlags::empty()),
            Self::WRITE_ZEROES => (Command::WriteZeroes, CommandFlags::NO_HOLE.union(CommandFlags::FAST_ZERO)),
            Self::BLOCK_STATUS => (Command::BlockStatus, CommandFlags::REQ_ONE),
            _ => return Err(errors::EINVAL),
        };
        if self.is_change() && export.flags.contains(ExportFlags::READ_ONLY) {
            return Err(errors::EPERM);
        }
        // Clients set FUA with any command.
        if !(self.flags - CommandFlags::FUA - allowed).is_empty() {
            return Err(errors::EINVAL);
        }
        if self.flags.contains(CommandFlags::DF) && !export.flags.contains(ExportFlags::DF) {
            return Err(errors::EINVAL);
        }
        let end = self.offset.checked_add(u64::from(self.length));
        if end.is_none_or(|end| end > export.size) {
            let is_write = matches!(command, Command::Write | Command::WriteZeroes);
            return Err(if is_write { errors::ENOSPC } else { errors::EINVAL });
        }
        match command {
            Command::Read if self.length > MAX_PAYLOAD_BYTES => Err(errors::EOVERFLOW),
            Command::Flush if (self.offset, self.length) != (0, 0) => Err(errors::EINVAL),
            Command::BlockStatus if !export.has_status || self.length == 0 => Err(errors::EINVAL),
            _ => Ok(command),
        }
    }
}

/// A reply without data; `error` 0: success.
pub fn append_simple_reply(cookie: u64, error: u32, to: &mut Vec<u8>) {
    to.extend_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    to.extend_from_slice(&error.to_be_bytes());
    to.extend_from_slice(&cookie.to_be_bytes());
}

/// A part of a structured reply.
#[derive(Debug, Clone, Copy)]
pub enum ChunkKind<'a> {
    /// This many bytes of data from this offset on; the data are not part of what is appended.
    Data(u64, u32),
    /// This many zeroes from this offset on.
    Hole(u64, u32),
    /// Lengths and states of extents, in the metadata context with this number.
    Status(u32, &'a [(u32, u32)]),
    /// Failure.
    Error(u32),
    /// Nothing more.
    None,
}

/// The header of a chunk of a structured reply, with all but data that were read.
pub fn append_chunk(cookie: u64, kind: &ChunkKind<'_>, is_last: bool, to: &mut Vec<u8>) {
    let mut header = |number: u16, length: u32| {
        to.extend_from_slice(&CHUNK_MAGIC.to_be_bytes());
        to.extend_from_slice(&u16::from(is_last).to_be_bytes());
        to.extend_from_slice(&number.to_be_bytes());
        to.extend_from_slice(&cookie.to_be_bytes());
        to.extend_from_slice(&length.to_be_bytes());
    };
    match *kind {
        ChunkKind::None => header(0, 0),
        ChunkKind::Data(offset, length) => {
            header(1, length.saturating_add(8));
            to.extend_from_slice(&offset.to_be_bytes());
        }
        ChunkKind::Hole(offset, length) => {
            header(2, 12);
            to.extend_from_slice(&offset.to_be_bytes());
            to.extend_from_slice(&length.to_be_bytes());
        }
        ChunkKind::Status(context, extents) => {
            header(5, u32::try_from(4 + 8 * extents.len()).unwrap_or(u32::MAX));
            to.extend_from_slice(&context.to_be_bytes());
            for (length, state) in extents {
                to.extend_from_slice(&length.to_be_bytes());
                to.extend_from_slice(&state.to_be_bytes());
            }
        }
        ChunkKind::Error(error) => {
            header(1 << 15 | 1, 6);
            to.extend_from_slice(&error.to_be_bytes());
            to.extend_from_slice(&0_u16.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPORT: ExportLimits = ExportLimits { size: 1 << 20, flags: ExportFlags::DF, has_status: true };

    fn request(kind: u16, offset: u64, length: u32) -> Request {
        Request { flags: CommandFlags::empty(), kind, cookie: 1, offset, length }
    }

    #[test]
    fn headers_are_read_as_they_are_written_down_in_the_protocol() {
        let mut bytes = vec![0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1];
        bytes.extend_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 2, 0]);
        let header: [u8; REQUEST_HEADER_BYTES] = bytes.try_into().expect("a header");
        let expected =
            Request { flags: CommandFlags::FUA, kind: 1, cookie: 0x0102_0304_0506_0708, offset: 1 << 32, length: 512 };
        assert_eq!(Request::parse(&header), Some(expected));
        assert_eq!(Request::parse(&[0; REQUEST_HEADER_BYTES]), None);
    }

    #[test]
    fn requests_outside_of_the_export_are_refused() {
        assert_eq!(request(0, (1 << 20) - 1, 1).check(&EXPORT), Ok(Command::Read));
        assert_eq!(request(0, 1 << 20, 1).check(&EXPORT), Err(errors::EINVAL));
        assert_eq!(request(0, u64::MAX, 1).check(&EXPORT), Err(errors::EINVAL));
        assert_eq!(request(1, 1 << 20, 1).check(&EXPORT), Err(errors::ENOSPC));
        assert_eq!(request(6, u64::MAX, u32::MAX).check(&EXPORT), Err(errors::ENOSPC));
        assert_eq!(request(3, 0, 1).check(&EXPORT), Err(errors::EINVAL));
        let large = ExportLimits { size: u64::MAX, ..EXPORT };
        assert_eq!(request(0, 0, MAX_PAYLOAD_BYTES + 1).check(&large), Err(errors::EOVERFLOW));
        assert_eq!(request(1, 0, MAX_PAYLOAD_BYTES + 1).payload(), None);
    }

    #[test]
    fn commands_and_flags_that_were_not_agreed_are_refused() {
        assert_eq!(request(8, 0, 0).check(&EXPORT), Err(errors::EINVAL));
        let fragmented = Request { flags: CommandFlags::DF, ..request(0, 0, 1) };
        assert_eq!(fragmented.check(&EXPORT), Ok(Command::Read));
        let simple = ExportLimits { flags: ExportFlags::empty(), has_status: false, ..EXPORT };
        assert_eq!(fragmented.check(&simple), Err(errors::EINVAL));
        assert_eq!(request(7, 0, 1).check(&simple), Err(errors::EINVAL));
        let unknown = Request { flags: CommandFlags::from_bits_retain(1 << 9), ..request(1, 0, 1) };
        assert_eq!(unknown.check(&EXPORT), Err(errors::EINVAL));
        let read_only = ExportLimits { flags: ExportFlags::READ_ONLY, ..EXPORT };
        assert_eq!(request(1, 0, 1).check(&read_only), Err(errors::EPERM));
        assert_eq!(request(4, 0, 1).check(&read_only), Err(errors::EPERM));
    }

    #[test]
    fn errors_of_the_system_become_those_of_the_protocol() {
        for (errno, expected) in
            [(Errno::ROFS, errors::EPERM), (Errno::DQUOT, errors::ENOSPC), (Errno::STALE, errors::EIO)]
        {
            assert_eq!(error_number(&errno.into()), expected);
        }
    }
}
