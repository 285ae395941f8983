//! omniORB under the adapter of `adapters/omniorb`: one server whose clients come and go in every way, for `CHURN_SECONDS` (6).
//!
//! At its end the server holds what it held in the beginning, and no client has seen an error but those that it asked for.

use motet_tests::omniorb::{Held, Scene, ends_each_way};
use motet_tests::programs::{Alone, Started, find, source};
use std::time::{Duration, Instant};

/// What a client does, and what it says when all was well.
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
/// What clients are killed at.
const VICTIMS: [&str; 3] = ["upcall", "large", "replies"];
/// What peers do that do not speak GIOP as they should (`giop_raw.py`).
const RAW: [&str; 4] = ["noise", "a truncated message", "a request and an end", "a large request that ends early"];
const AT_ONCE: usize = 4;

fn seconds() -> u64 {
    std::env::var("CHURN_SECONDS").ok().and_then(|given| given.parse().ok()).unwrap_or(6)
}

/// A client that runs, and what it is to say; a victim has nothing to say.
struct Guest(Started, Option<&'static str>);

impl Guest {
    fn comes(scene: &Scene<'_>, raw: Option<&str>, chance: usize) -> Self {
        let any = chance / 3;
        match (chance % 6, raw) {
            (0, _) => Self(scene.client(&["calling", VICTIMS[any % VICTIMS.len()]]), None),
            (1, Some(raw)) => {
                let words = ["python3", raw, "client", &scene.port, RAW[any % RAW.len()]];
                Self(scene.stage.start_with(&words, &[]), Some("end\n"))
            }
            _ => {
                let (words, says) = CLIENTS[any % CLIENTS.len()];
                Self(scene.client(words), Some(says))
            }
        }
    }

    #[track_caller]
    fn goes(self) {
        match self.1 {
            None => drop(self.0.says("calling")),
            Some(says) => {
                let told = self.0.finish();
                assert!(told.contains(says), "{told}, not {says}");
            }
        }
    }
}

#[test]
fn a_server_outlives_all_its_clients() {
    // Who was called back is gone: what the server had to it goes with its own scavenger; threads without a task go soon.
    let options = [
        ("ORBgiopMaxMsgSize", "50000000"),
        ("ORBscanGranularity", "1"),
        ("ORBoutConScanPeriod", "3"),
        ("ORBidleThreadTimeout", "2"),
    ];
    ends_each_way("a_server_outlives_all_its_clients", Alone::WithMotet, &options, |scene| {
        // Without Motet it is only to show that the test asks for nothing that TCP does not give.
        let lasts = Duration::from_secs(seconds()) / if scene.stage.has_motet() { 1 } else { 2 };
        let raw = find("python3").map(|_| source(scene.stage, "giop_raw.py"));
        let server = scene.serve();
        scene.told(&["add", "20"]);
        let before = Held::by(&server);
        let (began, mut guests, mut count, mut chance) = (Instant::now(), Vec::new(), 0, 1_u64);
        while began.elapsed() < lasts {
            // The same order every time.
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            guests.push(Guest::comes(scene, raw.as_deref(), (chance >> 33) as usize));
            count += 1;
            if guests.len() == AT_ONCE {
                guests.remove(0).goes();
            }
        }
        guests.into_iter().for_each(Guest::goes);
        let lasted = began.elapsed();
        scene.told(&["add", "20"]);
        // Without Motet it is certain that the ORB's own threads go.
        if scene.stage.has_motet() {
            before.all_again(&server);
        } else {
            before.connections_again(&server);
        }
        eprintln!("{count} clients in {lasted:?}, all is as before after {:?}", began.elapsed());
        scene.end(server)
    });
}
