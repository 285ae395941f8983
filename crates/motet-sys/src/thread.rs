//! Process and thread identity, process liveness, sleeps and scheduling.

use crate::Errno;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Where [`pid`] is cached: a page that the kernel wipes in a forked child, also in one whose fork went past every handler. Until it is mapped:
/// [`UNMAPPED_PID`].
static PID: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const UNMAPPED_PID).cast_mut());
static UNMAPPED_PID: AtomicU32 = AtomicU32::new(0);

#[inline(always)]
fn cached_pid() -> &'static AtomicU32 {
    // SAFETY: a static, or a page that stays mapped. Both are valid as zeros.
    unsafe { &*PID.load(Ordering::Acquire) }
}

/// The number of this process, cached.
#[inline(always)]
pub fn pid() -> u32 {
    let known = cached_pid().load(Ordering::Relaxed);
    if known != 0 { known } else { real_pid() }
}

#[cold]
fn map_pid() {
    const SIZE: usize = 4096;
    let Ok(page) = crate::memory::map_anonymous(SIZE) else { return };
    let before = (&raw const UNMAPPED_PID).cast_mut();
    // SAFETY: the page was mapped just now, and nothing else refers to it.
    unsafe {
        if rustix::mm::madvise(page.cast(), SIZE, rustix::mm::Advice::LinuxWipeOnFork).is_err()
            || PID.compare_exchange(before, page.cast(), Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            crate::memory::unmap_anonymous(page, SIZE);
        }
    }
}

/// The number of this process, from the kernel. Updates the cache of [`pid`].
#[cold]
pub fn real_pid() -> u32 {
    if std::ptr::eq(cached_pid(), &UNMAPPED_PID) {
        map_pid();
    }
    let pid = rustix::process::getpid().as_raw_nonzero().get() as u32;
    cached_pid().store(pid, Ordering::Relaxed);
    pid
}

/// Clears the cache of [`pid`]. For a forked child, where the kernel may not wipe pages.
pub fn forget_pid() {
    cached_pid().store(0, Ordering::Relaxed);
}

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The fork generation: the number of forks between the process that loaded this library and this one.
#[inline(always)]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Begins the generation of a forked child.
///
/// # Safety
/// Called in a forked child only, by its only thread, while that holds no guard of a [`crate::fork_safe_mutex::ForkSafeMutex`].
pub unsafe fn next_generation() {
    GENERATION.store((generation() + 1) & (u32::MAX >> 2), Ordering::Relaxed);
}

/// A token of this thread, not 0: the process number in the high half, a value unique in the process in the low half.
#[inline(always)]
pub fn token() -> u64 {
    u64::from(pid()) << 32 | ((id_in_process() as u64 >> 4) & 0xffff_fffe) | 1
}

/// A number that is unique among the threads of this process, and not 0: the address of the thread control block. Costs one load.
#[inline(always)]
pub fn id_in_process() -> usize {
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

/// Whether the process of a token exists and is visible in this PID namespace.
pub fn token_process_exists(token: u64) -> bool {
    process_exists((token >> 32) as u32)
}

/// Whether a process with this number exists; a zombie counts.
pub fn process_exists(pid: u32) -> bool {
    match rustix::process::Pid::from_raw(pid as i32) {
        Some(pid) => rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH),
        None => false,
    }
}

/// What the kernel reports about a process number.
enum ProcessStatus {
    /// No process has this number.
    Absent,
    /// A process has this number; its status cannot be read.
    Unreadable,
    /// State letter, start time in clock ticks since boot, and bytes of address space.
    Known { state: u8, started: u64, memory: u64 },
}

/// "/proc/PID/stat", built without the formatter of the standard library, which takes much stack.
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

