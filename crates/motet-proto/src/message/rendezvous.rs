//! Rendezvous: messages that take more than one packet, at their sender and at their receiver.

mod payload;
pub(super) mod receiver;
pub(super) mod sender;

pub use payload::Payload;
