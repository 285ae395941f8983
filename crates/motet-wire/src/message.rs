//! Memory formats of messages: the FIFO of one direction with its payload ring, and the stats page of a node.

pub mod fifo;
pub mod stats;
