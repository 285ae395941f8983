//! Whether the kernel may keep an answer: only if the server gave no notice since the answer was asked for.
//!
//! A notice is about what the kernel has. An answer in flight is not there yet, so its notice would find nothing, and the kernel would keep what is not true any more.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// Counts the notices of a mount.
#[derive(Debug, Default)]
pub struct Freshness(RwLock<u64>);

/// How many notices there were when an answer was asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Asked(u64);

/// An answer that is being given to the kernel. The next notice waits until this is dropped, and finds what the kernel has got.
#[derive(Debug)]
#[must_use = "a notice may come when this is dropped"]
pub struct Answering<'a> {
    notices: RwLockReadGuard<'a, u64>,
    asked: Asked,
}

impl Freshness {
    /// To be called before the server is asked.
    pub fn asked(&self) -> Asked {
        Asked(*self.read())
    }

    /// To be held from before the file's number is noted until the kernel has the answer, and not while the server is asked: it may wait for its notice.
    pub fn answering(&self, asked: Asked) -> Answering<'_> {
        Answering { notices: self.read(), asked }
    }

    /// A notice has come. Answers that were asked for before are given to the kernel by now, or are not kept.
    pub fn noticed(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    fn read(&self) -> RwLockReadGuard<'_, u64> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Answering<'_> {
    /// Whether no notice has come since the answer was asked for.
    pub fn is_fresh(&self) -> bool {
        Asked(*self.notices) == self.asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    #[test]
    fn an_answer_that_was_asked_for_before_a_notice_is_not_fresh() {
        let freshness = Freshness::default();
        let asked = freshness.asked();
        assert!(freshness.answering(asked).is_fresh());
        freshness.noticed();
        assert!(!freshness.answering(asked).is_fresh());
        assert!(freshness.answering(freshness.asked()).is_fresh());
    }

    #[test]
    fn a_notice_waits_for_an_answer_that_is_being_given() {
        let (freshness, told) = (Freshness::default(), AtomicBool::new(false));
        thread::scope(|scope| {
            let answering = freshness.answering(freshness.asked());
            scope.spawn(|| {
                freshness.noticed();
                told.store(true, Ordering::SeqCst);
            });
            thread::sleep(Duration::from_millis(20));
            assert!(answering.is_fresh() && !told.load(Ordering::SeqCst));
            drop(answering);
        });
        assert!(told.load(Ordering::SeqCst));
    }
}
