//! Ordinary socket programs behave under the sockets adapter as without it. Call forms, waits, connection ends, forks and operation have files of
//! their own.

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
fn short_connection_is_never_upgraded() {
    assert_eq!(both("ping_pong", &["4", "1", "64"]).sent_fast(), 0);
}

#[test]
fn bulk_in_both_directions_keeps_order_and_content() {
    both("bulk", &["64"]).took_the_fast_path(1 << 20);
    both("bulk", &["16", "3"]);
    both("bulk", &["16", "4"]);
}

// ---- descriptors, threads, processes -------------------------------------------------------------------------------------

#[test]
fn duplicates_work_after_first_descriptor_is_closed() {
    both("duplicates", &[]).took_the_fast_path(1);
}

#[test]
fn descriptor_numbers_are_those_without_motet() {
    both("numbers", &["0"]).took_the_fast_path(1);
}

#[test]
fn connection_without_spare_descriptors_stays_on_tcp() {
    both("numbers", &["40"]);
}

#[test]
fn connection_stays_usable_after_thread_cancellation() {
    both("threads", &["cancel"]).took_the_fast_path(1);
}

#[test]
fn records_of_several_threads_stay_whole() {
    both("threads", &["senders"]).took_the_fast_path(1);
}

#[test]
fn forked_child_serves_accepted_socket() {
    both("forks", &["child-serves-young"]).took_the_fast_path(1);
    both("forks", &["child-serves"]);
}

#[test]
fn parent_continues_after_fork() {
    both("forks", &["parent-continues"]).took_the_fast_path(1);
    both("forks", &["spawn-continues"]).took_the_fast_path(1);
}

#[test]
fn parent_and_child_alternate_on_one_connection() {
    both("forks", &["both-in-turn"]);
}

#[test]
fn parent_and_child_make_separate_connections() {
    both("fork_records", &[]).took_the_fast_path(1);
}

#[test]
fn child_that_only_exits_moves_no_bytes() {
    both("fork_untouched", &[]).took_the_fast_path(1);
}

#[test]
fn children_forked_among_busy_threads_do_not_hang() {
    both("fork_among_threads", &[]).took_the_fast_path(1);
}

#[test]
fn passed_connection_continues_in_receiving_process() {
    both("stdio_and_passing", &["passing"]);
}

/// A few seconds without forks. `make torture` runs longer, with forks.
#[test]
fn random_socket_calls_keep_every_byte_in_order() {
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
