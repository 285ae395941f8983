//! Resource limits of a process: Motet does not use them up.

use motet_tests::{Mode, Program, engine};

/// Reason codes of `motet why`.
const FASTEST: u64 = 0;
const LIMITED: u64 = 33;

/// The program with a limit on its file size (KiB). Its output goes into a pipe, to which the limit does not apply.
fn with_file_size_limit(kib: &str, program: Program) -> Program {
    program.by(&["bash", "-c", "set -o pipefail; (ulimit -f $0; exec \"$@\") | cat", kib])
}

#[test]
fn file_size_limit_raises_no_signal() {
    for kib in ["0", "1", "16", "64", "100", "200", "300", "1000", "5000", "20000"] {
        for (name, arguments) in [("ping_pong", &["4", "500", "64"][..]), ("bulk", &["4", "3"])] {
            with_file_size_limit(kib, Program::c(name, arguments)).same_both_ways();
        }
    }
    with_file_size_limit("0", Program::c("confined_calls", &["child", "close"])).same_both_ways();
    with_file_size_limit("200", Program::c("confined_calls", &["flags", "close"])).same_both_ways();
}

#[test]
fn file_size_limit_with_room_for_a_small_ring_upgrades() {
    with_file_size_limit("400", Program::c("ping_pong", &["4", "2000", "64"])).same_both_ways().took_the_fast_path(1);
}

#[test]
fn file_size_limit_without_room_is_the_reason() {
    if engine().is_none() {
        return;
    }
    // Room for a node's file, but for no segment.
    let outcome = with_file_size_limit("96", Program::c("ping_pong", &["4", "500", "64"])).run(Mode::WithMotet);
    assert!(outcome.succeeded, "{}", outcome.stderr);
    assert_eq!(outcome.sent_fast(), 0);
    assert!(outcome.streams.iter().any(|stream| stream.reason == LIMITED), "{:?}", outcome.streams);
}

#[test]
fn program_allocations_keep_the_address_space() {
    for (limit, own) in [("1500", "1000"), ("3000", "2000"), ("600", "300")] {
        let outcome = Program::c("address_space", &[limit, own]).same_both_ways();
        let up = outcome.streams.iter().filter(|stream| stream.reason == FASTEST).count();
        assert!(up > 0 || engine().is_none(), "no connection found room for its wire: {:?}", outcome.streams.first());
    }
}
