//! Programs that measure networks: sockperf, iperf3, qperf. They must complete; the measured values are not checked.

use motet_tests::omniorb::at_once;
use motet_tests::programs::{both_ways, free_port};

const INT: i32 = 2;
const TERM: i32 = 15;

#[test]
fn sockperf_verifies_every_message() {
    let test = "sockperf_verifies_every_message";
    let counters = both_ways(test, &["sockperf"], |sandbox| {
        // The server exits with its first client, so each size has its own.
        let exchanges = |size: &&str| {
            let number = free_port().to_string();
            let at = ["--tcp", "-i", "127.0.0.1", "-p", &number];
            let words: Vec<&str> = ["sockperf", "server"].iter().chain(&at).copied().collect();
            let server = sandbox.start(&words).says("Warmup stage");
            // Without a limit sockperf's buffer is too small for the number of messages.
            let more = ["-t", "1", "-m", *size, "--mps", "100000", "--data-integrity"];
            let words: Vec<&str> = ["sockperf", "ping-pong"].iter().chain(&at).chain(&more).copied().collect();
            let printed = sandbox.run(&words);
            assert!(printed.contains("Summary: Latency is"), "{printed}");
            server.stop(INT);
            let dropped = printed.lines().filter(|l| l.contains("dropped messages"));
            dropped.map(|line| format!("{}\n", line.split_once('#').map_or(line, |(_, rest)| rest))).collect::<String>()
        };
        let sizes = ["14", "64", "20000"];
        // Under Motet each size has the CPUs to itself.
        if sandbox.has_motet() { sizes.iter().map(exchanges).collect() } else { at_once(&sizes, exchanges) }
    });
    if let Some(counters) = counters {
        counters.went_over_shared_memory(6);
    }
}

#[test]
fn iperf3_sends_both_ways_with_several_streams() {
    let test = "iperf3_sends_both_ways_with_several_streams";
    let counters = both_ways(test, &["iperf3"], |sandbox| {
        let mut output = String::new();
        for more in [&["-P", "1"][..], &["-R"], &["-P", "4"], &["--bidir"], &["-n", "300M", "-l", "1M"], &["-Z"]] {
            let port = free_port();
            let number = port.to_string();
            let server = sandbox.start(&["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", &number, "--forceflush"]);
            let server = server.says("Server listening");
            let mut words = vec!["iperf3", "-c", "127.0.0.1", "-p", &number];
            words.extend(more);
            if !more.contains(&"-n") {
                words.extend(["-t", "1"]);
            }
            let printed = sandbox.run(&words);
            output += &format!("{more:?} done {}\n", printed.contains("iperf Done."));
            server.finish();
        }
        output
    });
    if let Some(counters) = counters {
        counters.went_over_shared_memory(12);
    }
}

#[test]
fn qperf_measures_bandwidth_and_latency() {
    let test = "qperf_measures_bandwidth_and_latency";
    let counters = both_ways(test, &["qperf"], |sandbox| {
        let (port, data) = (free_port(), free_port().to_string());
        let number = port.to_string();
        let server = sandbox.start(&["qperf", "-lp", &number]);
        std::thread::sleep(std::time::Duration::from_millis(300)); // a connect to its port would count as its client
        let words = ["qperf", "-lp", &number, "-ip", &data, "-t", "1", "127.0.0.1", "tcp_bw", "tcp_lat"];
        let printed = sandbox.run(&words);
        server.stop(TERM);
        let measured = printed.lines().filter(|l| l.contains(" bw ") || l.contains(" latency ")).count();
        format!("{measured} figures")
    });
    if let Some(counters) = counters {
        counters.went_over_shared_memory(2);
    }
}
