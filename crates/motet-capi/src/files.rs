//! Files of an export: `motet_file.h` over the client of the crate `motet-files`.
//!
//! What it is: translation. What it is not: it knows no rule of files.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`handles`] | clients, files and completion queues by handle |
//! | [`clients`] | connect, open; calls on one file |
//! | [`queues`] | batches and completion queues |
//! | [`abi`] | the C structs |

mod abi;
mod clients;
mod handles;
mod queues;

use crate::messages::node_handles::in_handler;
use crate::messages::{EDEADLK, Errno};
use std::io;

const EBUSY: Errno = 16;
const EIO: Errno = 5;

/// The errno of an error of files.
#[cold]
fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().unwrap_or(EIO)
}

/// Refuses calls that wait from within a message handler.
fn may_wait() -> Result<(), Errno> {
    if in_handler() { Err(EDEADLK) } else { Ok(()) }
}
