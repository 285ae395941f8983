//! Limits that a process was given: what Motet takes comes out of none of them.

use motet_tests::{Mode, Program, engine};

/// Of the reasons.
const FASTEST: u64 = 0;
const LIMITED: u64 = 33;

/// The program with a limit on the size of its files (KiB). What it prints goes into a pipe: there it has no size.
fn with_files_of(kib: &str, program: Program) -> Program {
    program.by(&["bash", "-c", "set -o pipefail; (ulimit -f $0; exec \"$@\") | cat", kib])
}

#[test]
fn a_limit_on_the_size_of_files_raises_no_signal() {
    for kib in ["0", "1", "16", "64", "100", "200", "300", "1000", "5000", "20000"] {
        for (name, arguments) in [("ping_pong", &["4", "500", "64"][..]), ("bulk", &["4", "3"])] {
            with_files_of(kib, Program::c(name, arguments)).same_both_ways();
        }
    }
    with_files_of("0", Program::c("confined_calls", &["child", "close"])).same_both_ways();
    with_files_of("200", Program::c("confined_calls", &["flags", "close"])).same_both_ways();
}

#[test]
fn where_files_may_be_large_enough_for_a_small_ring_there_is_one() {
    with_files_of("400", Program::c("ping_pong", &["4", "2000", "64"])).same_both_ways().took_the_fast_path(1);
}

#[test]
fn a_limit_that_leaves_no_room_is_the_reason() {
    if engine().is_none() {
        return;
    }
    // Room for a node's file, but for no segment.
    let outcome = with_files_of("96", Program::c("ping_pong", &["4", "500", "64"])).run(Mode::WithMotet);
    assert!(outcome.succeeded, "{}", outcome.complaints);
    assert_eq!(outcome.sent_fast(), 0);
    assert!(outcome.streams.iter().any(|stream| stream.reason == LIMITED), "{:?}", outcome.streams);
}

#[test]
fn the_programs_own_allocations_have_the_address_space() {
    for (limit, own) in [("1500", "1000"), ("3000", "2000"), ("600", "300")] {
        let outcome = Program::c("address_space", &[limit, own]).same_both_ways();
        let up = outcome.streams.iter().filter(|stream| stream.reason == FASTEST).count();
        assert!(up > 0 || engine().is_none(), "no connection found room for its wire: {:?}", outcome.streams.first());
    }
}
