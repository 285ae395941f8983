//! The programs whose calls wait in the mount, and whether they still do.
//!
//! The kernel keeps a program in its call until the mount answers, also one that was killed. What a call waits for is not to keep a program that is to end. So the
//! thread that has made a request is looked at in `/proc`, as far as this process may look there, and the connection to the kernel at its device.

use fuser::Request;
use motet_files::client::{UNATTENDED, call_for};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::fs;
use std::os::fd::OwnedFd;
use std::sync::Weak;

/// PF_EXITING: the thread ends, and closes its files.
const EXITING: u64 = 0x4;
/// Signals whose default action ends no program: SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH.
const HARMLESS: u64 = set(&[
    libc::SIGCHLD,
    libc::SIGCONT,
    libc::SIGSTOP,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGURG,
    libc::SIGWINCH,
]);
const KILL: u64 = set(&[libc::SIGKILL]);

/// A set of signals as `/proc` shows it.
const fn set(signals: &[i32]) -> u64 {
    let (mut all, mut at) = (0, 0);
    while at < signals.len() {
        all |= 1 << (signals[at] - 1);
        at += 1;
    }
    all
}

/// This thread serves a request of a program.
pub fn serve(request: &Request) {
    call_for(request.pid());
}

/// This thread serves a request that no program waits for.
pub fn serve_unattended() {
    call_for(UNATTENDED);
}

/// Whether what a thread waits for is to end; 0: not known which one. `device`: that of the mount.
pub fn has_ended(device: &Weak<OwnedFd>, thread: u32) -> bool {
    device.upgrade().is_none_or(|device| is_gone(&device)) || thread != 0 && thread != UNATTENDED && is_ending(thread)
}

/// Whether the connection to the kernel has ended: the file system is unmounted, or the connection was aborted.
pub fn is_gone(device: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(device, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok()
        && polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Whether a thread is gone or ends, or a signal waits for it that ends it.
fn is_ending(thread: u32) -> bool {
    let read = |name: &str| fs::read_to_string(format!("/proc/{thread}/{name}"));
    let (Ok(stat), Ok(status)) = (read("stat"), read("status")) else { return is_absent(thread) };
    flags(&stat) & EXITING != 0 || Signals::of(&status).end_it()
}

/// Whether there is no such thread. `/proc` may hide one of another user.
fn is_absent(thread: u32) -> bool {
    let thread = i32::try_from(thread).ok().and_then(Pid::from_raw);
    thread.is_none_or(|thread| test_kill_process(thread) == Err(Errno::SRCH))
}

/// Whether a thread is gone, or a signal waits for it that it does not block.
pub fn has_signal(thread: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{thread}/status"));
    status.map_or(true, |status| Signals::of(&status).unblocked() != 0)
}

/// The flags in `/proc/PID/stat`: the seventh field behind the name, which may have any characters.
fn flags(stat: &str) -> u64 {
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    fields.split_whitespace().nth(6).and_then(|flags| flags.parse().ok()).unwrap_or(0)
}

/// Signals in `/proc/PID/status`.
#[derive(Debug, Clone, Copy)]
struct Signals {
    pending: u64,
    blocked: u64,
    ignored: u64,
    caught: u64,
}

impl Signals {
    fn of(status: &str) -> Self {
        let set = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field));
            line.and_then(|value| u64::from_str_radix(value.trim(), 16).ok()).unwrap_or(0)
        };
        Self {
            pending: set("SigPnd:") | set("ShdPnd:"),
            blocked: set("SigBlk:"),
            ignored: set("SigIgn:"),
            caught: set("SigCgt:"),
        }
    }

    fn unblocked(self) -> u64 {
        self.pending & !self.blocked
    }

    /// Whether one of them ends the process: SIGKILL, or one whose default action does and that is neither caught, blocked nor ignored.
    fn end_it(self) -> bool {
        self.pending & KILL != 0 || self.unblocked() & !self.ignored & !self.caught & !HARMLESS != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended_by(signal: i32, [blocked, ignored, caught]: [&[i32]; 3]) -> bool {
        let status = format!(
            "Name:\tx\nSigQ:\t1/2\nSigPnd:\t0000000000000000\nShdPnd:\t{:016x}\nSigBlk:\t{:016x}\nSigIgn:\t{:016x}\nSigCgt:\t{:016x}\n",
            set(&[signal]),
            set(blocked),
            set(ignored),
            set(caught)
        );
        Signals::of(&status).end_it()
    }

    #[test]
    fn a_signal_ends_a_call_if_it_ends_the_program() {
        use libc::{SIGCHLD, SIGINT, SIGKILL, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGWINCH};
        for signal in [SIGKILL, SIGTERM, SIGINT, SIGQUIT, SIGUSR1, 64] {
            assert!(ended_by(signal, [&[], &[], &[]]), "{signal}");
        }
        for signal in [SIGCHLD, SIGTSTP, SIGWINCH] {
            assert!(!ended_by(signal, [&[], &[], &[]]), "{signal}");
        }
        for kept in [[&[SIGTERM][..], &[], &[]], [&[], &[SIGTERM], &[]], [&[], &[], &[SIGTERM]]] {
            assert!(!ended_by(SIGTERM, kept) && ended_by(SIGINT, kept) && ended_by(SIGKILL, kept));
        }
    }

    #[test]
    fn threads_that_live_do_not_end() {
        let own = std::process::id();
        assert!(!is_ending(own) && !has_signal(own));
        assert!(
            is_ending(i32::MAX.unsigned_abs()) && is_ending(u32::MAX - 1) && has_signal(u32::MAX - 1),
            "there is none"
        );
        assert_eq!(flags("7 (a) b) S 1 7 7 0 -1 4194308 99"), 4_194_308);
        assert_eq!(flags(""), 0);
    }
}
