//! Signal handlers run as without Motet, may make any async-signal-safe call, and may leave any call by longjmp.

use motet_tests::both;

/// The ring is used after the jumps, so the interrupted wait is over. With open gates a signal is delivered only when the rest of the wait behind
/// them is over, after 300 ms (the time that gates stay open); so there are fewer jumps.
#[test]
fn wait_left_by_longjmp_is_over() {
    for way in ["poll", "select", "epoll", "peek"] {
        both("jumps", &[way, "400"]);
        both("jumps", &[way, "40"]).took_the_fast_path(30_000);
    }
}

#[test]
fn new_connections_work_after_longjmp_out_of_calls() {
    both("jumps", &["new", "500"]);
}

#[test]
fn handler_may_use_sockets_during_malloc() {
    both("handlers", &["malloc", "6000"]).took_the_fast_path(64);
}

#[test]
fn every_signal_is_delivered_once_as_by_the_kernel() {
    both("handlers", &["counted", "20000"]).took_the_fast_path(1);
}

#[test]
fn program_sees_its_own_handlers() {
    both("handlers", &["asked", "500"]).took_the_fast_path(1);
}
