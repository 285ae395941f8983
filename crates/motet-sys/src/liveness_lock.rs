//! Detects whether a process is alive, by a lock on one byte of a file that the process holds as long as it lives.
//!
//! What it is: POSIX record locks. A lock belongs to one process: a forked child does not inherit it, and a kill, crash or exec releases
//! it. Unlike a process number it means the same in every PID namespace, and it is never reused by another process.
//!
//! What it is not: mutual exclusion; no call waits for a lock. A process loses its locks when it closes any descriptor of the file, so it
//! should have only one.

use crate::{Errno, errno};
use rustix::fd::{AsFd, AsRawFd};
use syscalls::{Sysno, syscall};

/// struct flock of the 64-bit Linux ABI.
#[repr(C)]
struct Flock {
    kind: i16,
    whence: i16,
    start: i64,
    length: i64,
    pid: i32,
}

const F_GETLK: usize = 5;
const F_SETLK: usize = 6;
const F_WRLCK: i16 = 1;
const F_UNLCK: i16 = 2;

fn fcntl(file: impl AsFd, command: usize, at: u64) -> Result<Flock, Errno> {
    let mut lock = Flock { kind: F_WRLCK, whence: 0, start: at as i64, length: 1, pid: 0 };
    // SAFETY: the kernel reads and writes one struct flock, which outlives the call.
    unsafe { syscall!(Sysno::fcntl, file.as_fd().as_raw_fd(), command, &raw mut lock) }.map_err(errno)?;
    Ok(lock)
}

/// Locks byte `at` for this process. Errors: another process has the lock (AGAIN or ACCES), or the file has no locks.
pub fn acquire(file: impl AsFd, at: u64) -> Result<(), Errno> {
    fcntl(file, F_SETLK, at).map(drop)
}

/// Whether another process holds the lock of byte `at`. True if the kernel does not say.
pub fn is_held_by_other(file: impl AsFd, at: u64) -> bool {
    fcntl(file, F_GETLK, at).map_or(true, |lock| lock.kind != F_UNLCK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn lock_is_held_until_its_process_is_killed() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let (path, file) = (named.path(), named.as_file());
        std::io::Write::write_all(&mut &*file, &[0; 64]).unwrap();
        let script = "import fcntl,sys,time\nf=open(sys.argv[1],'r+b')\nfcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB,1,7)\n\
                      print('there',flush=True)\ntime.sleep(100)";
        let mut other = Command::new("python3").args(["-c", script]).arg(path).stdout(Stdio::piped()).spawn().unwrap();
        BufReader::new(other.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        assert!(is_held_by_other(file, 7) && !is_held_by_other(file, 8));
        assert!(acquire(file, 7).is_err());
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(!is_held_by_other(file, 7));
        acquire(file, 7).unwrap();
        assert!(!is_held_by_other(file, 7), "the own lock is not another process's");
    }
}
