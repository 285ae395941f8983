//! Locks that a program waits for.
//!
//! The protocol has no request that waits. So a thread asks again until it has the lock, or the program that waits gets a signal: at once when a program of this
//! mount has released something, and each 20 ms otherwise. The server keeps the place of the request among others.
//!
//! The kernel does not say which call a program waits in. `/proc` does, as far as this process may look there. It matters in two ways: only a process can be
//! found to wait for itself (fcntl(2), EDEADLK), and `flock` gives up the lock that it converts before it waits (flock(2)).

use crate::callers::has_signal;
use crate::handles::Handle;
use fuser::{Errno, ReplyEmpty};
use motet_files::client::call_for;
use motet_files::protocol::{LockRange, LockWait};
use std::fs;
use std::io::ErrorKind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The first pause, and the longest one.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];
/// How often, and with which pauses, a thread is looked at that has not gone to sleep yet.
const LOOKS: (u32, Duration) = (50, Duration::from_micros(200));

/// Locks and open files that programs of this mount have released: what those that wait look at.
#[derive(Debug, Default)]
pub struct Releases {
    count: Mutex<u64>,
    changed: Condvar,
}

/// A lock that a program waits for.
#[derive(Debug)]
pub struct Asked {
    /// Through this open file.
    pub handle: Arc<Handle>,
    /// Whose it will be.
    pub owner: u64,
    /// The lock.
    pub range: LockRange,
    /// The thread that waits.
    pub thread: u32,
}

/// The call in which a thread waits for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    /// `fcntl`, for a lock of the process; or it is not known.
    OfProcess,
    /// `fcntl`, for a lock of the open file description.
    OfOpenFile,
    /// `flock`.
    Flock,
}

impl Releases {
    fn count(&self) -> MutexGuard<'_, u64> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many releases there were.
    pub fn so_far(&self) -> u64 {
        *self.count()
    }

    /// Something may have been released.
    pub fn note(&self) {
        *self.count() += 1;
        self.changed.notify_all();
    }

    /// Waits until something was released since there were `seen` releases, at most for a time.
    pub fn wait(&self, seen: u64, limit: Duration) {
        let count = self.count();
        drop(self.changed.wait_timeout_while(count, limit, |count| *count == seen));
    }

    /// Answers when the lock is taken, in a thread of its own.
    pub fn wait_for(self: &Arc<Self>, asked: Asked, reply: ReplyEmpty) {
        let releases = Arc::clone(self);
        let waiter = move || {
            call_for(asked.thread);
            match releases.take(&asked) {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(error),
            }
        };
        // Without a thread the reply is dropped, which answers EIO.
        drop(thread::Builder::new().name("lock".to_owned()).spawn(waiter));
    }

    fn take(&self, asked: &Asked) -> Result<(), Errno> {
        let Asked { handle, owner, range, thread } = asked;
        let call = call_of(*thread);
        if call == Call::Flock {
            handle.file.release_locks(*owner)?;
            self.note();
        }
        let wait = if call == Call::OfProcess { LockWait::OfProcess } else { LockWait::OfOpenFile };
        let mut pause = PAUSES[0];
        loop {
            let seen = self.so_far();
            match handle.file.lock_for_waiter(*owner, *range, wait) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                taken => {
                    // One that was exclusive may be shared now.
                    self.note();
                    return Ok(taken?);
                }
            }
            if has_signal(*thread) {
                let _ = handle.file.stop_waiting(*owner, *range);
                self.note();
                return Err(Errno::EINTR);
            }
            self.wait(seen, pause);
            pause = (pause * 2).min(PAUSES[1]);
        }
    }
}

/// The call in which a thread waits.
fn call_of(thread: u32) -> Call {
    for _ in 0..LOOKS.0 {
        match fs::read_to_string(format!("/proc/{thread}/syscall")) {
            // It has asked and does not sleep yet.
            Ok(text) if text.starts_with("running") => thread::sleep(LOOKS.1),
            Ok(text) => return parse_call(&text),
            Err(_) => break,
        }
    }
    Call::OfProcess
}

/// The call in a line of `/proc/PID/syscall`: its number, and its arguments.
fn parse_call(text: &str) -> Call {
    let mut words = text.split_whitespace();
    let number = words.next().and_then(|word| word.parse::<i64>().ok());
    let command = words.nth(1).and_then(|word| i32::from_str_radix(word.trim_start_matches("0x"), 16).ok());
    match (number, command) {
        (Some(number), _) if number == libc::SYS_flock => Call::Flock,
        (Some(number), Some(libc::F_OFD_SETLKW)) if number == libc::SYS_fcntl => Call::OfOpenFile,
        _ => Call::OfProcess,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_of_a_thread_is_read() {
        let line = |number: i64, command: i32| format!("{number} 0x3 {command:#x} 0x7ffd0 0x0 0x0 0x0 0x7ffd0 0x7f0\n");
        assert_eq!(parse_call(&line(libc::SYS_flock, libc::LOCK_EX)), Call::Flock);
        assert_eq!(parse_call(&line(libc::SYS_fcntl, libc::F_SETLKW)), Call::OfProcess);
        assert_eq!(parse_call(&line(libc::SYS_fcntl, libc::F_OFD_SETLKW)), Call::OfOpenFile);
        assert_eq!(parse_call(&line(libc::SYS_read, libc::F_OFD_SETLKW)), Call::OfProcess);
        assert_eq!(parse_call(""), Call::OfProcess);
        assert_eq!(call_of(u32::MAX), Call::OfProcess);
    }
}
