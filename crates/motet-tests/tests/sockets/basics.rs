//! Ordinary socket programs under the sockets adapter behave as without it. Each test names the behaviour. (By theme: forms of calls,
//! waits, ends, forks and operation have files of their own.)

use motet_tests::{Program, both};

// ---- payload -----------------------------------------------------------------------------------------------------------

#[test]
fn small_echoes_go_through_shared_memory() {
    both("ping_pong", &["4", "2000", "64"]).took_the_fast_path(64_000);
}

#[test]
fn ipv6_connections_are_upgraded() {
    both("ping_pong", &["6", "1000", "64"]).took_the_fast_path(32_000);
}

#[test]
fn v4_mapped_connections_are_upgraded() {
    both("ping_pong", &["mapped", "1000", "64"]).took_the_fast_path(32_000);
}

#[test]
fn large_echoes_keep_their_bytes() {
    both("ping_pong", &["4", "300", "100000"]).took_the_fast_path(100_000);
}

#[test]
fn a_short_connection_is_never_upgraded() {
    assert_eq!(both("ping_pong", &["4", "1", "64"]).sent_fast(), 0);
}

#[test]
fn bulk_both_ways_at_once_keeps_order_and_content() {
    both("bulk", &["64"]).took_the_fast_path(1 << 20);
    both("bulk", &["16", "3"]);
    both("bulk", &["16", "4"]);
}

// ---- descriptors, threads, processes -------------------------------------------------------------------------------------

#[test]
fn duplicates_carry_on_when_the_first_descriptor_is_closed() {
    both("duplicates", &[]).took_the_fast_path(1);
}

#[test]
fn descriptor_numbers_stay_the_programs() {
    both("numbers", &["0"]).took_the_fast_path(1);
}

#[test]
fn without_descriptors_to_spare_a_connection_stays_plain() {
    both("numbers", &["40"]);
}

#[test]
fn cancelled_threads_leave_the_connection_usable() {
    both("threads", &["cancel"]).took_the_fast_path(1);
}

#[test]
fn several_threads_send_whole_records() {
    both("threads", &["senders"]).took_the_fast_path(1);
}

#[test]
fn a_forked_child_serves_the_accepted_socket() {
    both("forks", &["child-serves-young"]).took_the_fast_path(1);
    both("forks", &["child-serves"]);
}

#[test]
fn a_parent_goes_on_after_a_fork() {
    both("forks", &["parent-continues"]).took_the_fast_path(1);
    both("forks", &["spawn-continues"]).took_the_fast_path(1);
}

#[test]
fn parent_and_child_take_turns() {
    both("forks", &["both-in-turn"]);
}

#[test]
fn parent_and_child_make_connections_of_their_own() {
    both("fork_records", &[]).took_the_fast_path(1);
}

#[test]
fn a_child_that_only_exits_moves_no_bytes() {
    both("fork_untouched", &[]).took_the_fast_path(1);
}

#[test]
fn children_forked_among_busy_threads_hang_on_nothing() {
    both("fork_among_threads", &[]).took_the_fast_path(1);
}

#[test]
fn a_connection_continues_in_a_process_that_it_was_passed_to() {
    both("hands_over", &["passing"]);
}

/// For a few seconds, and without forks; `make torture` goes on for longer, and forks.
#[test]
fn whatever_programs_do_to_sockets_every_byte_is_in_its_place() {
    let program = Program::c("torture", &["1", "5", "20"]).with("TORTURE_WITHOUT", "f");
    program.same_both_ways().took_the_fast_path(1);
}

// ---- other languages -----------------------------------------------------------------------------------------------------

#[test]
fn python_blocking_sockets_echo() {
    if let Some(program) = Program::python("echo_blocking.py") {
        program.same_both_ways().took_the_fast_path(1);
    }
}

#[test]
fn python_asyncio_echoes() {
    if let Some(program) = Program::python("echo_asyncio.py") {
        program.same_both_ways();
    }
}
