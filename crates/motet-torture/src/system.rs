//! Fork, signal handlers, and resources of a process.
//!
//! This is the only file of the crate with `unsafe`.
#![allow(unsafe_code)]

use motet_sys::rustix::process::{Pid, Signal, kill_process};

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn sigaction(signal: i32, new: *const Action, old: *mut Action) -> i32;
}

/// `struct sigaction` of the C library on 64-bit Linux.
#[repr(C)]
struct Action {
    handler: usize,
    mask: [u64; 16],
    flags: i32,
    restorer: usize,
}

/// Forks a child that runs `body` and exits with its result, or with 101 after a panic. Nothing of the parent is dropped in the child.
pub fn fork_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs `body` and exits without returning. Tests choose what `body` calls; glibc makes its own locks usable in a child.
    let pid = unsafe { fork() };
    assert!(pid >= 0, "no fork");
    if pid == 0 {
        let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(101);
        // SAFETY: `_exit` only ends the child.
        unsafe { _exit(status) }
    }
    pid
}

/// Waits for a child. Returns its exit status, or minus the signal that ended it.
pub fn wait_child(pid: i32) -> i32 {
    let mut status = 0;
    loop {
        // SAFETY: `status` is writable.
        if unsafe { waitpid(pid, &raw mut status, 0) } == pid {
            break;
        }
    }
    if status & 0x7f == 0 { status >> 8 & 0xff } else { -(status & 0x7f) }
}

extern "C" fn nothing(_signal: i32) {}

/// Installs a handler that does nothing, so that a signal interrupts blocking calls.
pub fn interrupt_by(signal: Signal) {
    let handler = nothing as extern "C" fn(i32) as usize;
    let action = Action { handler, mask: [0; 16], flags: 0, restorer: 0 };
    // SAFETY: the handler does nothing, and the layout is the C library's; without SA_RESTART calls end with EINTR.
    let set = unsafe { sigaction(signal.as_raw(), &raw const action, std::ptr::null_mut()) };
    assert_eq!(set, 0, "no handler");
}

/// Sends a signal to a process.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = kill_process(pid, signal);
    }
}

/// The number of open descriptors of this process.
pub fn descriptors() -> usize {
    // One is the listing's own.
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1))
}

/// The number of open descriptors below 512, where a program's own descriptors are.
pub fn low_descriptors() -> usize {
    let numbers = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let low = numbers.filter(|entry| entry.file_name().to_string_lossy().parse().is_ok_and(|number: u32| number < 512));
    low.count().saturating_sub(1)
}

/// Proportional set size (Pss) of this process in bytes.
pub fn memory() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse::<usize>().ok()).unwrap_or(0) << 10
}

/// Names of abstract sockets of nodes on this host that contain `part`.
pub fn names(part: &str) -> Vec<String> {
    let text = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let of_nodes = text.lines().filter_map(|line| line.split_once("@motet/node/")).map(|(_, name)| name.to_owned());
    let mut names: Vec<_> = of_nodes.filter(|name| name.contains(part)).collect();
    names.sort();
    names.dedup(); // accepted connections have the listener's name
    names
}

/// A checksum of bytes (FNV-1a).
pub fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
