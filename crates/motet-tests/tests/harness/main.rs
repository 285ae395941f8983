//! Tests of the harness: a bug that appears in every second run is reported each time, and no run is repeated to hide it.

use motet_tests::cpu_steal::ignoring_steal;
use motet_tests::temporary::Temporary;
use motet_tests::{Program, engine};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Repeats a test twenty times that hits the bug of `tests/programs/bug.c` in its first run under Motet. Returns how often the bug was reported, and
/// how many runs that took.
fn reported(how: &str, bytes: Option<u64>) -> (usize, u64) {
    let folder = Temporary::new("bug");
    let (counter, mut reported, mut with_motet) = (folder.join("counter"), 0, 0);
    for _ in 0..20 {
        let program = Program::c("bug", &[how, counter.to_str().expect("UTF-8")]);
        let test = || {
            let program = if bytes.is_some() { program.with_open_gates() } else { program };
            let outcome = program.same_both_ways();
            bytes.into_iter().for_each(|bytes| outcome.took_the_fast_path(bytes));
        };
        reported += usize::from(ignoring_steal(|| catch_unwind(AssertUnwindSafe(test))).is_err());
        with_motet += counter.metadata().expect("it has run").len();
        std::fs::remove_file(&counter).expect("the next one meets the bug, too");
    }
    (reported, with_motet)
}

#[test]
fn bug_in_every_second_run_is_reported_every_time() {
    for how in ["status", "output", "complaint"] {
        assert_eq!(reported(how, None), (20, 20), "{how}: reported, and runs under Motet until then");
    }
}

#[test]
fn fast_path_missed_in_every_second_run_is_reported() {
    if engine().is_none() {
        return eprintln!("SKIPPED the fast path: libmotet.so.0 is not built (make build)");
    }
    assert_eq!(reported("bytes", Some(1000)), (20, 20));
}

/// Without the bug the same tests pass, so the reports above are caused by the bug.
#[test]
fn program_without_the_bug_passes() {
    let folder = Temporary::new("bug");
    let counter = folder.join("counter");
    Program::c("bug", &["none", counter.to_str().expect("UTF-8")]).same_both_ways().took_the_fast_path(1000);
}

#[test]
fn hang_is_reported_as_a_hang() {
    let folder = Temporary::new("bug");
    let counter = folder.join("counter");
    let program = Program::c("bug", &["hang", counter.to_str().expect("UTF-8")]).within(Duration::from_secs(3));
    let failed =
        ignoring_steal(|| catch_unwind(AssertUnwindSafe(|| drop(program.same_both_ways())))).expect_err("it hangs");
    let words = failed.downcast_ref::<String>().expect("words");
    assert!(words.contains("hung: killed after the limit"), "{words}");
}
