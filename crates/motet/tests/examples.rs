//! The example runs and finds what it should.

#[path = "../examples/messages.rs"]
mod messages;

#[test]
fn messages_are_answered() {
    for length in [0, 8, 100_000] {
        let (runs, driver) = messages::ping_pong(200, length).expect("two nodes of one process");
        assert_eq!((runs.len(), driver), (7, "shm"), "{length} bytes");
    }
}
