//! Processes that share connections since a fork.

use motet_tests::{Mode, Outcome, Program};

fn family(how: &str) -> Outcome {
    Program::c("fork_family", &[how]).same_both_ways()
}

#[test]
fn a_connection_forked_young_stays_on_tcp_while_two_processes_have_it() {
    assert_eq!(family("young-both").sent_fast(), 0);
    assert_eq!(family("young-child-killed").sent_fast(), 0, "nobody knows that the child is gone");
}

#[test]
fn a_connection_forked_young_takes_the_fast_path_once_one_process_has_it_alone() {
    family("young-child-ends").took_the_fast_path(1);
    family("young-child-closes").took_the_fast_path(1);
}

#[test]
fn a_relative_that_closes_a_connection_takes_nothing_from_the_others() {
    family("parent-closes").took_the_fast_path(1);
    family("child-closes").took_the_fast_path(1);
}

#[test]
fn relatives_may_number_a_connection_differently() {
    family("child-renumbers").took_the_fast_path(1);
}

/// What the engine takes of the fork of one process is not taken for the next one.
#[test]
fn a_hundred_children_one_after_another_change_nothing() {
    let outcome = Program::c("fork_many", &["100"]).run(Mode::Equipped);
    assert!(outcome.succeeded, "{}{}", outcome.printed, outcome.complaints);
    outcome.took_the_fast_path(100 * 64);
}
