//! omniORB under the adapter of `adapters/omniorb`: whatever ends or disturbs its connections, in both of the ORB's threading policies.
//!
//! `omniorb/calls.rs` has connections in use, `omniorb/raw.rs` peers that do not speak GIOP as they should.

use motet_tests::omniorb::{Held, Scene, at_once, by_the_adapter, ends_each_way, without_logs};
use motet_tests::programs::{Alone, Started};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Scenes with nothing but a client of one verb.
#[track_caller]
fn one_client(test: &str, options: &[(&str, &str)], words: &[&str], expected: &str) {
    ends_each_way(test, Alone::Neither, options, |scene| {
        let server = scene.serve();
        let told = scene.told(words);
        assert!(told.contains(expected), "{told}");
        // It is as ready for others as it was.
        scene.told(&["add", "20"]);
        scene.end(server);
        told
    });
}

fn signal(process: &Started, name: &str) {
    let pid = process.pid().to_string();
    let sent = Command::new("kill").args([&format!("-{name}"), &pid]).status().expect("kill");
    assert!(sent.success(), "no {name} for {pid}");
}

#[test]
fn calls_are_forwarded_and_again_when_their_server_has_died() {
    const PLAIN: &[&str] = &["env", "-u", "LD_PRELOAD"];
    ends_each_way("calls_are_forwarded_and_again_when_their_server_has_died", Alone::Neither, &[], |scene| {
        at_once(&[&[], PLAIN], |words| {
            let (own, other) = (scene.beside(), Scene { before: [words, &[]], ..scene.beside() });
            let (agent, desk) = (own.serve_with(&[&other.port]), other.serve());
            let client = own.client(&["forwarded"]).says("gone");
            drop(desk);
            let desk = other.serve();
            let told = client.finish();
            assert!(told.contains("forwarded 300, to another"), "{told}");
            other.end(desk);
            own.end(agent);
            told
        })
    });
}

#[test]
fn a_limit_of_the_message_size_is_the_users() {
    let sizes = ["20000", "60000", "-60000", "200", "3000000"];
    let clients = ["2097152", "30000", "4000000"].map(|limit| ["-ORBgiopMaxMsgSize", limit]);
    let servers = [["-ORBgiopMaxMsgSize", "40000"], ["-ORBgiopMaxMsgSize", "2097152"]];
    ends_each_way("a_limit_of_the_message_size_is_the_users", Alone::Neither, &[], |scene| {
        at_once(&servers, |limits| {
            let scene = scene.beside();
            let server = scene.serve_with(limits);
            let mut all = String::new();
            for client in &clients {
                let told = without_logs(&scene.told(&[&["mirrors"], &sizes[..], client].concat()));
                assert!(told.contains("20000: nothing") && !told.contains("3000000: nothing"), "{told}");
                all += &format!("{limits:?} {client:?}\n{told}");
            }
            scene.end(server);
            all
        })
    });
}

#[test]
fn messages_are_large_where_nobody_has_set_a_limit() {
    let mirrored = |options: &[(&str, &str)], size: &str, goes: fn(bool) -> bool| {
        ends_each_way("messages_are_large_where_nobody_has_set_a_limit", Alone::Neither, options, |scene| {
            let server = scene.serve();
            let told = without_logs(&scene.told(&["mirrors", size, "200"]));
            let answer = if goes(scene.stage.has_motet()) { "nothing" } else { "MARSHAL" };
            assert!(told.contains(&format!("{size}: {answer}")) && told.contains("200: nothing"), "{told}");
            scene.end(server);
            String::new()
        });
    };
    mirrored(&[], "30000000", |with_motet| with_motet);
    mirrored(&[("MOTET_OMNIORB_MESSAGE", "0")], "3000000", |_| false);
    mirrored(&[("MOTET_OMNIORB_MESSAGE", "4MiB")], "5000000", |_| false);
}

#[test]
fn a_server_that_is_stopped_is_a_call_that_is_late() {
    one_client("a_server_that_is_stopped_is_a_call_that_is_late", &[], &["stopped"], "TIMEOUT");
}

#[test]
fn several_calls_have_time_limits_of_their_own() {
    one_client("several_calls_have_time_limits_of_their_own", &[], &["waiting"], "TIMEOUT");
}

#[test]
fn a_connection_that_nobody_accepts_has_its_time_limit() {
    one_client("a_connection_that_nobody_accepts_has_its_time_limit", &[], &["unanswered"], "a connection: T");
}

#[test]
fn a_client_that_is_stopped_is_no_other_clients_trouble() {
    // More than fits between the two, so that the server waits for this client with its reply.
    let options = [("ORBgiopMaxMsgSize", "50000000")];
    ends_each_way("a_client_that_is_stopped_is_no_other_clients_trouble", Alone::Neither, &options, |scene| {
        let server = scene.serve();
        let client = scene.client(&["calling", "replies"]).says("calling");
        signal(&client, "STOP");
        let told = scene.told(&["add", "50"]) + &scene.told(&["many", "10"]);
        thread::sleep(Duration::from_millis(500));
        signal(&client, "CONT");
        let told = told + &scene.told(&["add", "50"]);
        drop(client);
        scene.end(server);
        told
    });
}

#[test]
fn idle_connections_are_closed_by_whom_the_user_chose() {
    let cases = [("client", "1", "0"), ("server", "0", "1")];
    ends_each_way("idle_connections_are_closed_by_whom_the_user_chose", Alone::Neither, &[], |scene| {
        let told = at_once(&cases, |(who, out, within)| {
            let options = [("ORBscanGranularity", "1"), ("ORBoutConScanPeriod", *out), ("ORBinConScanPeriod", *within)];
            let scene = Scene { options: &options, ..scene.beside() };
            let server = scene.serve();
            let told = scene.told(&["scavenged", who]);
            assert!(told.contains("closed, then"), "{told}");
            scene.end(server);
            told
        });
        if scene.stage.has_motet() {
            // Two of each client's, two of each server's for them.
            let (_, connections) = by_the_adapter(scene.stage);
            assert!(connections >= 8, "only {connections} connections of the adapter's");
        }
        told
    });
}

#[test]
fn a_client_forks_and_goes_on() {
    one_client("a_client_forks_and_goes_on", &[], &["forks"], "it execs with 0");
}

#[test]
fn a_server_forks_and_goes_on() {
    one_client("a_server_forks_and_goes_on", &[], &["forked"], "its child stays, then");
}

#[test]
fn a_killed_servers_child_holds_its_connections() {
    ends_each_way("a_killed_servers_child_holds_its_connections", Alone::Neither, &[], |scene| {
        let server = scene.serve();
        let told = scene.told(&["orphaned"]);
        assert!(told.contains("COMM_FAILURE"), "{told}");
        drop(server);
        told
    });
}

#[test]
fn a_server_has_two_thousand_objects() {
    one_client("a_server_has_two_thousand_objects", &[], &["many", "2000"], "2000 objects");
}

#[test]
fn clients_that_are_killed_leave_no_connection() {
    let options = [("ORBgiopMaxMsgSize", "50000000")];
    ends_each_way("clients_that_are_killed_leave_no_connection", Alone::Neither, &options, |scene| {
        let server = scene.serve();
        scene.told(&["add", "20"]);
        let before = Held::by(&server);
        for what in ["upcall", "large", "replies"] {
            let clients: Vec<Started> = (0..3).map(|_| scene.client(&["calling", what]).says("calling")).collect();
            thread::sleep(Duration::from_millis(200));
            drop(clients);
            before.connections_again(&server);
            scene.told(&["add", "20"]);
        }
        scene.end(server)
    });
}
