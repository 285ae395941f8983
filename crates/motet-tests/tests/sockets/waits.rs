//! Waits: every wait call reports for an upgraded connection what the kernel reports for a TCP connection.

use motet_tests::{Program, both, engine};

#[test]
fn poll_server_echoes() {
    both("waiters", &["poll", "8", "200"]);
    both("waiters", &["ppoll", "8", "200"]);
}

#[test]
fn select_server_echoes() {
    both("waiters", &["select", "8", "200"]);
    both("waiters", &["pselect", "8", "200"]);
}

#[test]
fn programs_that_only_poll_take_the_fast_path() {
    for how in ["poll", "select", "epoll", "edge"] {
        both("pollers", &[how, "3000"]).took_the_fast_path(64_000);
    }
}

#[test]
fn level_triggered_epoll_server_echoes() {
    both("waiters", &["epoll", "40", "100"]);
    both("waiters", &["epoll-pwait2", "40", "100"]);
}

#[test]
fn edge_triggered_epoll_server_echoes() {
    both("waiters", &["epoll-edge", "40", "100"]);
}

#[test]
fn one_shot_epoll_server_echoes() {
    both("waiters", &["epoll-oneshot", "40", "100"]);
}

#[test]
fn epoll_server_with_200_clients_echoes() {
    both("waiters", &["epoll", "200", "20"]);
}

#[test]
fn single_client_of_an_epoll_server_takes_the_fast_path() {
    for how in ["epoll", "epoll-edge", "epoll-oneshot"] {
        both("waiters", &[how, "1", "30000"]).took_the_fast_path(1);
    }
}

#[test]
fn epoll_del_and_add_per_request_keep_the_fast_path() {
    for (how, clients, rounds) in [("same", "20", "600"), ("between", "1", "6000"), ("turns", "4", "1500")] {
        both("readds", &[how, clients, rounds]).took_the_fast_path(1);
    }
    // More than one direction alone can carry.
    both("readds", &["same", "1", "6000"]).took_the_fast_path(6000 * 48 * 5 / 4 + 1);
}

#[test]
fn epoll_corner_cases_match_the_kernel() {
    both("epoll_corners", &[]);
}

#[test]
fn signals_interrupt_waits_as_in_the_kernel() {
    // A wait that rests behind its gate is not ended by a handler, so only the upgrade is checked.
    let streams = both("interrupted", &[]).streams;
    assert!(engine().is_none() || streams.len() == 2 && streams.iter().all(|stream| stream.reason == 0), "{streams:?}");
}

/// With `patience` a wait stays outside the kernel for as long as the handlers and time limits of the test.
#[test]
fn wait_outside_kernel_ends_by_handler_or_timeout_as_inside() {
    both("rests", &[]).took_the_fast_path(64);
}

#[test]
fn non_blocking_sockets_registered_before_connect_work() {
    both("nonblocking", &[]);
}

/// Idle, with bytes, with bytes left, with room, half-closed, reset: among ordinary descriptors.
#[test]
fn every_wait_call_reports_every_state_as_the_kernel() {
    let by_array = ["select", "pselect", "poll", "ppoll", "poll-chk"];
    let by_set = ["epoll", "epoll-edge", "epoll-oneshot", "epoll-pwait", "epoll-pwait2"];
    for way in by_array.into_iter().chain(by_set) {
        both("readiness", &[way]).took_the_fast_path(1);
    }
}

#[test]
fn exclusive_and_nested_waits_report_states_as_the_kernel() {
    both("readiness", &["epoll-exclusive"]);
    both("readiness", &["epoll-nested"]);
}

#[test]
fn signal_mask_holds_and_handler_interrupts_receive() {
    both("amounts", &["signals"]).took_the_fast_path(1);
}

/// Both ends of two connections send 12 800 bytes each before the waits begin; the first four messages of 64 bytes use TCP.
const MORE_THAN_THE_EXCHANGES: u64 = 50_200;

/// A readable pipe, and room to write, beside a busy stream.
#[test]
fn readiness_beside_a_busy_stream_is_reported() {
    for way in ["poll", "ppoll", "select", "pselect", "turns"] {
        both("beside", &[way, "3000"]).took_the_fast_path(MORE_THAN_THE_EXCHANGES);
    }
}

#[test]
fn readiness_beside_a_busy_stream_in_a_set_is_reported_soon() {
    for way in ["epoll", "one", "edge", "sets", "threads", "room"] {
        // Waits that end at once, as the pipe is readable, seldom open a gate where the schedule is against it: one run in so many has an open one.
        let ran = (0..8).map(|_| both("beside", &[way, "3000"])).find(|ran| ran.sent_fast() > MORE_THAN_THE_EXCHANGES);
        assert!(ran.is_some(), "{way}: the busy stream was never in shared memory");
    }
}

/// What a short send, a short receive, EAGAIN, EPOLL_CTL_MOD, EPOLLONESHOT, EPOLLEXCLUSIVE, EPOLLRDHUP, SO_RCVLOWAT, FIONREAD and a peek let a program
/// conclude about later readiness: 30 random schedules. `make torture` runs others.
#[test]
fn results_permit_the_conclusions_that_they_permit_on_tcp() {
    both("torture_readiness", &["13", "0", "30"]).took_the_fast_path(1_000_000);
}

// ---- results that say what is there -----------------------------------------------------------------------------------------

#[test]
fn each_arrival_is_an_edge_although_what_came_before_is_unread() {
    both("kernel_results", &["edges"]).took_the_fast_path(10_000);
}

#[test]
fn a_full_array_has_all_events_of_its_descriptors() {
    for trigger in ["full", "full edges"] {
        Program::c("kernel_results", &[trigger]).with_open_gates().same_both_ways().took_the_fast_path(1000);
    }
}

#[test]
fn what_is_there_stays_there_until_it_is_read() {
    both("kernel_results", &["stays"]).took_the_fast_path(1);
}

#[test]
fn a_closed_copy_stays_registered_over_what_is_unread() {
    Program::c("kernel_results", &["closed copy"]).with_open_gates().same_both_ways().took_the_fast_path(100);
}

#[test]
fn a_low_water_mark_counts_what_is_unread() {
    Program::c("kernel_results", &["low water"]).with_open_gates().same_both_ways().took_the_fast_path(1);
}
