//! Processes that share connections after a fork.

use motet_tests::{Built, Mode, Outcome, Program};

fn fork_group(how: &str) -> Outcome {
    Program::c("fork_group", &[how]).same_both_ways()
}

#[test]
fn young_connection_held_by_two_processes_stays_on_tcp() {
    assert_eq!(fork_group("young-both").sent_fast(), 0);
    assert_eq!(fork_group("young-child-killed").sent_fast(), 0, "the death of the child is not noticed");
}

#[test]
fn young_connection_held_by_one_process_again_is_upgraded() {
    fork_group("young-child-ends").took_the_fast_path(1);
    fork_group("young-child-closes").took_the_fast_path(1);
}

#[test]
fn close_in_one_fork_member_loses_no_bytes_of_others() {
    fork_group("parent-closes").took_the_fast_path(1);
    fork_group("child-closes").took_the_fast_path(1);
}

#[test]
fn fork_members_may_use_different_descriptor_numbers() {
    fork_group("child-renumbers").took_the_fast_path(1);
}

/// State of the engine for one fork is not reused for the next.
#[test]
fn connection_survives_100_successive_children() {
    let outcome = Program::c("fork_many", &["100"]).run(Mode::WithMotet);
    assert!(outcome.succeeded, "{}{}", outcome.printed, outcome.stderr);
    outcome.took_the_fast_path(100 * 64);
}

// ---- exec ---------------------------------------------------------------------------------------------------------------

#[test]
fn connection_after_exec_continues_on_tcp() {
    for (before, between) in [(0, 0), (1, 0), (1, 20), (60, 20)] {
        let program = Program::c("inherits", &[&before.to_string(), &between.to_string()]);
        for program in [program.clone(), program.with_open_gates()] {
            let outcome = program.same_both_ways();
            let most = outcome.streams.iter().map(|s| s.sent_fast).max().unwrap_or(0);
            assert!(
                most <= (before + between) * 64,
                "{most} bytes over shared memory: the new image has no part in that"
            );
        }
    }
}

/// At the exec, ring bytes have been moved to TCP, because the new image cannot read rings.
#[test]
fn connection_after_exec_without_motet_continues_on_tcp() {
    let image = Built::program("inherits", &motet_tests::folder("static-inherits"), &["-static"]);
    let image = image.to_str().unwrap();
    Program::c("inherits", &["0", "0"]).with("INHERITS_IMAGE", image).same_both_ways();
    Program::c("inherits", &["60", "20"]).with("INHERITS_IMAGE", image).same_both_ways().took_the_fast_path(1);
}

#[test]
fn two_inherited_connections_are_not_confused() {
    Program::c("inherits_two", &[]).same_both_ways().took_the_fast_path(1);
}
