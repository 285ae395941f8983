//! Memory formats of streams: the gate of one direction, the ring behind it, the slot of a connection, the segment of slots, the record of a
//! stream's own side, and the stats file of records.

pub mod gate;
pub mod record;
pub mod ring;
pub mod segment;
pub mod slot;
pub mod stats;
