//! The limits of a process that serves files: what a client does must not end it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::SIGXFSZ;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Prepares this process to serve. A write beyond its limit on file sizes (`ulimit -f`) fails with EFBIG, for the client, and does not end the process. As many
/// descriptors may be open as the system allows: the usual limit of 1024 is for programs that use select(2).
pub fn prepare_to_serve() -> io::Result<()> {
    // A handler, and not SIG_IGN, which programs that this process starts would inherit.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    let limit = getrlimit(Resource::Nofile);
    // Where that is refused, the limit is what it was.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    Ok(())
}
