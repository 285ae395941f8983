//! Memory formats of messages: the FIFO of one direction, and the stats page of a node.

pub mod fifo;
pub mod stats;
