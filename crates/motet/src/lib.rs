//! Motet's Rust interface: byte streams between two processes, messages and remote memory between nodes.
//!
//! A [`Stream`] starts on a TCP connection that the caller made. When the process at the other end uses Motet too, on the same host, network
//! namespace and user, payload moves to shared memory and back as it pays; otherwise it stays on TCP. Nothing is added to the TCP stream.
//!
//! A [`node::Node`] sends and receives messages, and accesses memory of other nodes.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::net::{TcpListener, TcpStream};
//!
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let mut near = motet::Stream::connected(TcpStream::connect(listener.local_addr()?)?)?;
//! let mut far = motet::Stream::accepted(listener.accept()?.0)?;
//! near.write_all(b"hello")?;
//! let mut bytes = [0; 5];
//! far.read_exact(&mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Errors are `std::io::Error` with the system's error number kept ([`std::io::Error::raw_os_error`]).
#![deny(unsafe_code)] // except in node/borrowed_memory.rs

pub mod driver_table;
pub mod node;
pub mod peer_user;
pub mod stats;
mod stream;

pub use motet_engine::reason;
pub use stream::{Path, Stats, Stream, wait_any};

use motet_config::Environment;
use motet_engine::Engine;
use std::ffi::OsString;
use std::sync::OnceLock;

/// The environment that settings are read from, where that is not the process's present one.
static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();

/// Makes the settings come from these variables instead of the process's environment. False: the settings have been read already.
pub fn environment(variables: impl IntoIterator<Item = (OsString, OsString)>) -> bool {
    Engine::running().is_none() && ENVIRONMENT.set(Environment::with(variables)).is_ok()
}

/// The settings of environment and file.
fn config() -> motet_config::Config {
    ENVIRONMENT.get_or_init(Environment::of_this_process).load().config
}

/// The process's engine. The first call starts it with the settings of environment and file. `None`: the system has no memory for it.
pub fn engine() -> Option<&'static Engine> {
    match Engine::running() {
        Some(engine) => Some(engine),
        None => Engine::start(|| {
            let config = config();
            stats::prepare(&config);
            motet_sys::buffer_pool::set_limit(usize::try_from(config.pool).unwrap_or(usize::MAX));
            driver_table::options(config)
        }),
    }
}
