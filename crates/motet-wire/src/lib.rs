//! Motet's memory formats.
//!
//! What it is: the layout of all memory that two processes (or one process and `motet`) share, and the few atomic operations on it. For streams
//! ([`stream`]): the gate of one direction, the byte ring behind it, the slot that holds both directions, the segment that holds slots, the
//! record of a stream's own side, and the stats file that holds records. For messages ([`message`]): the FIFO of one direction, its payload
//! ring, and the stats page of a node. Stats file and stats page are tables ([`stats_table`]). For regions ([`shared_memory`]): bytes whose contents belong to the programs.
//!
//! What it is not: no system calls, no clock, no policy. The caller maps the memory and upholds the contract of [`mapping::Mapping::new`].
//!
//! Everything here that a peer can write is treated as hostile: indices are compared with private copies, lengths are bounded before use, and
//! nothing that is read from a segment is used as a pointer.

pub mod copy;
pub mod copy_mode;
pub mod mapping;
pub mod message;
pub mod shared_memory;
pub mod stats_table;
pub mod stream;
pub mod sync;
