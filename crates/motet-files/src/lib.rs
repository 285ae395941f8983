//! Remote files: a server exports a directory, clients on the same host or on others use it. Both speak over messages of the engine, so the fastest path
//! between the two processes carries the data.
//!
//! | module | what |
//! | --- | --- |
//! | [`protocol`] | requests, answers and their limits |
//! | [`exports`] | how clients find a server: a socket in a private directory |
//! | [`accepting`] | loops that accept connections |
//! | [`uses`] | which processes of this host use which exports |
//! | [`server`] | the server of one export |
//! | [`client`] | the client that every front end uses |
//! | [`identity`] | as whom requests are executed |
//! | `storage` | operations on the exported files |
//!
//! A client has a *session* with a server. A session has slots as those of NFSv4.1 (RFC 8881, section 2.10.6): a slot carries one request at a time, and
//! the server keeps the last answer of each slot, so that a request that is sent again after a lost connection is not executed twice.
#![forbid(unsafe_code)]

pub mod accepting;
pub mod client;
pub mod exports;
pub mod identity;
mod locked_ranges;
pub mod protocol;
pub mod server;
mod storage;
pub mod uses;

/// What this crate returns for errors. [`std::io::Error::raw_os_error`] is the error number of the system.
pub type Result<T> = std::io::Result<T>;

/// An error of the engine as one of the system.
fn engine_error(error: motet::node::Error) -> std::io::Error {
    std::io::Error::from_raw_os_error(error.errno())
}
