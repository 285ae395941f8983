//! Whether the host took this machine's CPUs while a test ran, and what follows from that.
//!
//! What it is: a [`Span`] of time, whose share of stolen CPU time the kernel counts (`steal` in /proc/stat: time in which a virtual CPU was ready to run
//! and its host ran another guest); and [`tried_again`], which runs a failed test once more where that share is large. What counts is the time of the
//! failed try itself. Such further tries are few: [`MOST`] in one run of `make test`, counted over all its processes.
//!
//! What it is not: a way to pass. A try that fails on a machine that has its CPUs is a failure, at once, however much else runs there and however late
//! anything was. Every further try runs all of a test's checks. Each is printed with its cause, and goes to the file that `MOTET_AGAIN_LOG` names, which
//! the end of `make test` shows.

use std::any::Any;
use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// So many parts of a hundred of all CPUs' time that the host gave to others speak for another try.
const STOLEN: u64 = 20;
/// Ticks (of 10 ms, as a rule) below which parts of a hundred say nothing.
const FEW: u64 = 5;
/// Most further tries of one run of `make test`.
pub const MOST: usize = 3;

/// Names the file to which every further try appends a line.
const LOG: &str = "MOTET_AGAIN_LOG";

thread_local! {
    static WITHOUT: Cell<bool> = const { Cell::new(false) };
}

/// Runs something on a machine of which the host is said to take nothing: for tests of this harness itself.
pub fn without_steal<R>(run: impl FnOnce() -> R) -> R {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            WITHOUT.set(self.0);
        }
    }
    let _before = Before(WITHOUT.replace(true));
    run()
}

/// The time of all CPUs, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    all: u64,
    stolen: u64,
}

impl Ticks {
    /// By the first line of /proc/stat. Behind the eighth column are parts of others: the times of guests.
    fn read(stat: &str) -> Self {
        let first = stat.lines().next().unwrap_or_default();
        let times: Vec<u64> = first.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
        Self { all: times.iter().sum(), stolen: times.get(7).copied().unwrap_or(0) }
    }

    fn now() -> Self {
        Self::read(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// What the host took from then till now, if that is a cause: in words.
    fn taken_until(self, now: Self) -> Option<String> {
        let (stolen, all) = (now.stolen.saturating_sub(self.stolen), now.all.saturating_sub(self.all).max(1));
        let percent = stolen * 100 / all;
        let taken = stolen >= FEW && percent >= STOLEN;
        taken.then(|| format!("the host took {percent} % of this machine's CPU time ({stolen} of {all} ticks)"))
    }
}

/// From its start to when it is asked.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    began: Instant,
    ticks: Ticks,
}

impl Span {
    /// Begins.
    pub fn start() -> Self {
        Self { began: Instant::now(), ticks: Ticks::now() }
    }

    /// What the host took of the CPUs since the start, if that is a cause for another try: in words.
    pub fn stolen(&self) -> Option<String> {
        if WITHOUT.get() {
            return None;
        }
        self.ticks.taken_until(Ticks::now()).map(|taken| format!("{taken} in {:.1?}", self.began.elapsed()))
    }
}

/// Tries until it succeeds, or fails while the machine had its CPUs, or as many further tries have been made as there may be; the last result.
///
/// # Errors
/// The last attempt's.
pub fn tried_again<T, E: Words>(what: &str, attempt: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let began = Cell::new(Span::start());
    let mut attempt = attempt;
    let attempt = || {
        began.set(Span::start());
        attempt()
    };
    tried(what, attempt, || began.get().stolen(), |line| Further::of_this_run().take(line))
}

/// The decision alone: a failure is tried again where `stolen` names a cause and `take` allows one more.
fn tried<T, E: Words>(
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
        let line = format!("{what}: {cause}; it failed: {}", error.words());
        if !take(&line) {
            eprintln!("NOT tried again, as {MOST} tests were: {line}");
            return Err(error);
        }
        eprintln!("tried again: {line}");
    }
}

/// The further tries of one run: lines of a file that all its processes share, or of this process where none is named.
#[derive(Debug)]
enum Further {
    File(PathBuf),
    Process,
}

static OF_THIS_PROCESS: Mutex<usize> = Mutex::new(0);

impl Further {
    fn of_this_run() -> Self {
        std::env::var_os(LOG).filter(|path| !path.is_empty()).map_or(Self::Process, |path| Self::File(path.into()))
    }

    /// Takes one more, with its line; false when there were [`MOST`] already, or nothing can be written down.
    fn take(&self, line: &str) -> bool {
        match self {
            Self::File(path) => append_below(path, line, MOST).unwrap_or(false),
            Self::Process => {
                let mut taken = OF_THIS_PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
                let allowed = *taken < MOST;
                *taken += usize::from(allowed);
                allowed
            }
        }
    }
}

/// Appends a line to a file that has fewer than `most`, in one step as all processes see it; whether it did.
fn append_below(path: &Path, line: &str, most: usize) -> io::Result<bool> {
    let mut file: File = OpenOptions::new().read(true).append(true).create(true).open(path)?;
    file.lock()?; // until it is closed
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    if text.lines().count() >= most {
        return Ok(false);
    }
    file.write_all(format!("{}\n", line.replace('\n', " | ")).as_bytes())?;
    Ok(true)
}

/// What a failure says.
pub trait Words {
    /// Its words.
    fn words(&self) -> String;
}

impl Words for String {
    fn words(&self) -> String {
        self.clone()
    }
}

/// What has panicked.
impl Words for Box<dyn Any + Send> {
    fn words(&self) -> String {
        let fixed = self.downcast_ref::<&str>().map(|text| (*text).to_owned());
        self.downcast_ref::<String>().cloned().or(fixed).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
