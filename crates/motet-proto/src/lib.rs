//! The protocols of Motet: byte streams in [`stream`], messages and remote memory in [`message`].
//!
//! Both wait by the rules of [`spin_policy`] and choose by those of [`copy_mode`]. Neither makes a system call or reads a clock: bytes and time are arguments, so both ends of a connection are tested as a pair.

#![forbid(unsafe_code)]

pub mod copy_mode;
pub mod message;
pub mod spin_policy;
pub mod stream;

/// A system error number, positive.
pub type Errno = i32;

/// EAGAIN.
pub const EAGAIN: Errno = 11;
/// EINTR.
pub const EINTR: Errno = 4;
/// EBADF.
pub const EBADF: Errno = 9;
/// EPIPE.
pub const EPIPE: Errno = 32;
/// ECONNRESET.
pub const ECONNRESET: Errno = 104;
