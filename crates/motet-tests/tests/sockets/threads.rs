//! Threads that have little: of stack, of priority, of memory that a handler may ask for.

use motet_tests::both;

/// No call takes more than 4 KiB; the first messages of a connection, which load the engine, no more than the least stack has.
#[test]
fn threads_and_handlers_with_little_stack_make_every_call() {
    for first in ["large", "small"] {
        both("small_stacks", &[first]).took_the_fast_path(1);
    }
}

/// The one of lower priority holds a lock of the stream when the other one comes.
#[test]
fn threads_of_unequal_real_time_priority_share_a_connection() {
    both("fifo", &["3000"]);
}
