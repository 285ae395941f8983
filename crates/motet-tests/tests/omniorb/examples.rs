//! omniORB's own examples, as built by Debian (package omniorb-doc), with the adapter of `adapters/omniorb`.
//!
//! Static and dynamic invocation and skeletons, asynchronous calls, callbacks over a second and over the same connection, servant managers, values,
//! anys, the old object adapter, and the naming service.

use motet_tests::omniorb::{POLICIES, REPORT, adapter_report, at_once};
use motet_tests::programs::{Exclusive, Sandbox, Started, TIMEOUT, both_ways_with, free_port, skip};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "/usr/lib/omniorb/examples";
const MISSING: &str = "omniORB's examples are not installed (omniorb-doc, tests/programs/packages.txt)";

/// Servers that print their reference, and clients that take it as their first argument. ami/echo_dii_pollable_set is left out: also without Motet,
/// its set sometimes returns an unknown poller.
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

/// Programs that are server and client in one, without a connection.
const COLOCATED: [&str; 3] = ["echo/eg1", "poa/implicit_activation/eg1", "valuetype/simple/vcoloc"];

struct Case<'a> {
    sandbox: &'a Sandbox,
    policy: &'a str,
}

impl Case<'_> {
    fn start(&self, program: &str, words: &[&str]) -> Started {
        let (path, report) = (format!("{EXAMPLES}/{program}"), self.sandbox.path(REPORT));
        let own =
            [("ORBthreadPerConnectionPolicy", self.policy), ("MOTET_OMNIORB", "on"), ("MOTET_SHIM_REPORT", &report)];
        self.sandbox.start_with(&[&[path.as_str()], words].concat(), &own)
    }

    fn output(&self, program: &str, words: &[&str]) -> String {
        let began = Instant::now();
        loop {
            let output = self.start(program, words).finish();
            // The example's own time limit, which a busy machine may exceed.
            if !output.contains("Timeout") || began.elapsed() > TIMEOUT {
                return format!("{program}:\n{}", lasting(&output));
            }
        }
    }

    /// Starts a server. Returns it and the reference that it prints.
    fn serve(&self, program: &str, words: &[&str]) -> (Started, String) {
        let server = self.start(program, words).says("IOR:");
        let began = Instant::now();
        loop {
            let printed = server.printed();
            let (_, after) = printed.split_once("IOR:").expect("it said so");
            if let Some(end) = after.find(|c: char| !c.is_ascii_hexdigit()) {
                return (server, format!("IOR:{}", &after[..end]));
            }
            assert!(began.elapsed() < TIMEOUT, "{program} never ends its reference");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Removes output that depends on timing: references, waiting messages, and the order of two calls.
fn lasting(printed: &str) -> String {
    let of_the_moment = ["IOR:", "work pending", "Sending deferred request"];
    let kept = |line: &&str| !of_the_moment.iter().any(|words| line.contains(words));
    let mut lines: Vec<&str> = printed.lines().filter(kept).collect();
    if printed.contains("pollers left") || printed.contains("async") {
        lines.sort_unstable();
    }
    lines.iter().map(|line| format!("  {line}\n")).collect()
}

/// The lines of a server's output, each once: its threads interleave, and output after the last reply may be cut off.
fn done(printed: &str) -> String {
    let all = lasting(printed);
    let lines: std::collections::BTreeSet<&str> = all.lines().collect();
    lines.into_iter().map(|line| format!("{line}\n")).collect()
}

#[track_caller]
fn each_way(test: &str, needs: &[&str], connections: usize, case: impl Fn(&Case<'_>) -> String + Sync) {
    if !Path::new(EXAMPLES).join("echo/eg2_impl").exists() {
        return skip(test, MISSING).unwrap_or_default();
    }
    both_ways_with(test, needs, Exclusive::Neither, |sandbox| {
        let output = at_once(&POLICIES, |policy| case(&Case { sandbox, policy }));
        let (_, used) = adapter_report(sandbox);
        assert_eq!(used >= connections && used > 0, sandbox.has_motet(), "{used} connections of the adapter's");
        output
    });
}

#[test]
fn example_servers_and_clients_print_the_same() {
    each_way("example_servers_and_clients_print_the_same", &[], 40, |case| {
        at_once(&PAIRS, |(server, clients)| {
            let (running, reference) = case.serve(server, &[]);
            let output: String = clients.iter().map(|client| case.output(client, &[&reference])).collect();
            assert!(output.len() > 40, "{server}: {output}");
            output + server + ":\n" + &done(&running.stop(15))
        })
    });
}

#[test]
fn colocated_examples_print_the_same() {
    let test = "colocated_examples_print_the_same";
    if !Path::new(EXAMPLES).join(COLOCATED[0]).exists() {
        return skip(test, MISSING).unwrap_or_default();
    }
    both_ways_with(test, &[], Exclusive::Neither, |sandbox| {
        at_once(&POLICIES, |policy| COLOCATED.map(|program| Case { sandbox, policy }.output(program, &[])).concat())
    });
}

#[test]
fn example_callbacks_use_a_second_or_the_same_connection() {
    each_way("example_callbacks_use_a_second_or_the_same_connection", &[], 12, |case| {
        let accepts = ["-ORBacceptBiDirectionalGIOP", "1", "-ORBserverTransportRule", "* unix,tcp,bidir"];
        let offers = ["-ORBofferBiDirectionalGIOP", "1", "-ORBclientTransportRule", "* unix,tcp,bidir"];
        let kinds: [(&str, &[&str], &[&str]); 2] = [("call_back/cb", &[], &[]), ("bidir/bd", &accepts, &offers)];
        at_once(&kinds, |(name, accepts, offers)| {
            let [server, client, shutdown] = ["server", "client", "shutdown"].map(|part| format!("{name}_{part}"));
            let (running, reference) = case.serve(&server, accepts);
            let mut output = case.output(&client, &[&[reference.as_str()], *offers].concat());
            // A thread of the server calls back every two seconds for five seconds. The number of calls, and whether one arrives after the client's
            // last output, depend on timing. The client exits a second before the call that fails.
            let often = case.output(&client, &[&[reference.as_str(), "2", "5"], *offers].concat());
            let (calls, others): (Vec<&str>, Vec<&str>) = often.lines().partition(|line| line.contains("call_back("));
            assert!(!calls.is_empty(), "{often}");
            output += &(others.join("\n") + "\n");
            output + &case.output(&shutdown, &[&reference]) + &done(&running.finish())
        })
    });
}

#[test]
fn object_reference_outlives_its_server() {
    each_way("object_reference_outlives_its_server", &[], 8, |case| {
        let endpoint = format!("giop:tcp:127.0.0.1:{}", free_port());
        let words = ["-ORBendPoint", &endpoint];
        let (first, reference) = case.serve("poa/persistent_objref/eg2_impl", &words);
        let mut output = case.output("echo/eg2_clt", &[&reference]);
        first.stop(15);
        let (second, _) = case.serve("poa/persistent_objref/eg2_impl", &words);
        output += &case.output("echo/eg2_clt", &[&reference]);
        second.stop(15);
        output
    });
}

#[test]
fn example_servers_are_found_by_name() {
    each_way("example_servers_are_found_by_name", &["omniNames"], 12, |case| {
        at_once(&["echo/eg3_impl", "echo/eg3_tieimpl"], |server| {
            let port = free_port();
            let folder = case.sandbox.path(&format!("names-{port}"));
            case.sandbox.run(&["mkdir", &folder]);
            let (words, log) = (port.to_string(), format!("{folder}/log"));
            let start = ["omniNames", "-start", &words, "-datadir", &folder, "-errlog", &log];
            let report = case.sandbox.path(REPORT);
            let own = [("MOTET_OMNIORB", "on"), ("MOTET_SHIM_REPORT", report.as_str())];
            let names = case.sandbox.start_with(&start, &own).listens(port);
            let root = format!("NameService=corbaloc:iiop:127.0.0.1:{port}/NameService");
            let asked_until = |text: &str| {
                let began = Instant::now();
                loop {
                    let output = case.start("echo/eg3_clt", &["-ORBInitRef", &root]).ended();
                    if output.contains(text) {
                        break output;
                    }
                    assert!(began.elapsed() < TIMEOUT, "never '{text}'; {start:?} says {}\n{output}", names.printed());
                }
            };
            // It listens before it has its root context, and servers give up without one.
            asked_until("Context not found");
            let running = case.start(server, &["-ORBInitRef", &root]);
            // The server prints nothing after its registration, so the naming service is polled.
            let output = asked_until("I said");
            running.stop(15);
            names.stop(15);
            lasting(&output)
        })
    });
}
