//! Whether a program that has ended is started again, and when. Time is an argument.

use std::time::Duration;

/// The wait before the first restart; it doubles with each one that follows soon.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest wait.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// A program that has run for so long has started well: waits begin anew, and its earlier restarts do not count.
const GOOD_TIME: Duration = Duration::from_secs(60);
/// Restarts in a row, if the descriptor does not say.
const DEFAULT_LIMIT: u32 = 5;
/// The most restarts that a descriptor may ask for.
const MAX_LIMIT: u32 = 1_000_000;

/// When a program is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Never.
    Never,
    /// After it has failed.
    OnFailure,
    /// Always.
    Always,
}

/// The policy of one module, and its state.
#[derive(Debug, Clone)]
pub struct Restarts {
    when: When,
    limit: u32,
    in_a_row: u32,
}

impl Restarts {
    /// From the options `restart` and `restart-limit`.
    pub fn parse(when: Option<&str>, limit: Option<&str>) -> Result<Self, String> {
        let when = match when {
            None | Some("never") => When::Never,
            Some("on-failure") => When::OnFailure,
            Some("always") => When::Always,
            Some(other) => return Err(format!("restart is {other:?}: use never, on-failure or always")),
        };
        let limit = match limit.map(str::parse::<u32>) {
            None => DEFAULT_LIMIT,
            Some(Ok(limit)) if limit <= MAX_LIMIT => limit,
            Some(_) => return Err(format!("restart-limit is no number from 0 to {MAX_LIMIT}")),
        };
        Ok(Self { when, limit, in_a_row: 0 })
    }

    /// The program has ended by itself, after `ran`. Returns how long to wait before it is started again; `None`: it is not.
    pub fn after_end(&mut self, success: bool, ran: Duration) -> Option<Duration> {
        if ran >= GOOD_TIME {
            self.in_a_row = 0;
        }
        let wanted = self.when == When::Always || self.when == When::OnFailure && !success;
        if !wanted || self.in_a_row >= self.limit {
            return None;
        }
        let wait = FIRST_WAIT.saturating_mul(1u32.checked_shl(self.in_a_row).unwrap_or(u32::MAX)).min(MAX_WAIT);
        self.in_a_row += 1;
        Some(wait)
    }

    /// A user has started it: earlier restarts do not count.
    pub fn begin(&mut self) {
        self.in_a_row = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_secs(1);

    #[test]
    fn policies_differ() {
        let after = |when, success| Restarts::parse(Some(when), None).unwrap().after_end(success, SHORT).is_some();
        assert_eq!(["never", "on-failure", "always"].map(|when| after(when, true)), [false, false, true]);
        assert_eq!(["never", "on-failure", "always"].map(|when| after(when, false)), [false, true, true]);
        assert!(Restarts::parse(Some("sometimes"), None).is_err());
        assert!(["-1", "x", "9999999", ""].iter().all(|limit| Restarts::parse(None, Some(limit)).is_err()));
    }

    #[test]
    fn waits_double_up_to_a_limit_and_restarts_end() {
        let mut restarts = Restarts::parse(Some("always"), Some("40")).unwrap();
        let waits: Vec<_> = std::iter::from_fn(|| restarts.after_end(false, SHORT)).collect();
        assert_eq!(waits.len(), 40);
        assert_eq!(waits[..3], [100, 200, 400].map(Duration::from_millis));
        assert!(waits[7..].iter().all(|wait| *wait == MAX_WAIT));
        assert_eq!(restarts.after_end(false, GOOD_TIME), Some(FIRST_WAIT), "it ran well in between");
        while restarts.after_end(false, SHORT).is_some() {}
        restarts.begin();
        assert_eq!(restarts.after_end(false, SHORT), Some(FIRST_WAIT));
    }
}
