//! Processes that share connections since a fork.

use motet_tests::{Built, Mode, Outcome, Program};

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
    let outcome = Program::c("fork_many", &["100"]).run(Mode::WithMotet);
    assert!(outcome.succeeded, "{}{}", outcome.printed, outcome.complaints);
    outcome.took_the_fast_path(100 * 64);
}

// ---- exec ---------------------------------------------------------------------------------------------------------------

#[test]
fn the_next_program_image_goes_on_with_the_connection_over_tcp() {
    for (before, between) in [(0, 0), (1, 0), (1, 20), (60, 20)] {
        let program = Program::c("inherits", &[&before.to_string(), &between.to_string()]);
        for program in [program.clone(), program.open()] {
            let outcome = program.same_both_ways();
            let most = outcome.streams.iter().map(|s| s.sent_fast).max().unwrap_or(0);
            assert!(
                most <= (before + between) * 64,
                "{most} bytes over shared memory: the new image has no part in that"
            );
        }
    }
}

/// What was in a ring is in TCP by then: the new image cannot look into rings.
#[test]
fn an_image_without_motet_goes_on_with_the_connection_over_tcp() {
    let image = Built::program("inherits", &motet_tests::folder("static-inherits"), &["-static"]);
    let image = image.to_str().unwrap();
    Program::c("inherits", &["0", "0"]).with("INHERITS_IMAGE", image).same_both_ways();
    Program::c("inherits", &["60", "20"]).with("INHERITS_IMAGE", image).same_both_ways().took_the_fast_path(1);
}

#[test]
fn connections_that_an_image_inherits_are_not_taken_for_each_other() {
    Program::c("inherits_two", &[]).same_both_ways().took_the_fast_path(1);
}
