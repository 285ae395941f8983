//! Forms of calls: names and options, amounts and flags, and calls that go past the adapter.

use motet_tests::programs::skip;
use motet_tests::{Mode, Program, both};

// ---- names and options ---------------------------------------------------------------------------------------------------

/// Wildcard and dual-stack listeners, a bound source, a closed listener, a group on one port, accept order, connects that do not
/// block or are refused: addresses of both ends.
#[test]
fn names_backlog_and_accept_order_are_the_kernels() {
    both("names", &[]).took_the_fast_path(1);
}

#[test]
fn nodelay_is_set_on_upgrade_and_the_program_sees_its_own() {
    both("nodelay", &[]).took_the_fast_path(1);
    let outcome = Program::c("nodelay", &["kernel"]).run(Mode::WithMotet);
    assert!(outcome.printed.contains("cleared: 0, by a duplicate: 0\nthe kernel's: 1\n"), "{}", outcome.printed);
}

// ---- amounts and flags ---------------------------------------------------------------------------------------------------

#[test]
fn every_form_of_receive_answers_as_the_kernel() {
    both("receive_forms", &[]).took_the_fast_path(1);
}

#[test]
fn a_receive_finds_what_fionread_and_peeking_promised() {
    both("amounts", &["there"]).took_the_fast_path(1);
}

#[test]
fn vectors_may_have_holes() {
    both("amounts", &["holes"]).took_the_fast_path(1);
}

#[test]
fn calls_run_out_of_time_as_the_kernels() {
    both("amounts", &["timeouts"]).took_the_fast_path(1);
}

#[test]
fn flags_combine_as_in_the_kernel() {
    both("amounts", &["flags"]).took_the_fast_path(1);
}

#[test]
fn a_whole_block_is_received_while_children_end() {
    both("amounts", &["children"]).took_the_fast_path(1);
}

// ---- what goes past the adapter, or nearly ---------------------------------------------------------------------------------

#[test]
fn sendfile_and_splice_keep_their_place_among_sends() {
    both("kernel_moves", &[]).took_the_fast_path(1);
}

#[test]
fn a_connection_continues_under_stdio() {
    both("hands_over", &["stdio"]);
}

#[test]
fn bytes_that_the_c_library_writes_by_itself_keep_their_place() {
    both("unseen", &["dprintf"]).took_the_fast_path(1);
    both("unseen", &["stdio-out"]);
    both("unseen", &["fclose"]);
}

#[test]
fn calls_with_an_offset_of_none_are_reads_and_writes() {
    both("unseen", &["preadv2"]).took_the_fast_path(1);
}

#[test]
fn calls_made_by_their_number_are_those_of_that_name() {
    both("unseen", &["syscall"]).took_the_fast_path(1);
}

#[test]
fn a_connection_whose_readiness_comes_by_signal_stays_plain() {
    for how in ["async", "sigio"] {
        let outcome = both("unseen", &[how]);
        assert!(motet_tests::engine().is_none() || outcome.streams.iter().any(|s| s.reason == UNSEEN_WAIT));
    }
}

#[test]
fn a_connection_that_wakes_for_many_bytes_only_stays_plain() {
    let outcome = both("unseen", &["lowat"]);
    assert!(motet_tests::engine().is_none() || outcome.streams.iter().any(|s| s.reason == UNSEEN_WAIT));
    assert_eq!(both("unseen", &["lowat-before"]).sent_fast(), 0);
}

#[test]
fn urgent_data_keeps_its_mark() {
    let outcome = both("unseen", &["urgent"]);
    assert!(motet_tests::engine().is_none() || outcome.streams.iter().any(|s| s.reason == URGENT));
}

#[test]
fn a_program_may_turn_to_system_calls_of_its_own_making() {
    both("unseen", &["inline"]).took_the_fast_path(1);
    both("unseen", &["inline-reads"]).took_the_fast_path(1);
}

#[test]
fn a_program_may_turn_to_io_uring() {
    for ends in ["1", "2"] {
        let program = Program::c("uring", &[ends]);
        if program.run(Mode::WithoutMotet).complaints.contains("77") {
            return skip("a_program_may_turn_to_io_uring", "no io_uring here").unwrap_or(());
        }
        program.same_both_ways().took_the_fast_path(1);
    }
}

/// In order, as far as it goes: where the order cannot be known the connection is reset.
#[test]
fn system_calls_of_its_own_making_among_others_never_reorder_bytes() {
    let outcome = both("unseen", &["inline-calls"]);
    assert!(outcome.streams.iter().all(|s| [0, ORDER, BROKEN].contains(&s.reason)), "{:?}", outcome.streams);
}

/// Codes of `motet why`. (The end that did not find out sees a reset by its peer.)
const BROKEN: u64 = 13;
const ORDER: u64 = 14;
const UNSEEN_WAIT: u64 = 19;
const URGENT: u64 = 28;

/// The pipe is full, its reader has gone, or another thread fills it meanwhile.
#[test]
fn splice_takes_what_the_pipe_has_taken() {
    both("pipes", &[]).took_the_fast_path(12_000);
}
