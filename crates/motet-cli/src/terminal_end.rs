//! The end of the terminal under `motet top`: its window was closed, its connection broke, or the program that made it has ended.
//!
//! Reading from such a terminal gives end of file or EIO at once, again and again, and crossterm 0.29 goes on reading. Therefore a thread waits for the end,
//! without a processor's time, and ends the process if the loop of `top` does not.

use std::io::IsTerminal;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

/// The time for the loop to end by itself.
const GRACE: Duration = Duration::from_millis(500);
/// The exit code: as after SIGHUP.
const HUNG_UP: i32 = 128 + signal_hook::consts::SIGHUP;

/// Sets `asked` when the terminal of standard output, or of standard input, has ended; then ends the process.
pub fn watch(asked: &Arc<AtomicBool>) -> std::io::Result<()> {
    let (input, output) = (std::io::stdin(), std::io::stdout());
    let mut terminals: Vec<OwnedFd> = vec![rustix::io::fcntl_dupfd_cloexec(&output, 3)?];
    if input.is_terminal() {
        terminals.push(rustix::io::fcntl_dupfd_cloexec(&input, 3)?);
    }
    let asked = Arc::clone(asked);
    let wait = move || {
        wait_for_end(&terminals);
        asked.store(true, Ordering::Relaxed);
        std::thread::sleep(GRACE);
        std::process::exit(HUNG_UP);
    };
    std::thread::Builder::new().name("motet-terminal".to_owned()).spawn(wait).map(drop)
}

/// Returns when one of the terminals has ended.
fn wait_for_end(terminals: &[OwnedFd]) {
    loop {
        // Only the end is waited for: it is always reported, keys are not.
        let mut fds: Vec<_> = terminals.iter().map(|terminal| PollFd::new(terminal, PollFlags::empty())).collect();
        match poll(&mut fds, None) {
            Ok(_) if fds.iter().any(|fd| !fd.revents().is_empty()) => return,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
