//! Threads with small stacks, and threads of different priorities.

use motet_tests::both;

/// No call uses more than 4 KiB of stack. The first messages of a connection, which load the engine, need no more than the smallest stack.
#[test]
fn threads_and_handlers_with_small_stacks_make_every_call() {
    for first in ["large", "small"] {
        both("small_stacks", &[first]).took_the_fast_path(1);
    }
}

/// In a table of its own a thread has other connections under the numbers of the others: all of them return to TCP, with what is unread.
#[test]
fn threads_with_descriptors_of_their_own_keep_to_their_connections() {
    for how in ["unshare", "raw unshare", "close_range"] {
        both("own_descriptors", &[how]).took_the_fast_path(1);
    }
}

/// The thread of lower priority holds a lock of the stream when the other one calls.
#[test]
fn threads_of_unequal_realtime_priority_share_a_connection() {
    both("fifo", &["3000"]);
}
