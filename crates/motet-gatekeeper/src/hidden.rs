//! Processes that have no number in the PID namespace of the gatekeeper: those of another container.
//!
//! The kernel gives a pidfd of the process at the other end of a connection (`SO_PEERPIDFD`, Linux 6.5), and the inode of a pidfd is the same for
//! all pidfds of a process and for no other process until the host restarts (pidfs, Linux 6.9). So such a process has the number 0, which no process
//! has, and the inode in place of its start time. On older kernels it is refused.

use motet_session::process::Process;
use rustix::fd::{AsFd, AsRawFd};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

/// The number of a process that has none here.
pub const NUMBER: u32 = 0;
/// The most of them that are watched. Each takes a descriptor.
const MAX_WATCHED: usize = 4096;
/// The type of the file system of pidfds.
const PIDFS_MAGIC: u64 = 0x5049_4446;

/// Those that have connected and still run: when the value is gone, so is the process.
static RUNNING: Mutex<Option<HashMap<u64, watch::Receiver<()>>>> = Mutex::new(None);

/// The process at the other end of a connection, which has no number here. It is watched from now on.
pub fn peer(stream: &(impl AsFd + AsRawFd)) -> Option<Process> {
    let pidfd = motet_sys::socket::peer_process(stream.as_raw_fd()).ok()?;
    if u64::try_from(rustix::fs::fstatfs(&pidfd).ok()?.f_type).ok()? != PIDFS_MAGIC {
        return None;
    }
    let inode = rustix::fs::fstat(&pidfd).ok()?.st_ino;
    let mut running = lock();
    let running = running.get_or_insert_default();
    if !running.contains_key(&inode) {
        if running.len() >= MAX_WATCHED {
            return None;
        }
        #[allow(deprecated)] // unsound for types that close their descriptor early; an OwnedFd does not
        let pidfd = AsyncFd::with_interest(pidfd, Interest::READABLE).ok()?;
        let (alive, receiver) = watch::channel(());
        running.insert(inode, receiver);
        tokio::spawn(async move {
            let _ = pidfd.readable().await;
            if let Some(running) = lock().as_mut() {
                running.remove(&inode);
            }
            drop(alive);
        });
    }
    Some(Process { pid: NUMBER, started: inode })
}

/// Waits until such a process has ended. One that has not connected to this gatekeeper cannot be watched: that takes for ever.
pub async fn ended(process: Process) {
    let receiver = lock().as_ref().and_then(|running| running.get(&process.started).cloned());
    match receiver {
        Some(mut receiver) => while receiver.changed().await.is_ok() {},
        None => std::future::pending().await,
    }
}

fn lock() -> MutexGuard<'static, Option<HashMap<u64, watch::Receiver<()>>>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}
