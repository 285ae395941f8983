//! memcached with its four threads, without and with Motet.

use motet_tests::programs::{both_ways, free_port, servers, source};

const TERM: i32 = 15;

#[test]
fn memcached_answers_as_without_motet() {
    let needs = ["memcached", "python3"];
    let counters = both_ways("memcached_answers_as_without_motet", &needs, |sandbox| {
        let port = free_port();
        let number = port.to_string();
        let server = sandbox.follow(&servers::memcached(&number), &[]).listens(port);
        let script = source(sandbox, "memcached_check.py");
        let hash = sandbox.run(&["python3", &script, &number]);
        server.stop(TERM);
        hash
    });
    if let Some(counters) = counters {
        counters.went_over_shared_memory(4);
    }
}
