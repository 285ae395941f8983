//! Programs that measure networks: sockperf, iperf3, qperf. What they measure is not looked at, only that they can.

use motet_tests::omniorb::at_once;
use motet_tests::programs::{both_ways, free_port};

const INT: i32 = 2;
const TERM: i32 = 15;

#[test]
fn sockperf_plays_ping_pong_and_checks_every_message() {
    let test = "sockperf_plays_ping_pong_and_checks_every_message";
    let counters = both_ways(test, &["sockperf"], |stage| {
        // Its server ends with the first client of a kind: one for each.
        let exchanges = |size: &&str| {
            let number = free_port().to_string();
            let at = ["--tcp", "-i", "127.0.0.1", "-p", &number];
            let words: Vec<&str> = ["sockperf", "server"].iter().chain(&at).copied().collect();
            let server = stage.start(&words).says("Warmup stage");
            // Unlimited, it has room for fewer messages than are exchanged.
            let more = ["-t", "1", "-m", *size, "--mps", "100000", "--data-integrity"];
            let words: Vec<&str> = ["sockperf", "ping-pong"].iter().chain(&at).chain(&more).copied().collect();
            let printed = stage.run(&words);
            assert!(printed.contains("Summary: Latency is"), "{printed}");
            server.stop(INT);
            let dropped = printed.lines().filter(|l| l.contains("dropped messages"));
            dropped.map(|line| format!("{}\n", line.split_once('#').map_or(line, |(_, rest)| rest))).collect::<String>()
        };
        let sizes = ["14", "64", "20000"];
        // Of those under Motet each is to have the CPUs for itself.
        if stage.has_motet() { sizes.iter().map(exchanges).collect() } else { at_once(&sizes, exchanges) }
    });
    if let Some(counters) = counters {
        counters.went_over_shared_memory(6);
    }
}

#[test]
fn iperf3_sends_both_ways_with_several_streams() {
    let test = "iperf3_sends_both_ways_with_several_streams";
    let counters = both_ways(test, &["iperf3"], |stage| {
        let mut told = String::new();
        for more in [&["-P", "1"][..], &["-R"], &["-P", "4"], &["--bidir"], &["-n", "300M", "-l", "1M"], &["-Z"]] {
            let port = free_port();
            let number = port.to_string();
            let server = stage.start(&["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", &number, "--forceflush"]);
            let server = server.says("Server listening");
            let mut words = vec!["iperf3", "-c", "127.0.0.1", "-p", &number];
            words.extend(more);
            if !more.contains(&"-n") {
                words.extend(["-t", "1"]);
            }
            let printed = stage.run(&words);
            told += &format!("{more:?} done {}\n", printed.contains("iperf Done."));
            server.finish();
        }
        told
    });
    if let Some(counters) = counters {
        counters.went_over_shared_memory(12);
    }
}

#[test]
fn qperf_measures_bandwidth_and_latency() {
    let test = "qperf_measures_bandwidth_and_latency";
    let counters = both_ways(test, &["qperf"], |stage| {
        let (port, data) = (free_port(), free_port().to_string());
        let number = port.to_string();
        let server = stage.start(&["qperf", "-lp", &number]);
        std::thread::sleep(std::time::Duration::from_millis(300)); // a look at its port would be its client
        let words = ["qperf", "-lp", &number, "-ip", &data, "-t", "1", "127.0.0.1", "tcp_bw", "tcp_lat"];
        let printed = stage.run(&words);
        server.stop(TERM);
        let measured = printed.lines().filter(|l| l.contains(" bw ") || l.contains(" latency ")).count();
        format!("{measured} figures")
    });
    if let Some(counters) = counters {
        counters.went_over_shared_memory(2);
    }
}
