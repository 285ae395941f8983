//! omniORB's own examples, as Debian builds them (package omniorb-doc), under the adapter of `adapters/omniorb`.
//!
//! Static and dynamic invocation and skeletons, asynchronous calls, callbacks over a second and over the same connection, servant
//! managers, values, anys, the old object adapter, and the naming service between them.

use motet_tests::omniorb::{POLICIES, REPORT, at_once, by_the_adapter};
use motet_tests::programs::{Alone, LIMIT, Stage, Started, both_ways_with, free_port, skip};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "/usr/lib/omniorb/examples";
const MISSING: &str = "omniORB's examples are not installed (omniorb-doc, tests/programs/packages.txt)";

/// A server that prints its reference, and clients that take it as their first word. (Not ami/echo_dii_pollable_set: now and then its set
/// returns a poller that it does not know, without Motet, too.)
const PAIRS: [(&str, &[&str]); 9] = [
    ("echo/eg2_impl", &["echo/eg2_clt", "dii/echo_diiclt", "ami/echo_callback", "ami/echo_poller"]),
    ("echo/eg2_impl", &["ami/echo_pollable_set"]),
    ("dsi/echo_dsiimpl", &["echo/eg2_clt", "dii/echo_diiclt"]),
    ("boa/eg2_impl", &["echo/eg2_clt"]),
    ("poa/servant_manager/servant_activator", &["echo/eg2_clt"]),
    ("poa/servant_manager/servant_locator", &["echo/eg2_clt"]),
    ("poa/threading/mainthread", &["echo/eg2_clt"]),
    ("valuetype/simple/vserver", &["valuetype/simple/vclient"]),
    ("anyExample/anyExample_impl", &["anyExample/anyExample_clt"]),
];

/// Programs that are server and client in one: no connection is made.
const ALONE: [&str; 3] = ["echo/eg1", "poa/implicit_activation/eg1", "valuetype/simple/vcoloc"];

struct Scene<'a> {
    stage: &'a Stage,
    policy: &'a str,
}

