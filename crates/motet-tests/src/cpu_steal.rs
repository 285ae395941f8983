//! Detects whether the host took CPU time from this machine while a test ran, and retries failed tests for that reason only.
//!
//! What it is: a [`StealSpan`] measures the share of CPU time that the host gave to other guests (`steal` in /proc/stat). [`retry_on_steal`] runs a
//! failed test again if that share was large during the failed attempt. One run of `make test` has [`MAX_RETRIES`] retries, counted over all its
//! processes.
//!
//! What it is not: a way to pass. A failure without steal is final, however busy the machine is. Every retry runs all checks of the test. Each retry
//! is printed with its cause and appended to the file that `MOTET_AGAIN_LOG` names, which `make test` shows at its end.

use std::any::Any;
use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Percentage of stolen CPU time that allows a retry.
const MIN_STEAL_PERCENT: u64 = 20;
/// Number of stolen ticks (usually of 10 ms) below which the percentage is meaningless.
const MIN_STOLEN_TICKS: u64 = 5;
/// Most retries in one run of `make test`.
pub const MAX_RETRIES: usize = 3;

/// The environment variable that names the file of retries, one line each.
const RETRY_LOG: &str = "MOTET_AGAIN_LOG";

thread_local! {
    static IGNORE_STEAL: Cell<bool> = const { Cell::new(false) };
}

/// Runs `run` as on a machine without steal: for tests of this harness.
pub fn ignoring_steal<R>(run: impl FnOnce() -> R) -> R {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            IGNORE_STEAL.set(self.0);
        }
    }
    let _before = Before(IGNORE_STEAL.replace(true));
    run()
}

/// CPU time of all CPUs, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    all: u64,
    stolen: u64,
}

impl Ticks {
    /// Parses the first line of /proc/stat. The columns behind the eighth (guest times) are already part of others.
    fn read(stat: &str) -> Self {
        let first = stat.lines().next().unwrap_or_default();
        let times: Vec<u64> = first.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
        Self { all: times.iter().sum(), stolen: times.get(7).copied().unwrap_or(0) }
    }

    fn now() -> Self {
        Self::read(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// Describes the CPU time stolen between `self` and `now`, if it is enough for a retry.
    fn taken_until(self, now: Self) -> Option<String> {
        let (stolen, all) = (now.stolen.saturating_sub(self.stolen), now.all.saturating_sub(self.all).max(1));
        let percent = stolen * 100 / all;
        let taken = stolen >= MIN_STOLEN_TICKS && percent >= MIN_STEAL_PERCENT;
        taken.then(|| format!("the host took {percent} % of this machine's CPU time ({stolen} of {all} ticks)"))
    }
}

/// A span of time and the ticks at its start.
#[derive(Debug, Clone, Copy)]
pub struct StealSpan {
    began: Instant,
    ticks: Ticks,
}

impl StealSpan {
    /// Starts a span.
    pub fn start() -> Self {
        Self { began: Instant::now(), ticks: Ticks::now() }
    }

    /// Describes the CPU time stolen since the start of the span, if it is enough for a retry.
    pub fn stolen(&self) -> Option<String> {
        if IGNORE_STEAL.get() {
            return None;
        }
        self.ticks.taken_until(Ticks::now()).map(|taken| format!("{taken} in {:.1?}", self.began.elapsed()))
    }
}

/// Calls `attempt` until it succeeds, fails without steal, or no retry is left. Returns the last result.
///
/// # Errors The error of the last attempt.
pub fn retry_on_steal<T, E: FailureText>(what: &str, attempt: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let began = Cell::new(StealSpan::start());
    let mut attempt = attempt;
    let attempt = || {
        began.set(StealSpan::start());
        attempt()
    };
    retry(what, attempt, || began.get().stolen(), |line| RetryQuota::for_this_run().take(line))
}

/// The decision alone: retries a failure if `stolen` names a cause and `take` grants a retry.
fn retry<T, E: FailureText>(
    what: &str,
    mut attempt: impl FnMut() -> Result<T, E>,
    stolen: impl Fn() -> Option<String>,
    mut take: impl FnMut(&str) -> bool,
) -> Result<T, E> {
    loop {
        let error = match attempt() {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let Some(cause) = stolen() else { return Err(error) };
        let line = format!("{what}: {cause}; it failed: {}", error.failure_text());
        if !take(&line) {
            eprintln!("NOT retried, {MAX_RETRIES} retries are used up: {line}");
            return Err(error);
        }
        eprintln!("retried: {line}");
    }
}

/// The retries of one run: lines of a file that all its processes share, or a count of this process if no file is named.
#[derive(Debug)]
enum RetryQuota {
    File(PathBuf),
    Process,
}

static RETRIES_OF_THIS_PROCESS: Mutex<usize> = Mutex::new(0);

impl RetryQuota {
    fn for_this_run() -> Self {
        std::env::var_os(RETRY_LOG)
            .filter(|path| !path.is_empty())
            .map_or(Self::Process, |path| Self::File(path.into()))
    }

    /// Takes one retry and logs `line`. False if [`MAX_RETRIES`] were taken, or the line cannot be written.
    fn take(&self, line: &str) -> bool {
        match self {
            Self::File(path) => append_below(path, line, MAX_RETRIES).unwrap_or(false),
            Self::Process => {
                let mut taken = RETRIES_OF_THIS_PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
                let allowed = *taken < MAX_RETRIES;
                *taken += usize::from(allowed);
                allowed
            }
        }
    }
}

/// Appends a line to a file with fewer than `most` lines, atomically for all processes. Returns whether it did.
fn append_below(path: &Path, line: &str, most: usize) -> io::Result<bool> {
    let mut file: File = OpenOptions::new().read(true).append(true).create(true).open(path)?;
    file.lock()?; // unlocked when the file is closed
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    if text.lines().count() >= most {
        return Ok(false);
    }
    file.write_all(format!("{}\n", line.replace('\n', " | ")).as_bytes())?;
    Ok(true)
}

/// The text of a failure.
pub trait FailureText {
    /// Returns the text.
    fn failure_text(&self) -> String;
}

impl FailureText for String {
    fn failure_text(&self) -> String {
        self.clone()
    }
}

/// A panic's payload.
impl FailureText for Box<dyn Any + Send> {
    fn failure_text(&self) -> String {
        let fixed = self.downcast_ref::<&str>().map(|text| (*text).to_owned());
        self.downcast_ref::<String>().cloned().or(fixed).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
