//! Whether this machine was robbed meanwhile: whether its host, or whoever shares it, took CPUs away while a test ran.
//!
//! What it is: a thread of the test process that reads the machine's times ten times a second and so sees its own lateness, too; a [`Watch`],
//! which asks what it saw since an instant; and the tries that follow from the answer. A robbed test may fail by nobody's fault, and is run
//! again, later. On a machine that had its CPUs a failure is a failure, at once.
//!
//! What it is not: a way to pass. Every further try runs all of a test's checks, and says why there is one; the last failure stands. What failed
//! before a success is not lost: it goes to the file that `MOTET_AGAIN_LOG` names, which the end of `make test` shows.

use std::any::Any;
use std::fs;
use std::panic::Location;
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// From one sample to the next.
const PERIOD: Duration = Duration::from_millis(100);
/// A sample that is later than this was held up: the whole machine stood still, or others came first.
const LATE: Duration = Duration::from_millis(100);
/// So many parts of a hundred of all CPUs' time that the host gave to others: within one period, and over the whole of a watch.
const STOLEN_AT_ONCE: u64 = 30;
const STOLEN: u64 = 10;
/// Ticks below which parts of a hundred say nothing.
const FEW: u64 = 2;

/// Pauses, in seconds, before what failed on a robbed machine is tried again.
const LATER: [u64; 4] = [1, 5, 20, 40];
/// The same, of what has been tried several times already.
pub const MUCH_LATER: [u64; 5] = [5, 10, 20, 40, 60];

/// Names the file to which every further try appends a line.
const LOG: &str = "MOTET_AGAIN_LOG";

/// One look at the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sample {
    /// Since the first one.
    at: Duration,
    /// The time of all CPUs, in ticks.
    all: u64,
    /// How much of it the host gave to others.
    stolen: u64,
}

/// From its start to when it is asked.
#[derive(Debug, Clone, Copy)]
pub struct Watch(Duration);

impl Watch {
    /// Begins to watch.
    pub fn start() -> Self {
        Self(sampler().began.elapsed())
    }

    /// In what way the machine was robbed since the start, if it was. Waits for the next sample, so that it tells of all of the time.
    pub fn robbed(&self) -> Option<String> {
        let sampler = sampler();
        let now = sampler.began.elapsed();
        let samples = sampler.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let behind = |samples: &mut Vec<Sample>| samples.last().is_none_or(|last| last.at < now);
        let samples = sampler.taken.wait_while(samples, behind).unwrap_or_else(PoisonError::into_inner);
        let first = samples.iter().rposition(|sample| sample.at <= self.0).unwrap_or(0);
        judged(&samples[first..])
    }
}

/// Tries until it succeeds, or fails while the machine had its CPUs, or has failed five times in about a minute; the last result.
///
/// # Errors
/// The last attempt's.
pub fn tried_again<T, E: Words>(what: &str, mut attempt: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let watched = || {
        let watch = Watch::start();
        attempt().map_err(|error| (error, watch.robbed()))
    };
    tried(what, &LATER.map(Duration::from_secs), watched)
}

/// Whether one of several attempts succeeds: those after these pauses (ms), of which all may be needed on a machine that has its CPUs, and if it
/// was robbed since the watch began, some more that come after those (s).
#[track_caller]
pub fn succeeds_at_times(watch: Watch, pauses: &[u64], later: &[u64], attempt: impl FnMut() -> bool) -> bool {
    let pauses: Vec<Duration> = pauses.iter().copied().map(Duration::from_millis).collect();
    let later: Vec<Duration> = later.iter().copied().map(Duration::from_secs).collect();
    succeeds(&pauses, &later, || watch.robbed(), attempt)
}

#[track_caller]
fn succeeds(
    pauses: &[Duration],
    later: &[Duration],
    robbed: impl Fn() -> Option<String>,
    mut attempt: impl FnMut() -> bool,
) -> bool {
    let mut after = |pause: &Duration| {
        thread::sleep(*pause);
        attempt()
    };
    if pauses.iter().any(&mut after) {
        return true;
    }
    let Some(why) = robbed() else { return false };
    let here = Location::caller();
    say(&format!("{}, line {}: not once of {} times, so for some time: {why}", here.file(), here.line(), pauses.len()));
    later.iter().any(after)
}

/// Tries until it succeeds, or fails without an excuse, or has failed after the last pause.
fn tried<T, E: Words>(
    what: &str,
    pauses: &[Duration],
    mut attempt: impl FnMut() -> Result<T, (E, Option<String>)>,
) -> Result<T, E> {
    for pause in pauses {
        match attempt() {
            Ok(done) => return Ok(done),
            Err((error, None)) => return Err(error),
            Err((error, Some(why))) => say(&format!("{what}, in {pause:?}: {why}; it failed: {}", error.words())),
        }
        thread::sleep(*pause);
    }
    attempt().map_err(|(error, _)| error)
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

/// Says that something is tried again: to the test's own output, and in a line of the log.
fn say(what: &str) {
    eprintln!("tried again: {what}");
    // Not of the attempts that this module's own tests make up.
    if !cfg!(test) {
        crate::programs::append(LOG, &what.replace('\n', " | "));
    }
}

/// In what way these samples, one after another, show a robbed machine.
fn judged(samples: &[Sample]) -> Option<String> {
    let share = |before: &Sample, after: &Sample| {
        let stolen = after.stolen.saturating_sub(before.stolen);
        let all = after.all.saturating_sub(before.all).max(1);
        (stolen, if stolen < FEW { 0 } else { stolen * 100 / all })
    };
    for pair in samples.windows(2) {
        let took = pair[1].at.saturating_sub(pair[0].at);
        if took > PERIOD + LATE {
            return Some(format!("this machine stood still for {took:?}"));
        }
        let (ticks, percent) = share(&pair[0], &pair[1]);
        if percent > STOLEN_AT_ONCE {
            return Some(format!("the host took {percent} % of this machine's CPUs for {took:?} ({ticks} ticks)"));
        }
    }
    let (ticks, percent) = share(samples.first()?, samples.last()?);
    (percent > STOLEN).then(|| format!("the host took {percent} % of this machine's CPUs ({ticks} ticks)"))
}

/// The times of all CPUs in /proc/stat: all of them, and what the host gave to others.
fn ticks(stat: &str) -> (u64, u64) {
    let first = stat.lines().next().unwrap_or_default();
    // Behind these, the times of guests are parts of others.
    let times: Vec<u64> = first.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
    (times.iter().sum(), times.get(7).copied().unwrap_or(0))
}

/// The one of this process, from its first watch on.
struct Sampler {
    began: Instant,
    samples: Mutex<Vec<Sample>>,
    taken: Condvar,
}

impl Sampler {
    fn take(&self) {
        let (all, stolen) = ticks(&fs::read_to_string("/proc/stat").unwrap_or_default());
        let sample = Sample { at: self.began.elapsed(), all, stolen };
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
        self.taken.notify_all();
    }
}

fn sampler() -> &'static Sampler {
    static SAMPLER: OnceLock<Sampler> = OnceLock::new();
    SAMPLER.get_or_init(|| {
        let sampler = Sampler { began: Instant::now(), samples: Mutex::new(Vec::new()), taken: Condvar::new() };
        sampler.take();
        // It waits for what it is the beginning of, and ends with the process.
        thread::spawn(|| {
            loop {
                thread::sleep(PERIOD);
                self::sampler().take();
            }
        });
        sampler
    })
}

#[cfg(test)]
mod tests;
