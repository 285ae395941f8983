//! The formats of the protocol. All integers are big-endian. Nothing here does I/O; what a client sends is checked before it is used.

mod options;
mod requests;

pub use options::{
    ClientFlags, InfoRequest, MAX_OPTION_BYTES, OPTION_HEADER_BYTES, OptionHeader, OptionKind, OptionReply, Problem,
    append_export, append_greeting, append_option_reply, parse_client_flags, parse_info_request, parse_meta_request,
};
pub use requests::{
    ChunkKind, Command, CommandFlags, ExportLimits, MAX_PAYLOAD_BYTES, REQUEST_HEADER_BYTES, Request, append_chunk,
    append_simple_reply, error_number, errors,
};

use bitflags::bitflags;

/// The name of the one metadata context there is: which parts of an export are holes.
pub const ALLOCATION_CONTEXT: &str = "base:allocation";
/// The number by which replies name that context.
pub const ALLOCATION_CONTEXT_ID: u32 = 1;

bitflags! {
    /// What an export can do, as the handshake tells it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ExportFlags: u16 {
        /// Always set.
        const HAS_FLAGS = 1;
        /// Changes are refused.
        const READ_ONLY = 1 << 1;
        /// There is `Flush`.
        const FLUSH = 1 << 2;
        /// There is the flag `FUA`.
        const FUA = 1 << 3;
        /// There is `Trim`.
        const TRIM = 1 << 5;
        /// There is `WriteZeroes`.
        const WRITE_ZEROES = 1 << 6;
        /// There is the flag `DF`.
        const DF = 1 << 7;
        /// A flush on one connection covers writes on all.
        const MULTI_CONN = 1 << 8;
        /// There is `Cache`.
        const CACHE = 1 << 10;
        /// There is the flag `FAST_ZERO`.
        const FAST_ZERO = 1 << 11;
    }
}

/// An integer from the front of `bytes`, which moves on behind it.
fn take_u16(bytes: &mut &[u8]) -> Option<u16> {
    let (number, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u16::from_be_bytes(*number))
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    let (number, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_be_bytes(*number))
}

fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    let (number, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_be_bytes(*number))
}

/// A string behind its length of 32 bits.
fn take_string<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(take_u32(bytes)?).ok()?;
    let (string, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(string)
}
