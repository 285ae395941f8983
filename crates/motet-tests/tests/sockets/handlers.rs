//! Signal handlers: they run as the kernel says, may make any call that is async-signal-safe, and may leave any call by a jump.

use motet_tests::both;

/// The ring is used after the jumps: what was left is no longer open. With open gates a signal waits until the rest behind them is over, 300 ms
/// (the time that they stay open): fewer jumps.
#[test]
fn a_wait_that_a_handler_leaves_by_a_jump_is_over() {
    for way in ["poll", "select", "epoll", "peek"] {
        both("jumps", &[way, "400"]);
        both("jumps", &[way, "40"]).took_the_fast_path(30_000);
    }
}

#[test]
fn sends_and_receives_left_by_a_jump_leave_new_connections_usable() {
    both("jumps", &["new", "500"]);
}

#[test]
fn a_handler_uses_sockets_while_the_program_is_in_malloc() {
    both("handlers", &["malloc", "6000"]).took_the_fast_path(64);
}

#[test]
fn every_signal_is_told_once_as_the_kernel_would() {
    both("handlers", &["told", "20000"]).took_the_fast_path(1);
}

#[test]
fn the_program_sees_its_own_handlers() {
    both("handlers", &["asked", "500"]).took_the_fast_path(1);
}