/// Reads the status of a process from the kernel.
fn process_status(pid: u32) -> ProcessStatus {
    if !process_exists(pid) {
        return ProcessStatus::Absent;
    }
    let mut bytes = [0; 512];
    let mut read = || {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let mut path = [0; 24];
        let file = rustix::fs::open(stat_of(pid, &mut path), flags, Mode::empty())?;
        rustix::io::read(&file, &mut bytes)
    };
    let Ok(length) = read() else { return ProcessStatus::Unreadable };
    let Some(fields) = fields_of_stat(&bytes[..length]) else { return ProcessStatus::Unreadable };
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next().and_then(|state| state.bytes().next());
    let mut number = |skip| fields.nth(skip).and_then(|field| field.parse().ok());
    match (state, number(18), number(0)) {
        (Some(state), Some(started), Some(memory)) => ProcessStatus::Known { state, started, memory },
        _ => ProcessStatus::Unreadable,
    }
}

/// The fields of a stat file from the state letter on. They are counted after the name, which is in parentheses and may contain any bytes.
fn fields_of_stat(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().rposition(|&byte| byte == b')')?;
    std::str::from_utf8(&bytes[end + 1..]).ok()
}

/// Whether a thread of the process is on a CPU or waits for one. False if the kernel does not say.
pub fn has_runnable_thread(pid: u32) -> bool {
    any_runnable_thread(pid).unwrap_or(false)
}

fn any_runnable_thread(pid: u32) -> Option<bool> {
    let mut path = [0u8; 32];
    let path = format_into(&mut path, format_args!("/proc/{pid}/task"))?;
    let folder = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut entries = [std::mem::MaybeUninit::uninit(); 256]; // the stack may be small
    let mut entries = rustix::fs::RawDir::new(&folder, &mut entries);
    while let Some(Ok(entry)) = entries.next() {
        let mut path = [0u8; 32];
        let Some(path) = format_into(&mut path, format_args!("{}/stat", entry.file_name().to_str().ok()?)) else {
            continue;
        };
        let Ok(file) = rustix::fs::openat(&folder, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
            continue; // a folder, or the thread has ended
        };
        let mut bytes = [0; 128]; // the number, the name of 15 bytes, the state
        let length = rustix::io::read(&file, &mut bytes).unwrap_or(0);
        if fields_of_stat(&bytes[..length]).is_some_and(|fields| fields.trim_start().starts_with('R')) {
            return Some(true);
        }
    }
    Some(false)
}

/// Start time of a process, clock ticks since boot: distinguishes it from a later process with the same number. 0: the kernel does not say.
/// `None`: there is no such process, or it is a zombie.
pub fn start_time(pid: u32) -> Option<u64> {
    match process_status(pid) {
        ProcessStatus::Absent | ProcessStatus::Known { state: b'Z' | b'X', .. } => None,
        ProcessStatus::Unreadable => Some(0),
        ProcessStatus::Known { started, .. } => Some(started),
    }
}

/// Whether a process has ended or is exiting. An exiting process has no memory any more; its descriptors may be open for a moment.
pub fn is_exiting(pid: u32) -> bool {
    match process_status(pid) {
        ProcessStatus::Absent => true,
        ProcessStatus::Unreadable => false,
        ProcessStatus::Known { state, memory, .. } => matches!(state, b'Z' | b'X') || memory == 0,
    }
}

/// Opens a pidfd, which unlike the number never refers to another process.
pub fn open_pidfd(pid: u32) -> Result<OwnedFd, Errno> {
    let pid = rustix::process::Pid::from_raw(pid as i32).ok_or(rustix::io::Errno::SRCH.raw_os_error())?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).map_err(|e| e.raw_os_error())
}

