//! The harness itself: a bug that appears in every second run is reported each time that it appears, and nothing is run again to hide it.

use motet_tests::machine::without_steal;
use motet_tests::temporary::Temporary;
use motet_tests::{Program, engine};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Twenty times a test that meets the bug of `tests/programs/bug.c` in its first run under Motet; how often it was reported, and in how many runs.
fn reported(how: &str, bytes: Option<u64>) -> (usize, u64) {
    let folder = Temporary::new("bug");
    let (counter, mut reported, mut with_motet) = (folder.join("counter"), 0, 0);
    for _ in 0..20 {
        let program = Program::c("bug", &[how, counter.to_str().expect("UTF-8")]);
        let test = || {
            let program = if bytes.is_some() { program.open() } else { program };
            let outcome = program.same_both_ways();
            bytes.into_iter().for_each(|bytes| outcome.took_the_fast_path(bytes));
        };
        reported += usize::from(without_steal(|| catch_unwind(AssertUnwindSafe(test))).is_err());
        with_motet += counter.metadata().expect("it has run").len();
        std::fs::remove_file(&counter).expect("the next one meets the bug, too");
    }
    (reported, with_motet)
}

#[test]
fn a_bug_in_every_second_run_is_reported_twenty_times_of_twenty() {
    for how in ["status", "output", "complaint"] {
        assert_eq!(reported(how, None), (20, 20), "{how}: reported, and runs under Motet until then");
    }
}

#[test]
fn a_fast_path_that_is_missed_in_every_second_run_is_reported_twenty_times_of_twenty() {
    if engine().is_none() {
        return eprintln!("SKIPPED the fast path: libmotet.so.0 is not built (make build)");
    }
    assert_eq!(reported("bytes", Some(1000)), (20, 20));
}

/// Without the bug the same tests pass: what is reported above is the bug.
#[test]
fn without_the_bug_there_is_nothing_to_report() {
    let folder = Temporary::new("bug");
    let counter = folder.join("counter");
    Program::c("bug", &["none", counter.to_str().expect("UTF-8")]).same_both_ways().took_the_fast_path(1000);
}

#[test]
fn a_hang_is_reported_as_such() {
    let folder = Temporary::new("bug");
    let counter = folder.join("counter");
    let program = Program::c("bug", &["hang", counter.to_str().expect("UTF-8")]).within(Duration::from_secs(3));
    let failed =
        without_steal(|| catch_unwind(AssertUnwindSafe(|| drop(program.same_both_ways())))).expect_err("it hangs");
    let words = failed.downcast_ref::<String>().expect("words");
    assert!(words.contains("hung: killed after the limit"), "{words}");
}
