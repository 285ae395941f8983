//! Forms of calls: names and options, amounts and flags, and calls that bypass the adapter.

use motet_tests::programs::skip;
use motet_tests::{Built, Mode, Program, both};

// ---- names and options ---------------------------------------------------------------------------------------------------

/// Wildcard and dual-stack listeners, a bound source, a closed listener, several listeners on one port, accept order, connects that do not block or
/// are refused: addresses of both ends.
#[test]
fn names_backlog_and_accept_order_match_the_kernel() {
    both("names", &[]).took_the_fast_path(1);
}

#[test]
fn nodelay_is_set_on_upgrade_and_hidden_from_the_program() {
    both("nodelay", &[]).took_the_fast_path(1);
    let outcome = Program::c("nodelay", &["kernel"]).run(Mode::WithMotet);
    assert!(outcome.printed.contains("cleared: 0, by a duplicate: 0\nthe kernel's: 1\n"), "{}", outcome.printed);
}

// ---- amounts and flags ---------------------------------------------------------------------------------------------------

#[test]
fn every_receive_form_matches_the_kernel() {
    both("receive_forms", &[]).took_the_fast_path(1);
}

#[test]
fn receive_returns_what_fionread_and_peek_reported() {
    both("amounts", &["there"]).took_the_fast_path(1);
}

#[test]
fn io_vectors_may_have_empty_parts() {
    both("amounts", &["holes"]).took_the_fast_path(1);
}

#[test]
fn call_timeouts_match_the_kernel() {
    both("amounts", &["timeouts"]).took_the_fast_path(1);
}

#[test]
fn flag_combinations_match_the_kernel() {
    both("amounts", &["flags"]).took_the_fast_path(1);
}

#[test]
fn waitall_receives_whole_blocks_while_children_exit() {
    both("amounts", &["children"]).took_the_fast_path(1);
}

/// MSG_TRUNC, reads of nothing, MSG_PEEK with MSG_WAITALL, MSG_WAITALL that a signal ends, refused lengths, a message that is sent in part, and a FILE that
/// is written before it is read.
#[test]
fn rare_forms_match_the_kernel() {
    for case in ["discards", "nothing", "peeks all", "ended parts", "refused", "messages", "greets"] {
        Program::c("kernel_results", &[case]).with_open_gates().same_both_ways().took_the_fast_path(1);
    }
}

// ---- calls that bypass the adapter -----------------------------------------------------------------------------------------

#[test]
fn sendfile_and_splice_keep_order_among_sends() {
    both("kernel_moves", &[]).took_the_fast_path(1);
}

#[test]
fn connection_continues_under_stdio() {
    both("stdio_and_passing", &["stdio"]);
}

#[test]
fn bytes_written_inside_libc_keep_order() {
    both("bypass", &["dprintf"]).took_the_fast_path(1);
    both("bypass", &["stdio-out"]);
    both("bypass", &["fclose"]);
}

#[test]
fn preadv2_without_offset_reads_and_writes() {
    both("bypass", &["preadv2"]).took_the_fast_path(1);
}

#[test]
fn syscall_function_acts_as_the_named_calls() {
    both("bypass", &["syscall"]).took_the_fast_path(1);
}

#[test]
fn connection_with_readiness_signals_stays_on_tcp() {
    for how in ["async", "sigio"] {
        let outcome = both("bypass", &[how]);
        assert!(motet_tests::engine().is_none() || outcome.streams.iter().any(|s| s.reason == UNSEEN_WAIT_REASON));
    }
}

#[test]
fn connection_with_receive_low_water_mark_stays_on_tcp() {
    let outcome = both("bypass", &["lowat"]);
    assert!(motet_tests::engine().is_none() || outcome.streams.iter().any(|s| s.reason == UNSEEN_WAIT_REASON));
    assert_eq!(both("bypass", &["lowat-before"]).sent_fast(), 0);
}

#[test]
fn urgent_data_keeps_its_mark() {
    let outcome = both("bypass", &["urgent"]);
    assert!(motet_tests::engine().is_none() || outcome.streams.iter().any(|s| s.reason == URGENT));
}

#[test]
fn inline_system_calls_continue_a_connection() {
    both("bypass", &["inline"]).took_the_fast_path(1);
    both("bypass", &["inline-reads"]).took_the_fast_path(1);
}

#[test]
fn io_uring_continues_a_connection() {
    for ends in ["1", "2"] {
        let program = Program::c("uring", &[ends]);
        if program.run(Mode::WithoutMotet).stderr.contains("77") {
            return skip("io_uring_continues_a_connection", "no io_uring here").unwrap_or(());
        }
        program.same_both_ways().took_the_fast_path(1);
    }
}

/// The peer computes after it has sent, so nothing but the kernel tells the reader.
#[test]
fn waits_by_io_uring_after_receives_find_every_byte() {
    let path = Built::program("uring_waits", &motet_tests::folder("uring-waits"), &["-luring"]);
    let by_liburing = ["poll", "set-poll", "receive", "fixed", "before-fixed", "large", "passes", "enter"];
    for way in by_liburing.into_iter().chain(["syscall-poll", "syscall-receive"]) {
        let program = Program::built(&path, &[way]);
        if program.run(Mode::WithoutMotet).stderr.contains("77") {
            return skip("waits_by_io_uring_after_receives_find_every_byte", "no io_uring here").unwrap_or(());
        }
        let outcome = program.same_both_ways();
        if way != "before-fixed" {
            outcome.took_the_fast_path(1);
        }
        // What is registered before it is connected is not a stream.
        let returned = [UNSEEN_WAIT_REASON, NESTED, PASSED];
        let has_returned = way == "before-fixed" || outcome.streams.iter().any(|s| returned.contains(&s.reason));
        assert!(motet_tests::engine().is_none() || has_returned, "{way}: {:?}", outcome.streams);
    }
}

/// Bytes arrive in order; where the order cannot be known, the connection is reset.
#[test]
fn inline_system_calls_among_others_never_reorder_bytes() {
    let outcome = both("bypass", &["inline-calls"]);
    let known = [0, ORDER, BROKEN, LEFT_UNREAD];
    assert!(outcome.streams.iter().all(|s| known.contains(&s.reason)), "{:?}", outcome.streams);
}

/// Reason codes of `motet why`. An end that did not detect the problem sees a reset by its peer.
const BROKEN: u64 = 13;
const ORDER: u64 = 14;
const PASSED: u64 = 18;
const UNSEEN_WAIT_REASON: u64 = 19;
const NESTED: u64 = 20;
const URGENT: u64 = 28;
const LEFT_UNREAD: u64 = 35;

/// The pipe is full, its reader has closed it, or another thread fills it at the same time.
#[test]
fn splice_consumes_what_the_pipe_took() {
    both("pipes", &[]).took_the_fast_path(12_000);
}