/// Duplicates the descriptor that a process has of the socket with this inode. `None`: the process has none, the kernel does not give access
/// to that process (ptrace access rules), or there is no /proc. Does not allocate.
pub fn duplicate_socket_of(process: impl AsFd, pid: u32, inode: u32) -> Option<OwnedFd> {
    let mut path = [0u8; 32];
    let folder = rustix::fs::open(
        format_into(&mut path, format_args!("/proc/{pid}/fd"))?,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()?;
    let mut wanted = [0u8; 32];
    let wanted = format_into(&mut wanted, format_args!("socket:[{inode}]"))?;
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

/// Formats a C string into a buffer. `None`: the buffer is too short.
fn format_into<'a>(buffer: &'a mut [u8], text: std::fmt::Arguments<'_>) -> Option<&'a std::ffi::CStr> {
    use std::io::Write;
    let mut rest = &mut *buffer;
    write!(rest, "{text}\0").ok()?;
    std::ffi::CStr::from_bytes_until_nul(buffer).ok()
}

/// Whether the process of a pidfd has ended. As long as it has not, its number is not reused.
pub fn has_exited(process: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::new(&process, PollFlags::IN)];
    // Even a poll without a wait can return EINTR.
    rustix::io::retry_on_intr(|| poll(&mut polled, Some(&Timespec::default()))) != Ok(0)
}

/// Starts a thread with all signals blocked from its first instruction on, so no handler of the program runs there. `stack` is its stack size,
/// bytes.
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

/// Sleeps for about `ns` nanoseconds. A signal ends the sleep.
pub fn sleep_ns(ns: u64) {
    let time = rustix::time::Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ };
    let _ = rustix::thread::nanosleep(&time);
}

/// Sleeps for about `ns` nanoseconds in place of a system call of the program. False: a signal handler ran after which the call would return
/// EINTR. The kernel does not say which handler ran: any installed handler without SA_RESTART counts.
pub fn interruptible_sleep(ns: u64) -> bool {
    let time = rustix::time::Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ };
    !matches!(rustix::thread::nanosleep(&time), rustix::thread::NanosleepRelativeResult::Interrupted(_))
        || !(1..=MAX_SIGNAL).any(|signal| interrupts_calls(signal_action(signal)))
}

/// The highest signal number.
const MAX_SIGNAL: usize = 64;
const SA_RESTART: u64 = 0x1000_0000;

