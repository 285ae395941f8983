//! Who runs: process and thread identity, scheduling.

use crate::Errno;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering};

static PID: AtomicU32 = AtomicU32::new(0);

/// This process, cached; [`forget_pid`] after a fork.
#[inline(always)]
pub fn pid() -> u32 {
    let known = PID.load(Ordering::Relaxed);
    if known != 0 { known } else { real_pid() }
}

/// Asks the kernel.
#[cold]
pub fn real_pid() -> u32 {
    let pid = rustix::process::getpid().as_raw_nonzero().get() as u32;
    PID.store(pid, Ordering::Relaxed);
    pid
}

/// To be called in a forked child.
pub fn forget_pid() {
    PID.store(0, Ordering::Relaxed);
}

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// How many forks lie between the process that loaded this library and ours.
#[inline(always)]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Begins the generation of a forked child.
///
/// # Safety
/// To be called in such a child only, by its only thread, while that holds no guard of a [`crate::fork_safe_mutex::Forkable`].
pub unsafe fn next_generation() {
    GENERATION.store((generation() + 1) & (u32::MAX >> 2), Ordering::Relaxed);
}

/// A token for this thread: the process in the high half, something unique in it in the low half.
#[inline(always)]
pub fn token() -> u64 {
    u64::from(pid()) << 32 | ((here() as u64 >> 4) & 0xffff_fffe) | 1
}

/// What is this thread's alone among those of its process, and not 0.
#[inline(always)]
pub fn here() -> usize {
    let thread: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: on x86-64 Linux the first word of the thread control block is its own address (System V psABI, TLS).
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) thread, options(nostack, readonly, preserves_flags))
    };
    #[cfg(target_arch = "aarch64")]
    // SAFETY: TPIDR_EL0 is readable from user space and unique to a thread of the process.
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) thread, options(nostack, nomem, preserves_flags))
    };
    thread
}

/// Whether the process of a token exists (and is visible to us).
pub fn exists(token: u64) -> bool {
    process_exists((token >> 32) as u32)
}

/// Whether a process exists.
pub fn process_exists(pid: u32) -> bool {
    match rustix::process::Pid::from_raw(pid as i32) {
        Some(pid) => rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH),
        None => false,
    }
}

/// What the kernel tells of a process with this number.
enum Told {
    /// There is none.
    Nothing,
    /// There is one.
    Exists,
    /// There is one, in this state, born then (clock ticks since the host was), with so much address space.
    Status { state: u8, born: u64, memory: u64 },
}

/// "/proc/PID/stat", put together without the formatting of the standard library, which takes much stack, and memory.
fn stat_of(pid: u32, path: &mut [u8; 24]) -> &CStr {
    let (mut digits, mut rest, mut count) = ([0; 10], pid, 0);
    while count == 0 || rest > 0 {
        digits[count] = b'0' + (rest % 10) as u8;
        rest /= 10;
        count += 1;
    }
    let text = b"/proc/".iter().chain(digits[..count].iter().rev()).chain(b"/stat\0");
    path.iter_mut().zip(text).for_each(|(to, &byte)| *to = byte);
    CStr::from_bytes_until_nul(path).unwrap_or_default()
}

fn told(pid: u32) -> Told {
    if !process_exists(pid) {
        return Told::Nothing;
    }
    let mut bytes = [0; 512];
    let mut read = || {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let mut path = [0; 24];
        let file = rustix::fs::open(stat_of(pid, &mut path), flags, Mode::empty())?;
        rustix::io::read(&file, &mut bytes)
    };
    let Ok(length) = read() else { return Told::Exists };
    // The name, in parentheses, may hold anything: fields are counted from behind it.
    let Some(end) = bytes[..length].iter().rposition(|&byte| byte == b')') else { return Told::Exists };
    let fields = String::from_utf8_lossy(&bytes[end + 1..length]);
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next().and_then(|state| state.bytes().next());
    let mut number = |skip| fields.nth(skip).and_then(|field| field.parse().ok());
    match (state, number(18), number(0)) {
        (Some(state), Some(born), Some(memory)) => Told::Status { state, born, memory },
        _ => Told::Exists,
    }
}

/// When the process with this number was born, in clock ticks since the host was: tells it from a later one with its number.
/// 0 when the kernel does not say; `None` when there is none, or it has ended and waits for its parent.
pub fn born(pid: u32) -> Option<u64> {
    match told(pid) {
        Told::Nothing | Told::Status { state: b'Z' | b'X', .. } => None,
        Told::Exists => Some(0),
        Told::Status { born, .. } => Some(born),
    }
}

