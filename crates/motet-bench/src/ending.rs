//! What a run that is ended by a signal leaves behind: nothing.
//!
//! What it is: a list of what outlives its owner (folders, test hosts), and a thread that waits for the signals that end a
//! program. It ends the processes that were started, undoes what is on the list, and ends this process by that signal. What
//! it is not: the way out of a run that comes to its end; there every owner undoes what is his.

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

/// Processes that were asked to end may take so long.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is to be undone.
enum Left {
    Folder(PathBuf),
    /// Program and arguments of what undoes it.
    Undone(Vec<String>),
}

/// Held while something is started or made, and by a run that ends: then nothing new comes into being.
static LEFT: Mutex<Vec<Left>> = Mutex::new(Vec::new());

fn left() -> MutexGuard<'static, Vec<Left>> {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins to wait for signals, once. What was ignored when this process was started (nohup) stays ignored.
pub fn watch() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
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

fn end(signal: i32) {
    let mut left = left();
    let asked = descendants(getpid().as_raw_nonzero().get());
    asked.iter().for_each(|&pid| tell(pid, Signal::TERM));
    let began = Instant::now();
    while began.elapsed() < PATIENCE && asked.iter().any(|&pid| lives(pid)) {
        thread::sleep(Duration::from_millis(5));
    }
    asked.iter().filter(|&&pid| lives(pid)).for_each(|&pid| tell(pid, Signal::KILL));
    for one in left.drain(..) {
        match one {
            // One that was killed a moment ago may still be making a file.
            Left::Folder(folder) => drop((0..20).find(|_| gone(&folder))),
            Left::Undone(words) => drop(Command::new(&words[0]).args(&words[1..]).output()),
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

fn tell(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

/// The children of a process that have not ended, and theirs.
fn descendants(of: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten();
    let lists: Vec<String> = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok()).collect();
    let children = lists.iter().flat_map(|list| list.split_whitespace()).filter_map(|pid| pid.parse().ok());
    let live = children.filter(|&pid| lives(pid));
    live.flat_map(|pid| std::iter::once(pid).chain(descendants(pid))).collect()
}

/// Whether a child has not ended: what is left of one that has is a zombie.
fn lives(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// A folder of this run's own, for as long as it is held.
pub fn folder() -> io::Result<TempDir> {
    let mut left = left();
    let folder = tempfile::Builder::new().prefix("motet-bench-").tempdir()?;
    left.push(Left::Folder(folder.path().to_owned()));
    Ok(folder)
}

/// Has `program` run when a signal ends this one, until that is [`undone`].
pub fn undo(program: &Path, arguments: &[&str]) {
    let words =
        std::iter::once(program.to_string_lossy().into_owned()).chain(arguments.iter().map(ToString::to_string));
    left().push(Left::Undone(words.collect()));
}

/// Its owner has done what `program` was to do.
pub fn undone(program: &Path) {
    left().retain(|one| !matches!(one, Left::Undone(words) if Path::new(&words[0]) == program));
}

/// Comes back only when no signal is ending this process: what was measured meanwhile is not told, nor how it failed.
pub fn hold() {
    drop(left());
}

/// Starts a process.
pub fn start(command: &mut Command) -> io::Result<Child> {
    let _nothing_ends = left();
    command.spawn()
}

/// Starts a process that reads nothing, and waits until it has ended.
pub fn output(command: &mut Command) -> io::Result<Output> {
    start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))?.wait_with_output()
}
