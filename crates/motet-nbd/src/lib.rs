//! Blocks: an NBD server (Network Block Device, <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>) whose storage is a file of an export.
//! Programs that speak NBD use the file as a disk: `qemu`, `nbdcopy`, `nbdfuse`, the kernel.
//!
//! | module | what |
//! | --- | --- |
//! | [`wire`] | the formats of the protocol, parsed as bytes of a hostile client |
//! | [`negotiation`] | the handshake: which export, with which options |
//! | [`blocks`] | what a disk must be able to do |
//! | [`exported_file`] | a disk that is a file of an export |
//! | `receiver` | requests of a connection, as they arrive |
//! | `replies` | replies of a connection, and the order of their parts |
//! | `connection` | one connection after the handshake: its threads |
//! | `stream` | a Unix socket or a TCP connection |
//! | [`server`] | the sockets, and the connections |
//!
//! The connection is not encrypted, and clients do not say who they are: a Unix socket is open to its user alone, a TCP port to everybody who reaches it.
#![forbid(unsafe_code)]

pub mod blocks;
mod connection;
pub mod exported_file;
pub mod negotiation;
mod receiver;
mod replies;
pub mod server;
mod stream;
pub mod wire;