/// Whether a process has ended, or is about to: its memory is gone, its descriptors may still be open for a moment.
pub fn is_dying(pid: u32) -> bool {
    match told(pid) {
        Told::Nothing => true,
        Told::Exists => false,
        Told::Status { state, memory, .. } => matches!(state, b'Z' | b'X') || memory == 0,
    }
}

/// A descriptor of a process (pidfd): unlike its number it never means another one.
pub fn open_process(pid: u32) -> Result<OwnedFd, Errno> {
    let pid = rustix::process::Pid::from_raw(pid as i32).ok_or(rustix::io::Errno::SRCH.raw_os_error())?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).map_err(|e| e.raw_os_error())
}

/// A duplicate of the descriptor that a process has of the socket with this inode. `None` where it has none, where the kernel does not
/// let this process look into that one (ptrace access rules), or where there is no /proc. Allocates nothing.
pub fn socket_of(process: impl AsFd, pid: u32, inode: u32) -> Option<OwnedFd> {
    let mut path = [0u8; 32];
    let folder = rustix::fs::open(
        print(&mut path, format_args!("/proc/{pid}/fd"))?,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()?;
    let mut wanted = [0u8; 32];
    let wanted = print(&mut wanted, format_args!("socket:[{inode}]"))?;
    let mut entries = [std::mem::MaybeUninit::uninit(); 2048];
    let mut entries = rustix::fs::RawDir::new(&folder, &mut entries);
    while let Some(Ok(entry)) = entries.next() {
        let mut target = [std::mem::MaybeUninit::uninit(); 64];
        if let Ok((target, _)) = rustix::fs::readlinkat_raw(&folder, entry.file_name(), &mut target[..])
            && &*target == wanted.to_bytes()
        {
            let number = entry.file_name().to_str().ok()?.parse().ok()?;
            return rustix::process::pidfd_getfd(process, number, rustix::process::PidfdGetfdFlags::empty()).ok();
        }
    }
    None
}

/// Formats into a buffer; `None` when it is too short.
fn print<'a>(buffer: &'a mut [u8], text: std::fmt::Arguments<'_>) -> Option<&'a std::ffi::CStr> {
    use std::io::Write;
    let mut rest = &mut *buffer;
    write!(rest, "{text}\0").ok()?;
    std::ffi::CStr::from_bytes_until_nul(buffer).ok()
}

/// Whether the process of such a descriptor has ended. While it has not, its number is its own.
pub fn has_exited(process: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::new(&process, PollFlags::IN)];
    // A signal may end even a poll that does not wait.
    rustix::io::retry_on_intr(|| poll(&mut polled, Some(&Timespec::default()))) != Ok(0)
}

/// Starts a thread on which no handler of the program's ever runs: all signals are blocked there from its first instruction on.
/// It has `stack` bytes of stack.
pub fn spawn_without_signals(name: &str, stack: usize, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let all = u64::MAX;
    let mut before = 0u64;
    let change = |set: &u64, old: Option<&mut u64>| {
        let old = old.map_or(std::ptr::null_mut(), std::ptr::from_mut);
        // SAFETY: both are signal sets of the kernel's size, 8 bytes, or null.
        unsafe { syscalls::syscall!(syscalls::Sysno::rt_sigprocmask, SIG_SETMASK, std::ptr::from_ref(set), old, 8) }
    };
    change(&all, Some(&mut before)).map_err(|e| std::io::Error::from_raw_os_error(e.into_raw()))?;
    let spawned = std::thread::Builder::new().name(name.into()).stack_size(stack).spawn(body);
    let _ = change(&before, None);
    spawned.map(|_| ())
}

const SIG_SETMASK: usize = 2;

/// Sleeps for about so long; a signal ends it.
pub fn nap(ns: u64) {
    let time = rustix::time::Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ };
    let _ = rustix::thread::nanosleep(&time);
}

/// Sleeps for about so long, in the place of a call of the program's: false when a signal handler ran that ends such a call with EINTR. The kernel
/// does not say which handler it was: where one without SA_RESTART is installed, it may have been that one.
pub fn rest(ns: u64) -> bool {
    let time = rustix::time::Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ };
    !matches!(rustix::thread::nanosleep(&time), rustix::thread::NanosleepRelativeResult::Interrupted(_))
        || !(1..=SIGNALS).any(|signal| ends_calls(action(signal)))
}

