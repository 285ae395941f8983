//! Descriptors in several epoll sets, sets in sets, and several threads in one set: readiness stays the kernel's.

use motet_tests::{Outcome, Program};

const KINDS: [&str; 3] = ["level", "edge", "oneshot"];

/// UNSEEN_WAIT and NESTED of `motet why`.
const UNSEEN: u64 = 19;
const NESTED: u64 = 20;

fn both(name: &str, arguments: &[&str]) -> Outcome {
    Program::c(name, arguments).same_both_ways()
}

#[track_caller]
fn stays_plain_because(outcome: &Outcome, reason: u64) {
    if motet_tests::engine().is_some() {
        assert!(outcome.streams.iter().any(|stream| stream.reason == reason), "{:?}", outcome.streams);
    }
}

#[test]
fn two_hundred_connections_moved_between_sets_keep_the_fast_path() {
    for kind in KINDS {
        both("sets", &["moved", kind, "200"]).took_the_fast_path(100_000);
    }
}

#[test]
fn a_connection_in_two_sets_and_a_poll_wakes_all_three() {
    for kind in KINDS {
        both("sets", &["second", kind, "1"]).took_the_fast_path(1);
    }
}

#[test]
fn exclusive_registrations_lose_no_request() {
    for kind in ["level", "edge"] {
        both("sets", &["exclusive", kind, "4"]).took_the_fast_path(1);
    }
}

#[test]
fn sets_in_sets_and_a_poll_on_a_set_see_what_the_innermost_holds() {
    for kind in KINDS {
        stays_plain_because(&both("sets", &["nested", kind, "1"]), NESTED);
    }
}

#[test]
fn two_descriptors_of_one_connection_in_a_set_are_told_apart() {
    for kind in KINDS {
        stays_plain_because(&both("sets", &["twins", kind, "1"]), UNSEEN);
    }
}

#[test]
fn a_set_that_a_forked_child_waits_on_too_serves_every_request() {
    for kind in KINDS {
        both("sets", &["shared", kind, "4"]);
    }
}

#[test]
fn several_threads_in_one_set_serve_every_request() {
    for kind in KINDS {
        both("set_threads", &[kind, "4", "4", "200"]).took_the_fast_path(1);
        both("set_threads", &[kind, "3", "1", "500"]).took_the_fast_path(1);
        both("set_threads", &[kind, "8", "40", "40"]);
    }
}
