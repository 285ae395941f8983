//! Cleanup when a signal ends a run.
//!
//! It keeps a list of what outlives its owner (folders, test hosts), and a thread that waits for the signals that end a program.
//! The thread ends the processes that were started, removes what is on the list, and ends this process by that signal. A run that
//! ends normally does not come here: each owner removes its own in `Drop`.

use motet_sys::rustix::process::{Pid, Signal, getpid, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long processes may take to end after SIGTERM, before SIGKILL.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Something that outlives its owner.
enum Leftover {
    Folder(PathBuf),
    /// Program and arguments that remove it.
    Command(Vec<String>),
}

/// Locked while a process or folder is made, and by the thread that ends the run, so that nothing new is made from then on.
static LEFTOVERS: Mutex<Vec<Leftover>> = Mutex::new(Vec::new());

fn leftovers() -> MutexGuard<'static, Vec<Leftover>> {
    LEFTOVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the thread that waits for signals, once. Signals that were ignored when this process started (nohup) stay ignored.
pub fn watch() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let ignored = ignored();
        let caught = [SIGHUP, SIGINT, SIGQUIT, SIGTERM].into_iter().filter(|n| ignored >> (n - 1) & 1 == 0);
        let Ok(mut signals) = Signals::new(caught) else { return };
        thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                end(signal);
            }
        });
    });
}

/// The mask of signals that this process ignores.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Ends the processes and this one, and removes what is left.
fn end(signal: i32) {
    let mut leftovers = leftovers();
    let asked = descendants(getpid().as_raw_nonzero().get());
    asked.iter().for_each(|&pid| signal_process(pid, Signal::TERM));
    let began = Instant::now();
    while began.elapsed() < EXIT_TIMEOUT && asked.iter().any(|&pid| lives(pid)) {
        thread::sleep(Duration::from_millis(5));
    }
    asked.iter().filter(|&&pid| lives(pid)).for_each(|&pid| signal_process(pid, Signal::KILL));
    for one in leftovers.drain(..) {
        match one {
            // A process that has just been killed may still be making a file.
            Leftover::Folder(folder) => drop((0..20).find(|_| gone(&folder))),
            Leftover::Command(words) => drop(Command::new(&words[0]).args(&words[1..]).output()),
        }
    }
    let _ = emulate_default_handler(signal);
}

fn gone(folder: &Path) -> bool {
    let removed = fs::remove_dir_all(folder);
    let gone = removed.is_ok() || !folder.exists();
    if !gone {
        thread::sleep(Duration::from_millis(5));
    }
    gone
}

fn signal_process(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

/// The processes below a process that have not ended.
fn descendants(of: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten();
    let lists: Vec<String> = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok()).collect();
    let children = lists.iter().flat_map(|list| list.split_whitespace()).filter_map(|pid| pid.parse().ok());
    let live = children.filter(|&pid| lives(pid));
    live.flat_map(|pid| std::iter::once(pid).chain(descendants(pid))).collect()
}

/// Whether a child has not ended. A child that has ended is a zombie.
fn lives(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// A temporary folder of this run. It is removed when its handle is dropped.
pub fn folder() -> io::Result<TempDir> {
    folder_in(&std::env::temp_dir())
}

/// A folder of this run in another one. It is removed when its handle is dropped.
pub fn folder_in(parent: &Path) -> io::Result<TempDir> {
    let mut leftovers = leftovers();
    let folder = tempfile::Builder::new().prefix("motet-bench-").tempdir_in(parent)?;
    leftovers.push(Leftover::Folder(folder.path().to_owned()));
    Ok(folder)
}

/// Has `program` run if a signal ends this process, until [`unregister`].
pub fn register(program: &Path, arguments: &[&str]) {
    let words =
        std::iter::once(program.to_string_lossy().into_owned()).chain(arguments.iter().map(ToString::to_string));
    leftovers().push(Leftover::Command(words.collect()));
}

/// Drops what [`register`] asked for: the owner has done it.
pub fn unregister(program: &Path) {
    leftovers().retain(|one| !matches!(one, Leftover::Command(words) if Path::new(&words[0]) == program));
}

/// Returns only if no signal is ending this process, so that a run that is ending prints neither results nor errors.
pub fn block_while_ending() {
    drop(leftovers());
}

/// Starts a process.
pub fn start(command: &mut Command) -> io::Result<Child> {
    let _not_ending = leftovers();
    command.spawn()
}

/// Starts a process that reads nothing, and waits until it has ended.
pub fn output(command: &mut Command) -> io::Result<Output> {
    start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))?.wait_with_output()
}
