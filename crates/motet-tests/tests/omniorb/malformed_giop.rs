//! omniORB with the adapter of `adapters/omniorb`: peers that send malformed GIOP, also in shared memory.
//!
//! The peer's view, and the state of server or client afterwards, must match TCP (`tests/programs/giop_raw.py`).

use motet_tests::omniorb::{Case, Resources, ends_each_way, ends_each_way_open, without_logs};
use motet_tests::programs::{Exclusive, Started, find, free_port, skip, source};
use motet_tests::script;
use std::process::Command;

const MISSING: &str = "python3 is not installed (tests/programs/packages.txt)";

fn names() -> Option<Vec<String>> {
    let output = Command::new(find("python3")?).arg(script("giop_raw.py")).args(["client", "all"]).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

#[test]
fn server_survives_malformed_giop() {
    let test = "server_survives_malformed_giop";
    let Some(names) = names() else { return skip(test, MISSING).unwrap_or_default() };
    assert!(names.len() > 20, "{names:?}");
    // The scavenger closes connections with an unfinished message, the time limit those of clients that do not read.
    let options = [
        ("ORBscanGranularity", "1"),
        ("ORBinConScanPeriod", "4"),
        ("ORBserverCallTimeOutPeriod", "700"),
        ("ORBgiopMaxMsgSize", "100000000"),
    ];
    // All cases, without and with Motet, beside a well-behaved client: the server survives and frees all resources.
    let stays = |case: &Case<'_>| {
        let server = case.serve();
        case.output(&["add", "20"]);
        let before = Resources::of(&server);
        let raw = source(case.sandbox, "giop_raw.py");
        let peer = |name: &String| case.sandbox.start_with(&["python3", &raw, "client", &case.port, name], &[]);
        // Peers that wait for a timeout of the server run at the same time, beside a well-behaved client. The others run one by one, with time for
        // the upgrade.
        let (patient, others): (Vec<_>, Vec<_>) =
            names.iter().partition(|name| name.contains("nothing") || name.contains("is not read"));
        let waiting: Vec<Started> = patient.into_iter().map(peer).collect();
        case.output(&["add", "200"]);
        let mut output: String = waiting.into_iter().map(Started::finish).collect();
        output.extend(others.into_iter().map(|name| peer(name).finish()));
        assert_eq!(output.matches("end\n").count(), names.len(), "{output}");
        case.output(&["many", "50"]);
        before.wait_for_connections(&server);
        case.end(server);
        output
    };
    let counted = [
        ends_each_way(test, Exclusive::WithMotet, &options, stays),
        ends_each_way_open(test, Exclusive::WithMotet, &options, stays),
    ];
    let [Some(auto), Some(open)] = counted else { return };
    auto.went_over_shared_memory(names.len() as u64);
    open.went_over_shared_memory(names.len() as u64);
    // With open gates a long enough connection with a thread of its own uses shared memory. With a thread pool only some connections do, because pool
    // threads that wait for work are not at a connection.
    let fast = |line: &&str| line.contains("python3") && !line.contains("\"sent_fast\":0,");
    let fast = open.lines.lines().filter(fast).count();
    assert!(fast >= names.len() / 2, "raw bytes of {fast} clients in shared memory:\n{}", open.lines);
}

#[test]
fn client_survives_malformed_giop() {
    let test = "client_survives_malformed_giop";
    if find("python3").is_none() {
        return skip(test, MISSING).unwrap_or_default();
    }
    let counters = ends_each_way(test, Exclusive::WithMotet, &[("ORBclientCallTimeOutPeriod", "1000")], |case| {
        let raw = source(case.sandbox, "giop_raw.py");
        let port = free_port().to_string();
        let server = case.sandbox.start_with(&["python3", &raw, "server", &port], &[]).says("ready");
        let client = Case { port, ..case.on_another_port() };
        let output = without_logs(&client.output(&["asks", "200"]));
        assert_eq!((output.matches("COMM_FAILURE").count(), output.matches("TIMEOUT ").count()), (10, 2), "{output}");
        assert!(output.ends_with("nothing\nnothing\n"), "{output}");
        server.finish();
        output
    });
    if let Some(counters) = counters {
        counters.went_over_shared_memory(20);
    }
}
