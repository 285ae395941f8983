//! omniORBpy, and with it omniORB 4.3: a Python client and a Python server that exchange every type of IDL.
//!
//! The interpreter loads the ORB as what a module of its own is linked to, so these are also the tests of an adapter that has to find
//! its ORB in a plug-in. What happens to connections: `programs_omniorb.rs`.

use motet_tests::programs::{Counters, Stage, Started, both_ways, skip, source, tool};
use std::path::Path;

const REPORT: &str = "voices";
/// Words in front of a program that make it one without Motet.
const PLAIN: &[&str] = &["env", "-u", "LD_PRELOAD"];

/// How an end is started: words in front of it, `omniorb`, and the ORB's threading policy (a thread for each connection, or a pool).
#[derive(Clone, Copy)]
struct End {
    before: &'static [&'static str],
    adapter: &'static str,
    policy: &'static str,
}

const ADAPTER: End = End { before: &[], adapter: "on", policy: "1" };
const SOCKETS: End = End { adapter: "off", ..ADAPTER };
const UNEQUIPPED: End = End { before: PLAIN, ..SOCKETS };

/// The program with its stubs and its interpreter, where their user can read them.
struct Scene<'a> {
    stage: &'a Stage,
    python: String,
    program: String,
}

impl<'a> Scene<'a> {
    fn new(stage: &'a Stage, orb: &Path) -> Self {
        let orb = stage.lent(orb);
        let path = |name: &str| orb.join(name).to_str().expect("UTF-8").to_owned();
        let python = path("bin/python3.10");
        let idl = source(stage, "orb_types.idl");
        stage.run(&[&python, &path("bin/omniidl"), "-bpython", "-C", &stage.path(""), &idl]);
        Self { stage, python, program: source(stage, "orb_types.py") }
    }

    fn start(&self, end: End, words: &[&str]) -> Started {
        let report = self.stage.path(REPORT);
        let environment = [
            ("MOTET_OMNIORB", end.adapter),
            ("ORBthreadPerConnectionPolicy", end.policy),
            ("MOTET_SHIM_REPORT", report.as_str()),
        ];
        let own = [self.python.as_str(), &self.program];
        self.stage.start_with(&[end.before, &own, words].concat(), &environment)
    }

    /// Everything that a client and a server can tell one another.
    fn play(&self, client: End, server: End) -> String {
        let running = self.start(server, &["serve"]).says("object IOR:");
        let printed = running.printed();
        let object = printed.lines().find_map(|line| line.strip_prefix("object ")).expect("a reference");
        let told = self.start(client, &["call", object]).finish();
        assert!(told.ends_with("all ok\n"), "{told}");
        let time = self.start(client, &["time", object, "200"]).finish();
        assert!(time.trim().parse::<u64>().is_ok_and(|ns| ns > 0), "no time: {time}");
        if self.stage.is_equipped() && server.before.is_empty() {
            let mapped = std::fs::read_to_string(format!("/proc/{}/maps", running.pid())).unwrap_or_default();
            assert_eq!(mapped.contains("libmotet_omniorb43.so"), server.adapter == "on", "{mapped}");
        }
        self.start(client, &["end", object]).finish();
        let ended = running.finish();
        assert!(ended.ends_with("ended\n"), "{ended}");
        told
    }

    /// Bytes that connections of the adapter sent over shared memory, and how many connections there were.
    fn by_the_adapter(&self) -> (u64, usize) {
        let report = std::fs::read_to_string(self.stage.path(REPORT)).unwrap_or_default();
        let fast = |line: &str| line.split_once("sent_fast=")?.1.split(' ').next()?.parse::<u64>().ok();
        let lines: Vec<&str> = report.lines().filter(|line| line.starts_with("voice=omniorb ")).collect();
        (lines.iter().filter_map(|line| fast(line)).sum(), lines.len())
    }
}

/// Plays all of it between these ends, plainly and under Motet; then `check` has a word.
fn between(test: &str, client: End, server: End, check: impl Fn(&Scene<'_>)) -> Option<Counters> {
    let Some(orb) = tool("omniorbpy") else {
        return skip(test, "omniORBpy is not there (scripts/setup --tests)");
    };
    both_ways(test, &[], |stage| {
        let scene = Scene::new(stage, &orb);
        let told = scene.play(client, server);
        if stage.is_equipped() {
            check(&scene);
        }
        told
    })
}

#[test]
fn every_type_goes_there_and_back_by_the_adapter() {
    for policy in ["1", "0"] {
        let end = End { policy, ..ADAPTER };
        let counters = between("every_type_goes_there_and_back_by_the_adapter", end, end, |scene| {
            let (fast, connections) = scene.by_the_adapter();
            assert!(connections >= 4 && fast > 0, "{connections} connections, {fast} bytes over shared memory");
        });
        let Some(counters) = counters else { return };
        counters.went_over_shared_memory(4);
    }
}

#[test]
fn every_type_goes_there_and_back_by_the_sockets_voice() {
    let test = "every_type_goes_there_and_back_by_the_sockets_voice";
    let counters = between(test, SOCKETS, SOCKETS, |scene| assert_eq!(scene.by_the_adapter().1, 0));
    if let Some(counters) = counters {
        counters.went_over_shared_memory(4);
    }
}

#[test]
fn the_adapter_and_the_sockets_voice_share_memory() {
    for (client, server) in [(ADAPTER, SOCKETS), (SOCKETS, ADAPTER)] {
        let test = "the_adapter_and_the_sockets_voice_share_memory";
        let counters = between(test, client, server, |scene| {
            let (fast, connections) = scene.by_the_adapter();
            assert!(connections > 0 && fast > 0, "{connections} connections, {fast} bytes over shared memory");
        });
        let Some(counters) = counters else { return };
        counters.went_over_shared_memory(4);
    }
}

#[test]
fn one_end_may_be_unequipped() {
    for (client, server) in [(ADAPTER, UNEQUIPPED), (UNEQUIPPED, ADAPTER)] {
        let counters = between("one_end_may_be_unequipped", client, server, |scene| {
            let (fast, connections) = scene.by_the_adapter();
            assert!(connections > 0 && fast == 0, "{connections} connections, {fast} bytes over shared memory");
        });
        let Some(counters) = counters else { return };
        assert_eq!(counters.sent_fast, 0, "{}", counters.lines);
    }
}
