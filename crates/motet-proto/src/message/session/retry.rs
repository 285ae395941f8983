//! When a broken session tries to reconnect, and when it is given up.

/// A session that is not resumed for this long after a break is lost.
pub const RESUME_TIMEOUT_NS: u64 = 10_000_000_000;
/// Pause between the first attempts, and the longest pause.
const MIN_PAUSE_NS: u64 = 10_000_000;
const MAX_PAUSE_NS: u64 = 1_000_000_000;

/// Attempts after one break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    next: u64,
    pause: u64,
    until: u64,
}

impl Retry {
    /// The session breaks at `now`: the first attempt is due at once.
    pub fn new(now: u64) -> Self {
        Self { next: now, pause: MIN_PAUSE_NS, until: now.saturating_add(RESUME_TIMEOUT_NS) }
    }

    /// Whether an attempt is due. If so, the next one is due after a pause, which doubles with each attempt.
    pub fn attempt(&mut self, now: u64) -> bool {
        if now < self.next || self.is_over(now) {
            return false;
        }
        self.next = now.saturating_add(self.pause);
        self.pause = (2 * self.pause).min(MAX_PAUSE_NS);
        true
    }

    /// Whether the session is lost.
    pub fn is_over(&self, now: u64) -> bool {
        now >= self.until
    }

    /// When an attempt is due or the session is lost.
    pub fn due(&self) -> u64 {
        self.next.min(self.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_back_off_and_end() {
        let mut retry = Retry::new(1000);
        let (mut now, mut attempts) = (1000, Vec::new());
        while !retry.is_over(now) {
            if retry.attempt(now) {
                attempts.push(now);
            }
            assert!(!retry.attempt(now), "one at a time");
            now = retry.due();
        }
        assert_eq!(attempts[..3], [1000, 1000 + MIN_PAUSE_NS, 1000 + 3 * MIN_PAUSE_NS]);
        assert!((10..30).contains(&attempts.len()), "{}", attempts.len());
        assert_eq!(now, 1000 + RESUME_TIMEOUT_NS);
    }
}
