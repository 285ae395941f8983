//! Descriptors in several epoll sets, nested sets, and several threads in one set report the kernel's readiness.

use motet_tests::{Outcome, Program};

const KINDS: [&str; 3] = ["level", "edge", "oneshot"];

/// The reasons UNSEEN_WAIT and NESTED of `motet why`.
const UNSEEN_WAIT_REASON: u64 = 19;
const NESTED_REASON: u64 = 20;

fn both(name: &str, arguments: &[&str]) -> Outcome {
    Program::c(name, arguments).same_both_ways()
}

#[track_caller]
fn stays_on_tcp_because(outcome: &Outcome, reason: u64) {
    if motet_tests::engine().is_some() {
        assert!(outcome.streams.iter().any(|stream| stream.reason == reason), "{:?}", outcome.streams);
    }
}

#[test]
fn connections_moved_between_sets_keep_the_fast_path() {
    for kind in KINDS {
        both("sets", &["moved", kind, "200"]).took_the_fast_path(100_000);
    }
}

#[test]
fn connection_in_two_sets_and_a_poll_wakes_all_three() {
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
fn nested_sets_report_readiness_of_the_innermost() {
    for kind in KINDS {
        stays_on_tcp_because(&both("sets", &["nested", kind, "1"]), NESTED_REASON);
    }
}

/// As the virtual threads of JDK 22 and later wait: sets of the readers, in one set of the pollers.
#[test]
fn pollers_in_sets_within_a_set_take_the_fast_path() {
    both("nested_pollers", &["8", "1000"]).took_the_fast_path(50_000);
    both("nested_pollers", &["1", "2000"]).took_the_fast_path(10_000);
}

/// Two connections that carry the same: a message by the second one is another edge than one by the first at the same place.
#[test]
fn edges_of_a_set_within_a_set_are_told_apart() {
    for kind in ["level", "renewed"] {
        both("nested_edges", &[kind, "2000"]).took_the_fast_path(50_000);
    }
}

#[test]
fn duplicates_in_one_set_are_reported_separately() {
    for kind in KINDS {
        stays_on_tcp_because(&both("sets", &["twins", kind, "1"]), UNSEEN_WAIT_REASON);
    }
}

#[test]
fn set_shared_with_a_forked_child_serves_every_request() {
    for kind in KINDS {
        both("sets", &["shared", kind, "4"]);
    }
}

#[test]
fn threads_sharing_one_set_serve_every_request() {
    for kind in KINDS {
        both("set_threads", &[kind, "4", "4", "200"]).took_the_fast_path(1);
        both("set_threads", &[kind, "3", "1", "500"]).took_the_fast_path(1);
        both("set_threads", &[kind, "8", "40", "40"]);
    }
}