/// How many signals there are.
const SIGNALS: usize = 64;
const SA_RESTART: u64 = 0x1000_0000;

/// The first two words of the kernel's `struct sigaction`: handler and flags. Nothing where it does not say.
fn action(signal: usize) -> [u64; 2] {
    let mut action = [0u64; 4];
    // SAFETY: the kernel writes a struct sigaction of 32 bytes, its mask of 8 included, into as many.
    let asked = unsafe {
        syscalls::syscall!(
            syscalls::Sysno::rt_sigaction,
            signal,
            std::ptr::null::<u64>(),
            std::ptr::from_mut(&mut action),
            size_of::<u64>()
        )
    };
    asked.map_or([0; 2], |_| [action[0], action[1]])
}

/// Whether a handler (0 and 1 are SIG_DFL and SIG_IGN) ends calls that it interrupts.
fn ends_calls([handler, flags]: [u64; 2]) -> bool {
    handler > 1 && flags & SA_RESTART == 0
}

/// Lets another thread run here.
pub fn yield_now() {
    rustix::thread::sched_yield();
}

/// How often the kernel has put another thread in this one's place while this one could have run on. A virtual CPU that its host takes
/// away for a time does not count. `None`: the kernel does not say.
pub fn displaced() -> Option<u64> {
    /// Of this thread, not of the process.
    const RUSAGE_THREAD: usize = 1;
    // `struct rusage`: two times of two words, and 14 counts, of which this is the last.
    let mut usage = [0u64; 18];
    // SAFETY: the kernel writes one `struct rusage`, of the size of the array.
    let asked = unsafe { syscalls::syscall!(syscalls::Sysno::getrusage, RUSAGE_THREAD, usage.as_mut_ptr()) };
    asked.ok().map(|_| usage[17])
}

/// The effective user.
pub fn euid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_that_end_calls_are_told_apart() {
        assert!(ends_calls([0x1000, 0]) && !ends_calls([0x1000, SA_RESTART]));
        assert!(![0, 1].into_iter().any(|none| ends_calls([none, 0])), "SIG_DFL and SIG_IGN");
        // Rust's runtime ignores SIGPIPE, and has handlers for faults alone.
        let [pipe, segv] = [13, 11].map(action);
        assert!(pipe[0] == 1 && segv[0] > 1, "{pipe:?} {segv:?}");
        assert!(rest(1000), "nothing interrupts it");
    }

    #[test]
    fn the_kernels_words_of_a_process_are_where_its_number_says() {
        for pid in [0, 7, 10, 4194304, u32::MAX] {
            assert_eq!(stat_of(pid, &mut [0; 24]).to_str(), Ok(format!("/proc/{pid}/stat").as_str()));
        }
    }

    #[test]
    fn whoever_yields_to_another_thread_is_displaced() {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
        let everywhere = sched_getaffinity(None).unwrap();
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        sched_setaffinity(None, &here).unwrap();
        let (computes, before) = (std::sync::atomic::AtomicBool::new(true), displaced().unwrap());
        std::thread::scope(|scope| {
            // It inherits the one CPU.
            scope.spawn(|| {
                while computes.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let met = (0..1_000_000).any(|_| {
                yield_now();
                displaced().unwrap() > before
            });
            computes.store(false, Ordering::Relaxed);
            assert!(met);
        });
        sched_setaffinity(None, &everywhere).unwrap();
    }

    #[test]
    fn a_process_that_has_ended_is_gone_before_its_parent_asks() {
        let own = born(pid()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let birth = born(child.id()).unwrap();
        assert!(own > 0 && birth >= own);
        assert_eq!(born(child.id()), Some(birth), "the same later");
        child.kill().unwrap();
        while born(child.id()).is_some() {
            std::thread::yield_now();
        }
        assert!(process_exists(child.id()) && is_dying(child.id()), "a zombie, whose memory is gone");
        assert!(!is_dying(pid()));
        child.wait().unwrap();
        assert_eq!(born(child.id()), None);
    }

    #[test]
    fn a_process_that_has_exited_is_known_before_its_number_is_free() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let process = open_process(child.id()).unwrap();
        assert!(!has_exited(&process));
        drop(child.stdin.take());
        while !has_exited(&process) {
            yield_now();
        }
        assert!(process_exists(child.id()), "nobody has waited for it, so its number is still taken");
        child.wait().unwrap();
        assert!(has_exited(&process));
        assert!(open_process(0).is_err());
    }
}
