//! Ends of connections, by either end and in every form, and the resources that remain.

use motet_tests::{Program, both};

/// Closed, half-closed, shut down for reading, aborted; with SO_LINGER; with unread bytes: every call of the other end, one after another.
#[test]
fn every_connection_end_looks_as_on_tcp() {
    both("ends", &["0"]);
    both("ends", &["1"]).took_the_fast_path(1);
}

#[test]
fn half_closed_connections_deliver_earlier_bytes() {
    both("half_close", &[]).took_the_fast_path(1);
}

#[test]
fn bytes_of_a_killed_peer_are_delivered() {
    for bytes in ["50", "30000", "100000"] {
        both("killed_peer", &[bytes]).took_the_fast_path(1);
    }
}

#[test]
fn peers_killed_at_random_look_as_on_tcp() {
    let seed = std::env::var("KILL_SEED").unwrap_or_else(|_| "1".into());
    both("random_kills", &[&seed, "200"]).took_the_fast_path(1 << 20);
}

/// The reason in `motet why` is LEFT_UNREAD, not a broken protocol.
#[test]
fn peer_killed_with_unread_bytes_reports_left_unread() {
    const LEFT_UNREAD: u64 = 35;
    let with_motet = Program::c("left_unread", &[]).with_open_gates().same_both_ways();
    assert_eq!(with_motet.printed, "Connection reset by peer\n");
    // With open gates the unread bytes are in the ring, where only Motet sees them.
    let reasons: Vec<u64> = with_motet.streams.iter().map(|stream| stream.reason).collect();
    assert!(with_motet.streams.is_empty() || reasons == [LEFT_UNREAD], "{:?}", with_motet.streams);
}

#[test]
fn close_with_unread_bytes_resets_the_connection() {
    for how in ["close", "part", "copies", "onto", "exit", "forked"] {
        let with_motet = both("unread_close", &[how]);
        let reset = with_motet.printed.lines().all(|line| line.ends_with("Connection reset by peer"));
        assert_eq!(reset, how != "forked", "{}", with_motet.printed);
        with_motet.took_the_fast_path(1);
    }
}

#[test]
fn stopped_receiver_of_large_blocks_delays_no_other_peer() {
    both("stopped_peer", &[]).took_the_fast_path(1);
}

#[test]
fn process_may_exit_in_a_signal_handler() {
    let outcome = Program::c("ends_in_handler", &[]).counted().same_both_ways();
    outcome.took_the_fast_path(1);
    let lines = &outcome.counts;
    if motet_tests::engine().is_some() {
        assert_eq!(lines.matches("\"upgraded\":1,").count(), 2, "one line of each process: {lines}");
    }
}

#[test]
fn close_wakes_a_blocked_reader() {
    both("threads", &["close-while-receiving"]);
}

#[test]
fn descriptor_may_be_closed_under_calls_of_many_threads() {
    for how in ["close", "replace", "range", "reset"] {
        both("racing", &[how, "40"]).took_the_fast_path(1);
    }
}

// ---- resources that remain ------------------------------------------------------------------------------------------------

#[test]
fn server_keeps_nothing_of_300_successive_clients() {
    both("links", &["served", "300"]).took_the_fast_path(300 * 64);
}

#[test]
fn client_keeps_nothing_of_300_successive_servers() {
    both("links", &["called", "300"]).took_the_fast_path(300 * 64);
}

#[test]
fn pair_with_2000_connections_has_one_link() {
    let outcome = Program::c("links", &["again", "2000"]).counted().same_both_ways();
    outcome.took_the_fast_path(64);
    let lines = &outcome.counts;
    if motet_tests::engine().is_some() {
        let link = |line: &str| line.contains("\"links\":1,\"links_closed\":0,");
        assert!(lines.lines().count() == 2 && lines.lines().all(link), "one link in each of two processes: {lines}");
    }
}

#[test]
fn forked_children_release_links_of_their_parent() {
    both("links", &["forked", "3"]).took_the_fast_path(3 * 64);
}

#[test]
fn memory_shared_with_a_killed_peer_is_freed() {
    both("links", &["killed", "10"]).took_the_fast_path(10 * 64);
}
