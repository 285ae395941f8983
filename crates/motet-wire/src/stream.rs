//! Memory formats of streams: the gate of one direction, the ring behind it, the slot of a connection, the segment of slots, and what a process records of its own side.

pub mod gate;
pub mod record;
pub mod ring;
pub mod segment;
pub mod slot;
pub mod stats;
