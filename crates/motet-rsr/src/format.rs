//! The format of a sender's data: byte order and size of C's `long`. Data are converted at the receiver, and only where the two differ.
//!
//! This file and those of buffers use the standard library only, so a test compiles them for a big-endian machine.

use std::fmt;

/// How a sender lays out numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// The most significant byte is first.
    pub big_endian: bool,
    /// Bytes of C's `long`: 4 or 8.
    pub long: u8,
}

/// Bit of the tag: big-endian.
const BIG_ENDIAN: u8 = 1;
/// Bit of the tag: `long` has 4 bytes.
const SHORT_LONG: u8 = 2;

impl Format {
    /// The format of this machine.
    pub const HERE: Self =
        Self { big_endian: cfg!(target_endian = "big"), long: if cfg!(target_pointer_width = "64") { 8 } else { 4 } };

    /// The byte that stands for it in a request.
    pub fn tag(self) -> u8 {
        (if self.big_endian { BIG_ENDIAN } else { 0 }) | (if self.long == 4 { SHORT_LONG } else { 0 })
    }

    /// The format of a byte that a peer has sent.
    pub fn of_tag(tag: u8) -> Result<Self, Malformed> {
        if tag & !(BIG_ENDIAN | SHORT_LONG) != 0 {
            return Err(Malformed("an unknown format of data"));
        }
        Ok(Self { big_endian: tag & BIG_ENDIAN != 0, long: if tag & SHORT_LONG != 0 { 4 } else { 8 } })
    }

    /// Whether numbers have to be swapped here.
    pub fn is_foreign(self) -> bool {
        self.big_endian != Self::HERE.big_endian
    }
}

/// Bytes of a peer that are not what they should be: what is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}
