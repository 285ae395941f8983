//! The decision on samples of /proc/stat, and the retries that follow.

use super::*;
use crate::temporary::Temporary;

impl FailureText for usize {
    fn failure_text(&self) -> String {
        format!("try {self}")
    }
}

fn verdict(before: (u64, u64), after: (u64, u64)) -> Option<String> {
    let ticks = |(all, stolen)| Ticks { all, stolen };
    ticks(before).taken_until(ticks(after))
}

#[test]
fn little_steal_is_no_cause() {
    assert_eq!(verdict((0, 0), (12_000, 0)), None);
    // A little steal is normal.
    assert_eq!(verdict((15_190, 7), (15_302, 15)), None);
    assert_eq!(verdict((50_208, 114), (50_279, 125)), None);
    // A long span, with as much steal as would be a cause in a short one.
    assert_eq!(verdict((27_438, 145), (47_438, 445)), None);
}

#[test]
fn steal_of_a_fifth_is_a_cause() {
    let why = verdict((27_438, 145), (27_507, 162));
    assert_eq!(why.as_deref(), Some("the host took 24 % of this machine's CPU time (17 of 69 ticks)"));
    assert_eq!(verdict((1000, 0), (1100, 20)).as_deref().map(|text| &text[..18]), Some("the host took 20 %"));
    assert_eq!(verdict((1000, 0), (1100, 19)), None);
}

#[test]
fn few_ticks_and_an_unreadable_file_are_no_cause() {
    assert_eq!(verdict((100, 0), (108, 4)), None, "half of the time, but too few ticks");
    assert_eq!(verdict((0, 0), (0, 0)), None);
}

#[test]
fn guest_times_are_not_counted_twice() {
    let stat = "cpu  4661648 1359436 1477643 2731095 65907 0 94846 833691 12 34\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
    assert_eq!(Ticks::read(stat), Ticks { all: 11_224_266, stolen: 833_691 });
    assert_eq!(Ticks::read(""), Ticks { all: 0, stolen: 0 });
    assert!(Ticks::now().all > 0, "/proc/stat is read");
}

/// Runs attempts of which the first `fail` fail, with causes by `cause` and `allowed` retries. Returns how many were made, and the result.
fn attempts(fail: usize, allowed: usize, cause: impl Fn(usize) -> bool) -> (usize, Result<(), usize>) {
    let (made, taken) = (Cell::new(0), Cell::new(0));
    let attempt = || {
        made.update(|made| made + 1);
        if made.get() > fail { Ok(()) } else { Err(made.get()) }
    };
    let stolen = || cause(made.get()).then(|| "stolen".to_owned());
    let result = retry("this", attempt, stolen, |line| {
        assert_eq!(line, format!("this: stolen; it failed: try {}", made.get()));
        taken.update(|taken| taken + 1);
        taken.get() <= allowed
    });
    (made.get(), result)
}

#[test]
fn failure_is_retried_only_with_cause_and_quota() {
    assert_eq!(attempts(0, MAX_RETRIES, |_| true), (1, Ok(())));
    assert_eq!(attempts(1, MAX_RETRIES, |_| false), (1, Err(1)), "no steal, no retry");
    assert_eq!(attempts(2, MAX_RETRIES, |_| true), (3, Ok(())));
    assert_eq!(attempts(9, MAX_RETRIES, |number| number < 3), (3, Err(3)), "no steal the third time");
    assert_eq!(attempts(9, MAX_RETRIES, |_| true), (4, Err(4)), "no retry is left for the fourth failure");
    assert_eq!(attempts(1, 0, |_| true), (1, Err(1)), "other tests used up the retries");
}

#[test]
fn processes_of_one_run_share_the_retry_quota() {
    let folder = Temporary::new("again");
    let log = folder.path().join("log");
    let take = |line: &str| RetryQuota::File(log.clone()).take(line);
    let taken: Vec<bool> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..12).map(|n| scope.spawn(move || take(&format!("test {n}: stolen\nsecond line")))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(taken.iter().filter(|taken| **taken).count(), MAX_RETRIES);
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(
        text.lines().count() == MAX_RETRIES && text.lines().all(|line| line.ends_with(": stolen | second line")),
        "{text}"
    );
    assert!(!RetryQuota::File(folder.path().into()).take("a folder"), "no retry without a log line");
}

/// A bug that appears in half of all runs at random is reported each time, and no run is repeated.
#[test]
fn bug_in_half_of_the_runs_is_reported_each_time() {
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut appears = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random >> 63 == 0
    };
    // Twenty runs of `make test`, each with thirty tests that may hit the bug.
    let (mut appeared, mut reported, mut made) = (0, 0, 0);
    for _ in 0..20 {
        let (appeared_before, reported_before) = (appeared, reported);
        for test in 0..30 {
            let result = ignoring_steal(|| {
                retry_on_steal("a test", || {
                    made += 1;
                    let bug = appears();
                    appeared += usize::from(bug);
                    if bug { Err(test) } else { Ok(()) }
                })
            });
            reported += usize::from(result.is_err());
        }
        assert!(reported > reported_before, "a run without a report");
        assert_eq!(reported - reported_before, appeared - appeared_before);
    }
    assert_eq!(made, 20 * 30, "one attempt each");
    assert!((200..400).contains(&reported), "about half of them: {reported}");
}
