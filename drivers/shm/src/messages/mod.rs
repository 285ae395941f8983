//! Links for messages: how two nodes of one host connect, and the memory that they share.
//!
//! [`connect`] has both sides of connection establishment, [`handshake`] the two messages of it, [`place`] where nodes find each other.

pub mod connect;
pub mod handshake;
pub mod place;
