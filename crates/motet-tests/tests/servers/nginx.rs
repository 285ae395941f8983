//! nginx with worker processes, without and with Motet: files kept whole, wrk without an error, a graceful end.

use motet_tests::programs::{Stage, Started, both_ways, free_port, servers, source};

const PROGRAMS: [&str; 3] = ["nginx", "wrk", "python3"];
const QUIT: i32 = 3;

/// With `sendfile` on or off, which are two ways out of nginx.
fn start(stage: &Stage, sendfile: &str) -> (Started, String) {
    let port = free_port();
    let folder = stage.path("");
    stage.file("small", "hello\n".repeat(10));
    stage.file("middle", (0..30_000u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>());
    stage.file("large", (0..500_000u32).flat_map(u32::to_be_bytes).collect::<Vec<u8>>());
    let configuration = stage.file("nginx.conf", servers::nginx_configuration(&folder, port, 2, sendfile));
    (stage.follow(&servers::nginx(&folder, &configuration), &[]).listens(port), port.to_string())
}

fn serves(test: &str, sendfile: &str) {
    let counters = both_ways(test, &PROGRAMS, |stage| {
        let (server, port) = start(stage, sendfile);
        let script = source(stage, "http_check.py");
        let hash = stage.run(&["python3", &script, &port, "/small", "/middle", "/large", "/missing"]);
        let url = format!("http://127.0.0.1:{port}");
        for (threads, connections, file) in [("1", "1", "small"), ("2", "32", "small"), ("2", "8", "middle")] {
            let address = format!("{url}/{file}");
            // In a second nothing takes wrk's own two, but on a machine that stands still.
            let told = stage.run(&["wrk", "-t", threads, "-c", connections, "-d", "1s", "--timeout", "30s", &address]);
            assert!(told.contains("requests in") && !told.contains("Non-2xx"), "{told}");
            assert!(!told.contains("Socket errors"), "{told}");
            assert!(!told.contains("\n  0 requests"), "{told}");
        }
        server.stop(QUIT);
        hash
    });
    if let Some(counters) = counters {
        counters.went_over_shared_memory(8);
    }
}

#[test]
fn nginx_with_sendfile_serves_wrk_and_keeps_files_whole() {
    serves("nginx_with_sendfile_serves_wrk_and_keeps_files_whole", "on");
}

#[test]
fn nginx_without_sendfile_serves_wrk_and_keeps_files_whole() {
    serves("nginx_without_sendfile_serves_wrk_and_keeps_files_whole", "off");
}
