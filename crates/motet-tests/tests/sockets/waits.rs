//! Waiting for connections: every way of waiting says of an upgraded connection what the kernel says of a plain one.

use motet_tests::{both, engine};

#[test]
fn a_poll_server_echoes() {
    both("waiters", &["poll", "8", "200"]);
    both("waiters", &["ppoll", "8", "200"]);
}

#[test]
fn a_select_server_echoes() {
    both("waiters", &["select", "8", "200"]);
    both("waiters", &["pselect", "8", "200"]);
}

#[test]
fn programs_that_only_look_take_the_fast_path() {
    for how in ["poll", "select", "epoll", "edge"] {
        both("pollers", &[how, "3000"]).took_the_fast_path(64_000);
    }
}

#[test]
fn a_level_triggered_epoll_server_echoes() {
    both("waiters", &["epoll", "40", "100"]);
    both("waiters", &["epoll-pwait2", "40", "100"]);
}

#[test]
fn an_edge_triggered_epoll_server_echoes() {
    both("waiters", &["epoll-edge", "40", "100"]);
}

#[test]
fn a_one_shot_epoll_server_echoes() {
    both("waiters", &["epoll-oneshot", "40", "100"]);
}

#[test]
fn an_epoll_server_with_two_hundred_clients_echoes() {
    both("waiters", &["epoll", "200", "20"]);
}

#[test]
fn one_client_of_an_epoll_server_takes_the_fast_path() {
    for how in ["epoll", "epoll-edge", "epoll-oneshot"] {
        both("waiters", &[how, "1", "30000"]).took_the_fast_path(1);
    }
}

#[test]
fn deleting_and_adding_around_each_request_keeps_the_fast_path() {
    for (how, clients, rounds) in [("same", "20", "600"), ("between", "1", "6000"), ("turns", "4", "1500")] {
        both("readds", &[how, clients, rounds]).took_the_fast_path(1);
    }
    // More than one direction alone can carry.
    both("readds", &["same", "1", "6000"]).took_the_fast_path(6000 * 48 * 5 / 4 + 1);
}

#[test]
fn corners_of_epoll_are_the_kernels() {
    both("epoll_corners", &[]);
}

#[test]
fn signals_interrupt_waits_as_the_kernel_would() {
    // Where a wait rests behind its gate a handler does not end it: so this proves no more than that the connection is upgraded.
    let streams = both("interrupted", &[]).streams;
    assert!(engine().is_none() || streams.len() == 2 && streams.iter().all(|stream| stream.reason == 0), "{streams:?}");
}

/// With `patience` a wait stays outside the kernel for as long as the handlers and limits here take.
#[test]
fn a_wait_that_rests_ends_with_handlers_and_time_limits_as_one_in_the_kernel() {
    both("rests", &[]).took_the_fast_path(64);
}

#[test]
fn non_blocking_connections_registered_before_they_connect_work() {
    both("nonblocking", &[]);
}

/// Idle, with bytes, with bytes left, with room, half-closed, reset: among ordinary descriptors.
#[test]
fn every_way_of_waiting_tells_every_state_as_the_kernel_does() {
    let by_array = ["select", "pselect", "poll", "ppoll", "poll-chk"];
    let by_set = ["epoll", "epoll-edge", "epoll-oneshot", "epoll-pwait", "epoll-pwait2"];
    for way in by_array.into_iter().chain(by_set) {
        both("readiness", &[way]).took_the_fast_path(1);
    }
}

#[test]
fn exclusive_and_nested_waits_tell_every_state_as_the_kernel_does() {
    both("readiness", &["epoll-exclusive"]);
    both("readiness", &["epoll-nested"]);
}

#[test]
fn a_signal_mask_holds_and_a_handler_interrupts_a_receive() {
    both("amounts", &["signals"]).took_the_fast_path(1);
}

/// Both ends of two connections send 12 800 bytes each before the waits begin, of which the first four messages of 64 take TCP.
const MORE_THAN_THE_EXCHANGES: u64 = 50_200;

/// A pipe that is readable, and room to write, beside a busy stream.
#[test]
fn what_is_ready_beside_a_busy_stream_is_told() {
    for way in ["poll", "ppoll", "select", "pselect", "turns"] {
        both("beside", &[way, "3000"]).took_the_fast_path(MORE_THAN_THE_EXCHANGES);
    }
}

#[test]
fn what_is_ready_beside_a_busy_stream_of_a_set_is_told_soon() {
    for way in ["epoll", "one", "edge", "sets", "threads", "room"] {
        both("beside", &[way, "3000"]).took_the_fast_path(MORE_THAN_THE_EXCHANGES);
    }
}