/// Handler and flags of a signal, the first two words of the kernel's `struct sigaction`. Zeros if the kernel does not say.
fn signal_action(signal: usize) -> [u64; 2] {
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

/// Whether this process ignores SIGPIPE, which some system calls raise on broken connections.
pub fn ignores_broken_pipes() -> bool {
    const SIGPIPE: usize = 13;
    const SIG_IGN: u64 = 1;
    signal_action(SIGPIPE)[0] == SIG_IGN
}

/// Whether system calls return EINTR after this handler (0 and 1 are SIG_DFL and SIG_IGN).
fn interrupts_calls([handler, flags]: [u64; 2]) -> bool {
    handler > 1 && flags & SA_RESTART == 0
}

/// Yields the CPU to another thread (sched_yield).
pub fn yield_now() {
    rustix::thread::sched_yield();
}

/// Involuntary context switches of this thread (`ru_nivcsw`): the kernel ran another thread although this one was runnable. Time that a host
/// takes from a virtual CPU does not count. `None`: the kernel does not say.
pub fn involuntary_switches() -> Option<u64> {
    /// For this thread, not for the process.
    const RUSAGE_THREAD: usize = 1;
    // `struct rusage`: two times of two words, and 14 counts, of which this is the last.
    let mut usage = [0u64; 18];
    // SAFETY: the kernel writes one `struct rusage`, of the size of the array.
    let asked = unsafe { syscalls::syscall!(syscalls::Sysno::getrusage, RUSAGE_THREAD, usage.as_mut_ptr()) };
    asked.ok().map(|_| usage[17])
}

/// The effective user ID.
pub fn euid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_without_restart_interrupt_calls() {
        assert!(interrupts_calls([0x1000, 0]) && !interrupts_calls([0x1000, SA_RESTART]));
        assert!(![0, 1].into_iter().any(|none| interrupts_calls([none, 0])), "SIG_DFL and SIG_IGN");
        // Rust's runtime ignores SIGPIPE, and has handlers for faults only.
        let [pipe, segv] = [13, 11].map(signal_action);
        assert!(pipe[0] == 1 && segv[0] > 1, "{pipe:?} {segv:?}");
        assert!(interruptible_sleep(1000), "nothing interrupts it");
    }

    #[test]
    fn pid_is_right_in_a_child_of_an_unseen_fork() {
        assert_eq!(pid(), std::process::id());
        // SAFETY: a fork without handlers; the child makes two system calls and no other.
        let child = unsafe { syscalls::syscall!(syscalls::Sysno::clone, 17, 0, 0, 0, 0) }.unwrap();
        if child == 0 {
            let right = pid() == rustix::process::getpid().as_raw_nonzero().get() as u32;
            // SAFETY: ends the child.
            let _ = unsafe { syscalls::syscall!(syscalls::Sysno::exit_group, usize::from(!right)) };
        }
        let child = rustix::process::Pid::from_raw(child as i32);
        let ended = rustix::process::waitpid(child, rustix::process::WaitOptions::empty()).unwrap().unwrap().1;
        assert_eq!(ended.exit_status(), Some(0));
    }

    #[test]
    fn stat_path_contains_the_process_number() {
        for pid in [0, 7, 10, 4194304, u32::MAX] {
            assert_eq!(stat_of(pid, &mut [0; 24]).to_str(), Ok(format!("/proc/{pid}/stat").as_str()));
        }
    }

    #[test]
    fn runnable_threads_are_found_whatever_the_leader_does() {
        assert!(has_runnable_thread(std::process::id()), "this thread runs, the leader waits for it");
        // The shell computes; stopped, it does not.
        let mut busy = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let until = |expected: bool| {
            (0..10_000).any(|_| {
                sleep_ns(1_000_000);
                has_runnable_thread(busy.id()) == expected
            })
        };
        assert!(until(true));
        let pid = rustix::process::Pid::from_child(&busy);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        assert!(until(false));
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(!has_runnable_thread(pid.as_raw_nonzero().get() as u32) && !has_runnable_thread(0));
    }

    #[test]
    fn yield_to_a_busy_thread_is_an_involuntary_switch() {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
        let everywhere = sched_getaffinity(None).unwrap();
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        sched_setaffinity(None, &here).unwrap();
        let (computes, before) = (std::sync::atomic::AtomicBool::new(true), involuntary_switches().unwrap());
        std::thread::scope(|scope| {
            // The thread inherits the affinity to one CPU.
            scope.spawn(|| {
                while computes.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let met = (0..1_000_000).any(|_| {
                yield_now();
                involuntary_switches().unwrap() > before
            });
            computes.store(false, Ordering::Relaxed);
            assert!(met);
        });
        sched_setaffinity(None, &everywhere).unwrap();
    }

    #[test]
    fn zombie_has_no_start_time_and_is_exiting() {
        let own = start_time(pid()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let started = start_time(child.id()).unwrap();
        assert!(own > 0 && started >= own);
        assert_eq!(start_time(child.id()), Some(started), "start times are constant");
        child.kill().unwrap();
        while start_time(child.id()).is_some() {
            std::thread::yield_now();
        }
        assert!(process_exists(child.id()) && is_exiting(child.id()), "a zombie has no memory");
        assert!(!is_exiting(pid()));
        child.wait().unwrap();
        assert_eq!(start_time(child.id()), None);
    }

    #[test]
    fn pidfd_reports_exit_before_the_number_is_free() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let process = open_pidfd(child.id()).unwrap();
        assert!(!has_exited(&process));
        drop(child.stdin.take());
        while !has_exited(&process) {
            yield_now();
        }
        assert!(process_exists(child.id()), "not waited for: the number is still taken");
        child.wait().unwrap();
        assert!(has_exited(&process));
        assert!(open_pidfd(0).is_err());
    }
}