impl Scene<'_> {
    fn start(&self, program: &str, words: &[&str]) -> Started {
        let (path, report) = (format!("{EXAMPLES}/{program}"), self.stage.path(REPORT));
        let own =
            [("ORBthreadPerConnectionPolicy", self.policy), ("MOTET_OMNIORB", "on"), ("MOTET_SHIM_REPORT", &report)];
        self.stage.start_with(&[&[path.as_str()], words].concat(), &own)
    }

    fn told(&self, program: &str, words: &[&str]) -> String {
        let began = Instant::now();
        loop {
            let told = self.start(program, words).finish();
            // An example's own patience, which a busy machine may exhaust.
            if !told.contains("Timeout") || began.elapsed() > LIMIT {
                return format!("{program}:\n{}", lasting(&told));
            }
        }
    }

    /// A server and its reference, which it prints.
    fn serve(&self, program: &str, words: &[&str]) -> (Started, String) {
        let server = self.start(program, words).says("IOR:");
        let began = Instant::now();
        loop {
            let printed = server.printed();
            let (_, after) = printed.split_once("IOR:").expect("it said so");
            if let Some(end) = after.find(|c: char| !c.is_ascii_hexdigit()) {
                return (server, format!("IOR:{}", &after[..end]));
            }
            assert!(began.elapsed() < LIMIT, "{program} never ends its reference");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// What does not depend on the moment: without references, what was done while waiting, and which of two calls was done first.
fn lasting(printed: &str) -> String {
    let of_the_moment = ["IOR:", "work pending", "Sending deferred request"];
    let kept = |line: &&str| !of_the_moment.iter().any(|words| line.contains(words));
    let mut lines: Vec<&str> = printed.lines().filter(kept).collect();
    if printed.contains("pollers left") || printed.contains("async") {
        lines.sort_unstable();
    }
    lines.iter().map(|line| format!("  {line}\n")).collect()
}

/// What a server has done, each thing once: what follows the last reply may be cut off by its end, and its threads take turns as they like.
fn done(printed: &str) -> String {
    let all = lasting(printed);
    let lines: std::collections::BTreeSet<&str> = all.lines().collect();
    lines.into_iter().map(|line| format!("{line}\n")).collect()
}

#[track_caller]
fn each_way(test: &str, needs: &[&str], connections: usize, scene: impl Fn(&Scene<'_>) -> String + Sync) {
    if !Path::new(EXAMPLES).join("echo/eg2_impl").exists() {
        return skip(test, MISSING).unwrap_or_default();
    }
    both_ways_with(test, needs, Alone::Neither, |stage| {
        let told = at_once(&POLICIES, |policy| scene(&Scene { stage, policy }));
        let (_, used) = by_the_adapter(stage);
        assert_eq!(used >= connections && used > 0, stage.has_motet(), "{used} connections of the adapter's");
        told
    });
}

#[test]
fn servers_and_their_clients() {
    each_way("servers_and_their_clients", &[], 40, |scene| {
        at_once(&PAIRS, |(server, clients)| {
            let (running, reference) = scene.serve(server, &[]);
            let told: String = clients.iter().map(|client| scene.told(client, &[&reference])).collect();
            assert!(told.len() > 40, "{server}: {told}");
            told + server + ":\n" + &done(&running.stop(15))
        })
    });
}

#[test]
fn programs_that_call_themselves() {
    let test = "programs_that_call_themselves";
    if !Path::new(EXAMPLES).join(ALONE[0]).exists() {
        return skip(test, MISSING).unwrap_or_default();
    }
    both_ways_with(test, &[], Alone::Neither, |stage| {
        at_once(&POLICIES, |policy| ALONE.map(|program| Scene { stage, policy }.told(program, &[])).concat())
    });
}

#[test]
fn callbacks_over_a_second_and_over_the_same_connection() {
    each_way("callbacks_over_a_second_and_over_the_same_connection", &[], 12, |scene| {
        let accepts = ["-ORBacceptBiDirectionalGIOP", "1", "-ORBserverTransportRule", "* unix,tcp,bidir"];
        let offers = ["-ORBofferBiDirectionalGIOP", "1", "-ORBclientTransportRule", "* unix,tcp,bidir"];
        let kinds: [(&str, &[&str], &[&str]); 2] = [("call_back/cb", &[], &[]), ("bidir/bd", &accepts, &offers)];
        at_once(&kinds, |(name, accepts, offers)| {
            let [server, client, shutdown] = ["server", "client", "shutdown"].map(|part| format!("{name}_{part}"));
            let (running, reference) = scene.serve(&server, accepts);
            let mut told = scene.told(&client, &[&[reference.as_str()], *offers].concat());
            // Called back from a thread of the server's, every two seconds for five: how often that is, and whether one more call comes
            // after the client's last words, is a matter of moments. A second lies between that end and the call that finds nobody.
            let often = scene.told(&client, &[&[reference.as_str(), "2", "5"], *offers].concat());
            let (calls, others): (Vec<&str>, Vec<&str>) = often.lines().partition(|line| line.contains("call_back("));
            assert!(!calls.is_empty(), "{often}");
            told += &(others.join("\n") + "\n");
            told + &scene.told(&shutdown, &[&reference]) + &done(&running.finish())
        })
    });
}

#[test]
fn a_reference_outlives_its_server() {
    each_way("a_reference_outlives_its_server", &[], 8, |scene| {
        let endpoint = format!("giop:tcp:127.0.0.1:{}", free_port());
        let words = ["-ORBendPoint", &endpoint];
        let (first, reference) = scene.serve("poa/persistent_objref/eg2_impl", &words);
        let mut told = scene.told("echo/eg2_clt", &[&reference]);
        first.stop(15);
        let (second, _) = scene.serve("poa/persistent_objref/eg2_impl", &words);
        told += &scene.told("echo/eg2_clt", &[&reference]);
        second.stop(15);
        told
    });
}

#[test]
fn servers_are_found_by_name() {
    each_way("servers_are_found_by_name", &["omniNames"], 12, |scene| {
        at_once(&["echo/eg3_impl", "echo/eg3_tieimpl"], |server| {
            let port = free_port();
            let folder = scene.stage.path(&format!("names-{port}"));
            scene.stage.run(&["mkdir", &folder]);
            let (words, log) = (port.to_string(), format!("{folder}/log"));
            let start = ["omniNames", "-start", &words, "-datadir", &folder, "-errlog", &log];
            let report = scene.stage.path(REPORT);
            let own = [("MOTET_OMNIORB", "on"), ("MOTET_SHIM_REPORT", report.as_str())];
            let names = scene.stage.start_with(&start, &own).listens(port);
            let root = format!("NameService=corbaloc:iiop:127.0.0.1:{port}/NameService");
            let asked_until = |text: &str| {
                let began = Instant::now();
                loop {
                    let told = scene.start("echo/eg3_clt", &["-ORBInitRef", &root]).ended();
                    if told.contains(text) {
                        break told;
                    }
                    assert!(began.elapsed() < LIMIT, "never '{text}'; {start:?} says {}\n{told}", names.printed());
                }
            };
            // It listens before it has its first context; servers give up then.
            asked_until("Context not found");
            let running = scene.start(server, &["-ORBInitRef", &root]);
            // It says nothing once it has entered itself: the naming service does.
            let told = asked_until("I said");
            running.stop(15);
            names.stop(15);
            lasting(&told)
        })
    });
}
