//! How connections end, by whatever end and in whatever way, and what is left behind.

use motet_tests::{Program, both};

/// Closed, half-closed, shut down for reading, aborted; with SO_LINGER; over unread bytes: every call of the other end, one after another.
#[test]
fn every_end_of_a_connection_shows_as_the_kernel_shows_it() {
    both("ends", &["0"]);
    both("ends", &["1"]).took_the_fast_path(1);
}

#[test]
fn half_closed_connections_deliver_what_was_sent_before() {
    both("half_close", &[]).took_the_fast_path(1);
}

#[test]
fn what_a_killed_peer_had_sent_is_delivered() {
    for bytes in ["50", "30000", "100000"] {
        both("killed_peer", &[bytes]).took_the_fast_path(1);
    }
}

#[test]
fn peers_killed_at_random_instants_leave_what_tcp_would_show() {
    let seed = std::env::var("KILL_SEED").unwrap_or_else(|_| "1".into());
    both("random_kills", &[&seed, "200"]).took_the_fast_path(1 << 20);
}

/// Such a peer has broken no protocol, and `motet why` does not say so.
#[test]
fn a_peer_that_is_killed_over_unread_bytes_is_said_to_have_left_them() {
    const LEFT_UNREAD: u64 = 35;
    let with_motet = Program::c("left_unread", &[]).open().same_both_ways();
    assert_eq!(with_motet.printed, "Connection reset by peer\n");
    // With gates that stay open they lie in the ring, where only Motet knows of them.
    let reasons: Vec<u64> = with_motet.streams.iter().map(|stream| stream.reason).collect();
    assert!(with_motet.streams.is_empty() || reasons == [LEFT_UNREAD], "{:?}", with_motet.streams);
}

#[test]
fn a_close_over_unread_bytes_resets_the_connection() {
    for how in ["close", "part", "copies", "onto", "exit", "forked"] {
        let with_motet = both("unread_close", &[how]);
        let reset = with_motet.printed.lines().all(|line| line.ends_with("Connection reset by peer"));
        assert_eq!(reset, how != "forked", "{}", with_motet.printed);
        with_motet.took_the_fast_path(1);
    }
}

#[test]
fn a_stopped_receiver_of_large_blocks_stops_nobody_else() {
    both("stopped_peer", &[]).took_the_fast_path(1);
}

#[test]
fn a_process_may_end_in_a_signal_handler() {
    let outcome = Program::c("ends_in_handler", &[]).counted().same_both_ways();
    outcome.took_the_fast_path(1);
    let lines = &outcome.counts;
    if motet_tests::engine().is_some() {
        assert_eq!(lines.matches("\"upgraded\":1,").count(), 2, "one line of each process: {lines}");
    }
}

#[test]
fn a_close_under_a_reader_wakes_it() {
    both("threads", &["close-while-receiving"]);
}

#[test]
fn a_descriptor_may_be_closed_under_calls_of_many_threads() {
    for how in ["close", "replace", "range", "reset"] {
        both("racing", &[how, "40"]).took_the_fast_path(1);
    }
}

// ---- what is left behind -------------------------------------------------------------------------------------------------

#[test]
fn three_hundred_programs_one_after_another_leave_nothing_in_the_server() {
    both("links", &["served", "300"]).took_the_fast_path(300 * 64);
}

#[test]
fn three_hundred_servers_one_after_another_leave_nothing_in_the_client() {
    both("links", &["called", "300"]).took_the_fast_path(300 * 64);
}

#[test]
fn two_thousand_connections_of_one_pair_are_one_link() {
    let outcome = Program::c("links", &["again", "2000"]).counted().same_both_ways();
    outcome.took_the_fast_path(64);
    let lines = &outcome.counts;
    if motet_tests::engine().is_some() {
        let link = |line: &str| line.contains("\"links\":1,\"links_closed\":0,");
        assert!(lines.lines().count() == 2 && lines.lines().all(link), "one link in each of two processes: {lines}");
    }
}

#[test]
fn a_forked_child_lets_go_of_its_parents_links_alone() {
    both("links", &["forked", "3"]).took_the_fast_path(3 * 64);
}

#[test]
fn memory_comes_back_from_a_killed_peer() {
    both("links", &["killed", "10"]).took_the_fast_path(10 * 64);
}
