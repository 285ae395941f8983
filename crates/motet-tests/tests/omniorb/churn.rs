//! omniORB with the adapter of `adapters/omniorb`: one server whose clients connect and end in every way, for `CHURN_SECONDS` (6).
//!
//! At the end the server holds the same resources as at the beginning, and clients have seen only the errors that they provoked.

use motet_tests::omniorb::{Case, Resources, ends_each_way};
use motet_tests::programs::{Exclusive, Started, find, source};
use std::time::{Duration, Instant};

/// What a client does, and what it prints on success.
const CLIENTS: [(&[&str], &str); 6] = [
    (&["add", "50"], "added\n"),
    (&["callback"], "called back, sum 4960\n"),
    (
        &["late"],
        "TIMEOUT TIMEOUT_CallTimedOutOnClient\nthen nothing\nTIMEOUT TIMEOUT_CallTimedOutOnClient\nthen nothing\n",
    ),
    (&["many", "20"], "20 objects, sum 570\n"),
    (&["mirrors", "1000000", "-1000000"], "1000000: nothing\n-1000000: nothing\n"),
    (&["forks"], "it execs with 0"),
];
/// Operations during which clients are killed.
const VICTIMS: [&str; 3] = ["upcall", "large", "replies"];
/// Malformed GIOP by `giop_raw.py`.
const RAW: [&str; 4] = ["noise", "a truncated message", "a request and an end", "a large request that ends early"];
const MAX_CLIENTS: usize = 4;

fn seconds() -> u64 {
    std::env::var("CHURN_SECONDS").ok().and_then(|given| given.parse().ok()).unwrap_or(6)
}

/// A running client and its expected output; `None` for a client that is killed.
struct Client(Started, Option<&'static str>);

impl Client {
    fn start(case: &Case<'_>, raw: Option<&str>, chance: usize) -> Self {
        let any = chance / 3;
        match (chance % 6, raw) {
            (0, _) => Self(case.client(&["calling", VICTIMS[any % VICTIMS.len()]]), None),
            (1, Some(raw)) => {
                let words = ["python3", raw, "client", &case.port, RAW[any % RAW.len()]];
                Self(case.sandbox.start_with(&words, &[]), Some("end\n"))
            }
            _ => {
                let (words, says) = CLIENTS[any % CLIENTS.len()];
                Self(case.client(words), Some(says))
            }
        }
    }

    #[track_caller]
    fn finish(self) {
        match self.1 {
            None => drop(self.0.says("calling")),
            Some(says) => {
                let output = self.0.finish();
                assert!(output.contains(says), "{output}, not {says}");
            }
        }
    }
}

#[test]
fn server_keeps_nothing_after_client_churn() {
    // A server that called back a client keeps that connection until its scavenger runs; idle threads end soon.
    let options = [
        ("ORBgiopMaxMsgSize", "50000000"),
        ("ORBscanGranularity", "1"),
        ("ORBoutConScanPeriod", "3"),
        ("ORBidleThreadTimeout", "2"),
    ];
    ends_each_way("server_keeps_nothing_after_client_churn", Exclusive::WithMotet, &options, |case| {
        // Without Motet the run only shows that the test passes over TCP.
        let lasts = Duration::from_secs(seconds()) / if case.sandbox.has_motet() { 1 } else { 2 };
        let raw = find("python3").map(|_| source(case.sandbox, "giop_raw.py"));
        let server = case.serve();
        case.output(&["add", "20"]);
        let before = Resources::of(&server);
        let (began, mut clients, mut count, mut chance) = (Instant::now(), Vec::new(), 0, 1_u64);
        while began.elapsed() < lasts {
            // Pseudo-random, the same in every run.
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            clients.push(Client::start(case, raw.as_deref(), (chance >> 33) as usize));
            count += 1;
            if clients.len() == MAX_CLIENTS {
                clients.remove(0).finish();
            }
        }
        clients.into_iter().for_each(Client::finish);
        let lasted = began.elapsed();
        case.output(&["add", "20"]);
        // Without Motet only the connections are checked, not the threads of the ORB.
        if case.sandbox.has_motet() {
            before.wait_for_all(&server);
        } else {
            before.wait_for_connections(&server);
        }
        eprintln!("{count} clients in {lasted:?}, all is as before after {:?}", began.elapsed());
        case.end(server)
    });
}
