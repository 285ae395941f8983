//! Messages longer than a packet: rendezvous and long eager messages, at the sender and at the receiver.

mod payload;
pub(super) mod receiver;
pub(super) mod sender;

pub use payload::Payload;
