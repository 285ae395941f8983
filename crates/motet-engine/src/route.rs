//! The choice of a driver for a pair: every driver is asked, the best one that can carry it wins, and every rejected one keeps its reason.

use crate::driver::{Driver, Pair};
use crate::reason::Reason;

/// The answer of one driver.
#[derive(Clone, Copy)]
pub struct Verdict {
    /// The driver.
    pub driver: &'static dyn Driver,
    /// Whether it could carry the pair, or why not.
    pub answer: Result<(), Reason>,
}

/// Asks every driver of the table that is allowed; best first.
pub fn verdicts(table: &[&'static dyn Driver], allowed: impl Fn(&str) -> bool, pair: &Pair) -> Vec<Verdict> {
    let mut all: Vec<_> = table
        .iter()
        .filter_map(|&driver| {
            let streams = driver.streams()?;
            let answer = if allowed(driver.name()) { streams.reach(pair) } else { Err(Reason::FORBIDDEN) };
            Some(Verdict { driver, answer })
        })
        .collect();
    all.sort_by_key(|v| (v.answer.is_err(), v.driver.capabilities().latency));
    all
}

/// The best driver that could carry the pair; otherwise the reason of the one with the lowest latency.
pub fn choose(verdicts: &[Verdict]) -> Result<&'static dyn Driver, Reason> {
    match verdicts.first() {
        Some(Verdict { driver, answer: Ok(()) }) => Ok(*driver),
        Some(Verdict { answer: Err(reason), .. }) => Err(*reason),
        None => Err(Reason::FORBIDDEN),
    }
}
