//! The process at the other end of a stream, whose memory single copy reads and writes.
//!
//! It is held by a descriptor (pidfd), because its pid may be reused after it has ended. There is one descriptor for each peer process, however many
//! streams lead to it, and none before the first large block.

use motet_sys::fork_safe_mutex::ForkSafeMutex;
use motet_sys::private_fds::PrivateFd;
use motet_sys::thread;
use std::sync::{Arc, Mutex, Weak};

/// The process at the other end of one stream.
#[derive(Debug, Default)]
pub struct PeerProcess(ForkSafeMutex<Option<Arc<PrivateFd>>>);

static OPEN_PROCESSES: Mutex<Vec<(u32, Weak<PrivateFd>)>> = Mutex::new(Vec::new());

impl PeerProcess {
    /// Whether `pid` is the process that it was at the first call.
    pub fn is_still(&self, pid: u32) -> bool {
        let mut known = self.0.lock();
        if known.is_none() {
            *known = open(pid);
        }
        known.as_ref().is_some_and(|process| !thread::has_exited(&**process))
    }

    /// Releases the descriptor at the end of the stream.
    pub fn forget(&self) {
        self.0.lock().take();
    }
}

/// A pidfd of a process, shared by all streams to it. The table's lock is never waited for, so a forked child cannot wait for a lock that is never
/// released; a second thread opens a descriptor of its own.
fn open(pid: u32) -> Option<Arc<PrivateFd>> {
    let new = || thread::open_pidfd(pid).ok().map(|fd| Arc::new(PrivateFd::new(fd)));
    let Ok(mut table) = OPEN_PROCESSES.try_lock() else { return new() };
    table.retain(|(_, process)| process.strong_count() > 0);
    let known = table.iter().filter(|(number, _)| *number == pid).filter_map(|(_, process)| process.upgrade());
    if let Some(process) = known.into_iter().find(|process| !thread::has_exited(&**process)) {
        return Some(process);
    }
    let process = new()?;
    table.push((pid, Arc::downgrade(&process)));
    Some(process)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn process_is_opened_once_and_never_confused_with_successor() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let (one, other, late) = (PeerProcess::default(), PeerProcess::default(), PeerProcess::default());
        assert!(one.is_still(child.id()) && other.is_still(child.id()));
        let fd = |peer: &PeerProcess| peer.0.lock().clone().unwrap();
        assert!(Arc::ptr_eq(&fd(&one), &fd(&other)));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!one.is_still(child.id()) && !late.is_still(child.id()));
        // Whatever has that number from now on is not what these streams led to.
        assert!(!one.is_still(std::process::id()));
        one.forget();
        assert!(one.is_still(std::process::id()), "the record's next stream asks for itself");
    }
}
