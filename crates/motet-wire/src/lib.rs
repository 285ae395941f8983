//! Motet's memory formats.
//!
//! What it is: the layout of everything that two processes (or one process and `motet ps`) read in common, and the
//! few atomic operations on it: the [`gate`] of one direction of a stream, the byte [`ring`] behind it, the [`slot`]
//! that holds both directions, the [`segment`] that holds slots, the [`record`] of a stream's own side and the
//! [`node`] file that holds records; the [`lane`], one direction of messages; and [`shared`], the
//! memory of a region, whose content is the programs' own; and the [`sheet`] on which a node of messages tells `motet why` of itself.
//!
//! What it is not: no system calls, no clock, no policy. Whoever maps the memory hands in a pointer and vouches for it.
//!
//! Everything here that a peer can write is treated as hostile: indices are compared with private copies, lengths are
//! bounded before use, and nothing read from a segment is ever a pointer.

pub mod copy;
pub mod mapping;
pub mod message;
pub mod shared_memory;
pub mod stream;
pub mod sync;
