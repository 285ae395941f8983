//! omniORB with the adapter of `adapters/omniorb`: events that end or disturb connections, with both threading policies of the ORB.
//!
//! `omniorb/calls.rs` has connections in use, `omniorb/malformed_giop.rs` peers that break the protocol.

use motet_tests::omniorb::{Case, Resources, adapter_report, at_once, ends_each_way, without_logs};
use motet_tests::programs::{Exclusive, Started};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// A case with one client that runs one command.
#[track_caller]
fn one_client(test: &str, options: &[(&str, &str)], words: &[&str], expected: &str) {
    ends_each_way(test, Exclusive::Neither, options, |case| {
        let server = case.serve();
        let output = case.output(words);
        assert!(output.contains(expected), "{output}");
        // The server still serves other clients.
        case.output(&["add", "20"]);
        case.end(server);
        output
    });
}

fn signal(process: &Started, name: &str) {
    let pid = process.pid().to_string();
    let sent = Command::new("kill").args([&format!("-{name}"), &pid]).status().expect("kill");
    assert!(sent.success(), "no {name} for {pid}");
}

#[test]
fn calls_are_forwarded_again_after_server_death() {
    const WITHOUT_MOTET: &[&str] = &["env", "-u", "LD_PRELOAD"];
    ends_each_way("calls_are_forwarded_again_after_server_death", Exclusive::Neither, &[], |case| {
        at_once(&[&[], WITHOUT_MOTET], |words| {
            let (own, other) = (case.on_another_port(), Case { before: [words, &[]], ..case.on_another_port() });
            let (agent, desk) = (own.serve_with(&[&other.port]), other.serve());
            let client = own.client(&["forwarded"]).says("gone");
            drop(desk);
            let desk = other.serve();
            let output = client.finish();
            assert!(output.contains("forwarded 300, to another"), "{output}");
            other.end(desk);
            own.end(agent);
            output
        })
    });
}

#[test]
fn message_size_limit_of_the_user_holds() {
    let sizes = ["20000", "60000", "-60000", "200", "3000000"];
    let clients = ["2097152", "30000", "4000000"].map(|limit| ["-ORBgiopMaxMsgSize", limit]);
    let servers = [["-ORBgiopMaxMsgSize", "40000"], ["-ORBgiopMaxMsgSize", "2097152"]];
    ends_each_way("message_size_limit_of_the_user_holds", Exclusive::Neither, &[], |case| {
        at_once(&servers, |limits| {
            let case = case.on_another_port();
            let server = case.serve_with(limits);
            let mut all = String::new();
            for client in &clients {
                let output = without_logs(&case.output(&[&["mirrors"], &sizes[..], client].concat()));
                assert!(output.contains("20000: nothing") && !output.contains("3000000: nothing"), "{output}");
                all += &format!("{limits:?} {client:?}\n{output}");
            }
            case.end(server);
            all
        })
    });
}

#[test]
fn large_messages_pass_without_a_user_limit() {
    let mirrored = |options: &[(&str, &str)], size: &str, goes: fn(bool) -> bool| {
        ends_each_way("large_messages_pass_without_a_user_limit", Exclusive::Neither, options, |case| {
            let server = case.serve();
            let output = without_logs(&case.output(&["mirrors", size, "200"]));
            let answer = if goes(case.sandbox.has_motet()) { "nothing" } else { "MARSHAL" };
            assert!(output.contains(&format!("{size}: {answer}")) && output.contains("200: nothing"), "{output}");
            case.end(server);
            String::new()
        });
    };
    mirrored(&[], "30000000", |with_motet| with_motet);
    mirrored(&[("MOTET_OMNIORB_MESSAGE", "0")], "3000000", |_| false);
    mirrored(&[("MOTET_OMNIORB_MESSAGE", "4MiB")], "5000000", |_| false);
}

#[test]
fn call_to_a_stopped_server_times_out() {
    one_client("call_to_a_stopped_server_times_out", &[], &["stopped"], "TIMEOUT");
}

#[test]
fn concurrent_calls_keep_separate_time_limits() {
    one_client("concurrent_calls_keep_separate_time_limits", &[], &["waiting"], "TIMEOUT");
}

#[test]
fn unaccepted_connection_times_out() {
    one_client("unaccepted_connection_times_out", &[], &["unanswered"], "a connection: T");
}

#[test]
fn stopped_client_delays_no_other_client() {
    // More than fits into the connection, so the server waits for this client to read its reply.
    let options = [("ORBgiopMaxMsgSize", "50000000")];
    ends_each_way("stopped_client_delays_no_other_client", Exclusive::Neither, &options, |case| {
        let server = case.serve();
        let client = case.client(&["calling", "replies"]).says("calling");
        signal(&client, "STOP");
        let output = case.output(&["add", "50"]) + &case.output(&["many", "10"]);
        thread::sleep(Duration::from_millis(500));
        signal(&client, "CONT");
        let output = output + &case.output(&["add", "50"]);
        drop(client);
        case.end(server);
        output
    });
}

#[test]
fn idle_connections_are_closed_by_the_configured_end() {
    let cases = [("client", "1", "0"), ("server", "0", "1")];
    ends_each_way("idle_connections_are_closed_by_the_configured_end", Exclusive::Neither, &[], |case| {
        let output = at_once(&cases, |(who, out, within)| {
            let options = [("ORBscanGranularity", "1"), ("ORBoutConScanPeriod", *out), ("ORBinConScanPeriod", *within)];
            let case = Case { options: &options, ..case.on_another_port() };
            let server = case.serve();
            let output = case.output(&["scavenged", who]);
            assert!(output.contains("closed, then"), "{output}");
            case.end(server);
            output
        });
        if case.sandbox.has_motet() {
            // Two of each client, and two of each server for them.
            let (_, connections) = adapter_report(case.sandbox);
            assert!(connections >= 8, "only {connections} connections of the adapter's");
        }
        output
    });
}

#[test]
fn client_continues_after_fork() {
    one_client("client_continues_after_fork", &[], &["forks"], "it execs with 0");
}

#[test]
fn server_continues_after_fork() {
    one_client("server_continues_after_fork", &[], &["forked"], "its child stays, then");
}

#[test]
fn child_of_a_killed_server_holds_its_connections() {
    ends_each_way("child_of_a_killed_server_holds_its_connections", Exclusive::Neither, &[], |case| {
        let server = case.serve();
        let output = case.output(&["orphaned"]);
        assert!(output.contains("COMM_FAILURE"), "{output}");
        drop(server);
        output
    });
}

#[test]
fn server_with_two_thousand_objects_answers() {
    one_client("server_with_two_thousand_objects_answers", &[], &["many", "2000"], "2000 objects");
}

#[test]
fn killed_clients_leave_no_connection() {
    let options = [("ORBgiopMaxMsgSize", "50000000")];
    ends_each_way("killed_clients_leave_no_connection", Exclusive::Neither, &options, |case| {
        let server = case.serve();
        case.output(&["add", "20"]);
        let before = Resources::of(&server);
        for what in ["upcall", "large", "replies"] {
            let clients: Vec<Started> = (0..3).map(|_| case.client(&["calling", what]).says("calling")).collect();
            thread::sleep(Duration::from_millis(200));
            drop(clients);
            before.wait_for_connections(&server);
            case.output(&["add", "20"]);
        }
        case.end(server)
    });
}
