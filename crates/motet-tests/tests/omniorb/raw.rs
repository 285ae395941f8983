//! omniORB under the adapter of `adapters/omniorb`: peers that do not speak GIOP as they should, their bytes in shared memory too.
//!
//! What such a peer sees, and the server's or client's state afterwards, is what it is over TCP (`tests/programs/giop_raw.py`).

use motet_tests::omniorb::{Held, Scene, ends_each_way, ends_each_way_open, without_logs};
use motet_tests::programs::{Alone, Started, find, free_port, skip, source};
use motet_tests::script;
use std::process::Command;

const MISSING: &str = "python3 is not installed (tests/programs/packages.txt)";

fn cases() -> Option<Vec<String>> {
    let told = Command::new(find("python3")?).arg(script("giop_raw.py")).args(["client", "all"]).output().ok()?;
    Some(String::from_utf8_lossy(&told.stdout).lines().map(str::to_owned).collect())
}

#[test]
fn a_server_stays_whatever_its_clients_send() {
    let test = "a_server_stays_whatever_its_clients_send";
    let Some(cases) = cases() else { return skip(test, MISSING).unwrap_or_default() };
    assert!(cases.len() > 20, "{cases:?}");
    // The scavenger ends those who have begun a message and say nothing more, the time limit those who do not read.
    let options = [
        ("ORBscanGranularity", "1"),
        ("ORBinConScanPeriod", "4"),
        ("ORBserverCallTimeOutPeriod", "700"),
        ("ORBgiopMaxMsgSize", "100000000"),
    ];
    // All cases, with and without Motet, beside a client that does nothing wrong: the server stays, and gives everything back.
    let stays = |scene: &Scene<'_>| {
        let server = scene.serve();
        scene.told(&["add", "20"]);
        let before = Held::by(&server);
        let raw = source(scene.stage, "giop_raw.py");
        let peer = |case: &String| scene.stage.start_with(&["python3", &raw, "client", &scene.port, case], &[]);
        // Those that wait for the server's patience all at once, beside a client that does nothing wrong; the others alone, with time
        // for shared memory.
        let (patient, others): (Vec<_>, Vec<_>) =
            cases.iter().partition(|case| case.contains("nothing") || case.contains("nobody"));
        let waiting: Vec<Started> = patient.into_iter().map(peer).collect();
        scene.told(&["add", "200"]);
        let mut told: String = waiting.into_iter().map(Started::finish).collect();
        told.extend(others.into_iter().map(|case| peer(case).finish()));
        assert_eq!(told.matches("end\n").count(), cases.len(), "{told}");
        scene.told(&["many", "50"]);
        before.connections_again(&server);
        scene.end(server);
        told
    };
    let counted = [
        ends_each_way(test, Alone::WithMotet, &options, stays),
        ends_each_way_open(test, Alone::WithMotet, &options, stays),
    ];
    let [Some(auto), Some(open)] = counted else { return };
    auto.went_over_shared_memory(cases.len() as u64);
    open.went_over_shared_memory(cases.len() as u64);
    // Where gates stay open, a client that is served by a thread of its own goes on in shared memory, once it has spoken for long enough. Of those
    // that a pool serves some do: its threads are not at their connections while they wait for work.
    let fast = |line: &&str| line.contains("python3") && !line.contains("\"sent_fast\":0,");
    let fast = open.lines.lines().filter(fast).count();
    assert!(fast >= cases.len() / 2, "raw bytes of {fast} clients in shared memory:\n{}", open.lines);
}

#[test]
fn a_client_stays_whatever_its_server_answers() {
    let test = "a_client_stays_whatever_its_server_answers";
    if find("python3").is_none() {
        return skip(test, MISSING).unwrap_or_default();
    }
    let counters = ends_each_way(test, Alone::WithMotet, &[("ORBclientCallTimeOutPeriod", "1000")], |scene| {
        let raw = source(scene.stage, "giop_raw.py");
        let port = free_port().to_string();
        let server = scene.stage.start_with(&["python3", &raw, "server", &port], &[]).says("ready");
        let client = Scene { port, ..scene.beside() };
        let told = without_logs(&client.told(&["asks", "200"]));
        assert_eq!((told.matches("COMM_FAILURE").count(), told.matches("TIMEOUT ").count()), (10, 2), "{told}");
        assert!(told.ends_with("nothing\nnothing\n"), "{told}");
        server.finish();
        told
    });
    if let Some(counters) = counters {
        counters.went_over_shared_memory(20);
    }
}
