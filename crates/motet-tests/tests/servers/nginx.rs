//! nginx with worker processes, without and with Motet: files arrive whole, wrk reports no error, and the server ends gracefully.

use motet_tests::programs::{Sandbox, Started, both_ways, free_port, servers, source};

const PROGRAMS: [&str; 3] = ["nginx", "wrk", "python3"];
const QUIT: i32 = 3;

/// `sendfile` on and off are two code paths of nginx.
fn start(sandbox: &Sandbox, sendfile: &str) -> (Started, String) {
    let port = free_port();
    let folder = sandbox.path("");
    sandbox.file("small", "hello\n".repeat(10));
    sandbox.file("middle", (0..30_000u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>());
    sandbox.file("large", (0..500_000u32).flat_map(u32::to_be_bytes).collect::<Vec<u8>>());
    let configuration = sandbox.file("nginx.conf", servers::nginx_configuration(&folder, port, 2, sendfile));
    (sandbox.follow(&servers::nginx(&folder, &configuration), &[]).listens(port), port.to_string())
}

fn serves(test: &str, sendfile: &str) {
    let counters = both_ways(test, &PROGRAMS, |sandbox| {
        let (server, port) = start(sandbox, sendfile);
        let script = source(sandbox, "http_check.py");
        let hash = sandbox.run(&["python3", &script, &port, "/small", "/middle", "/large", "/missing"]);
        let url = format!("http://127.0.0.1:{port}");
        for (threads, connections, file) in [("1", "1", "small"), ("2", "32", "small"), ("2", "8", "middle")] {
            let address = format!("{url}/{file}");
            // A timeout of wrk's default two seconds occurs only on a stalled machine.
            let output =
                sandbox.run(&["wrk", "-t", threads, "-c", connections, "-d", "1s", "--timeout", "30s", &address]);
            assert!(output.contains("requests in") && !output.contains("Non-2xx"), "{output}");
            assert!(!output.contains("Socket errors"), "{output}");
            assert!(!output.contains("\n  0 requests"), "{output}");
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
