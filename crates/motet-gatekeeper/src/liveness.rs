//! The end of a process, which the kernel reports through a pidfd at once.

use crate::hidden;
use motet_session::process::Process;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A process that cannot be watched, for lack of descriptors, is checked at this interval.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Waits until a process has ended; returns at once if it does not run. One of another PID namespace has to be connected.
pub async fn ended(process: Process) {
    if process.pid == hidden::NUMBER {
        return hidden::ended(process).await;
    }
    while let Err(error) = watch(process).await {
        if error == Errno::SRCH {
            return;
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
        if !process.is_running() {
            return;
        }
    }
}

async fn watch(process: Process) -> Result<(), Errno> {
    let pidfd = open(process)?;
    #[allow(deprecated)] // unsound for types that close their descriptor early; an OwnedFd does not
    let pidfd = AsyncFd::with_interest(pidfd, Interest::READABLE).map_err(|_| Errno::MFILE)?;
    // The descriptor may belong to a later process of this id; the start time tells.
    if process.is_running() {
        drop(pidfd.readable().await.map_err(|_| Errno::MFILE)?);
    }
    Ok(())
}

/// Sends a process a signal. One that has ended gets none.
pub fn signal(process: Process, signal: Signal) {
    if let Ok(pidfd) = open(process)
        && process.is_running()
    {
        let _ = pidfd_send_signal(&pidfd, signal);
    }
}

fn open(process: Process) -> Result<OwnedFd, Errno> {
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    pidfd_open(pid, PidfdFlags::empty())
}
