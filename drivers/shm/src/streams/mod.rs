//! Wires for streams: which memory two processes share for one TCP connection.
//!
//! [`bootstrap`] finds the process at the other end of a connection and passes a memfd to it; [`offer`] has the two messages for that.
//! [`segment_table`] holds the segments that this process shares with each peer process, so that one more connection costs a slot only;
//! [`segment_pool`] is the one table of this process.

pub mod bootstrap;
pub mod offer;
pub mod segment_pool;
pub mod segment_table;
