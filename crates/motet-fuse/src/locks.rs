//! Locks that a program waits for.
//!
//! The protocol has no request that waits. So a thread asks again until it has the lock, or the program that waits gets a signal.

use crate::handles::Handle;
use fuser::{Errno, ReplyEmpty};
use motet_files::protocol::LockRange;
use std::fs;
use std::io::ErrorKind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The first pause, and the longest one.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];

/// Answers when the lock is taken, in a thread of its own.
pub fn wait(handle: Arc<Handle>, owner: u64, range: LockRange, reply: ReplyEmpty) {
    let waiter = move || {
        let mut pause = PAUSES[0];
        loop {
            match handle.file.lock(owner, range) {
                Ok(()) => return reply.ok(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return reply.error(error.into()),
            }
            if has_signal(range.process) {
                return reply.error(Errno::EINTR);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(PAUSES[1]);
        }
    };
    // Without a thread the reply is dropped, which answers EIO.
    drop(thread::Builder::new().name("lock".to_owned()).spawn(waiter));
}

/// Whether a process is gone, or a signal waits for it that it does not block. The kernel keeps a program in its call until this answers, also one that is
/// killed.
fn has_signal(process: u32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{process}/status")) else { return true };
    let mask = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.and_then(|value| u64::from_str_radix(value.trim(), 16).ok()).unwrap_or(0)
    };
    (mask("SigPnd:") | mask("ShdPnd:")) & !mask("SigBlk:") != 0
}
