//! omniORB with the adapter of `adapters/omniorb`: connections in use, with both threading policies of the ORB.
//!
//! `servers/middleware.rs` tests the calls themselves.

use motet_tests::omniorb::{Case, POLICIES, REPORT, adapter_report, built, each_way, each_way_at_once, each_way_with};
use motet_tests::programs::{Exclusive, Sandbox, Started, both_ways, both_ways_open, free_port, placed, skip};
use motet_tests::{Built, folder};
use std::cell::Cell;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn adapter_carries_every_connection() {
    let test = "adapter_carries_every_connection";
    let Ok(program) = built("omniorb_cases") else { return skip(test, "omniORB is not installed").unwrap_or_default() };
    for policy in POLICIES {
        let carried = Cell::new(0);
        let case = |sandbox: &Sandbox| {
            let case = Case::new(sandbox, &program, policy, [&[], &[]]);
            let server = case.serve();
            let output = case.output(&["add", "2000"]);
            let mapped = std::fs::read_to_string(format!("/proc/{}/maps", server.pid())).unwrap_or_default();
            let loaded = mapped.contains("libmotet_omniorb42.so");
            assert_eq!(loaded, sandbox.has_motet(), "{mapped}");
            case.end(server);
            let (fast, connections) = adapter_report(sandbox);
            assert!(if sandbox.has_motet() { connections >= 2 } else { connections == 0 }, "{connections} connections");
            carried.set(fast);
            output
        };
        both_ways(test, &[], case);
        if both_ways_open(test, &[], Exclusive::WithMotet, case).is_some() {
            assert!(carried.get() > 0, "nothing went over shared memory, policy {policy}");
        }
    }
}

#[test]
fn program_without_an_orb_loads_nothing() {
    both_ways("program_without_an_orb_loads_nothing", &[], |sandbox| {
        let maps = sandbox.run(&["cat", "/proc/self/maps"]);
        assert_eq!(maps.contains("libmotet_sockets.so"), sandbox.has_motet(), "{maps}");
        for library in ["libmotet_omniorb4", "libmotet.so", "libomniORB4"] {
            assert!(!maps.contains(library), "{library} in {maps}");
        }
        String::new()
    });
}

#[test]
fn plug_in_may_contain_its_own_orb() {
    let folder = folder("own-orb");
    let plug_in = Built::library("own_orb", &folder, &["-DPLUG_IN"]);
    let program = Built::program("own_orb", &folder, &[]);
    both_ways("plug_in_may_contain_its_own_orb", &[], |sandbox| {
        let (program, plug_in) = (placed(sandbox, &program), placed(sandbox, &plug_in));
        sandbox.start_with(&[&program, &plug_in], &[("MOTET_OMNIORB", "on")]).finish()
    });
}

#[test]
fn callbacks_arrive_during_calls() {
    each_way("callbacks_arrive_during_calls", [&[], &[]], |case| {
        let server = case.serve();
        let output = case.output(&["callback"]) + &case.output(&["callback", "bidir"]);
        case.end(server);
        output
    });
}

#[test]
fn every_server_endpoint_is_served() {
    each_way("every_server_endpoint_is_served", [&[], &[]], |case| {
        let (first, second) = (case.on_another_port(), case.on_another_port());
        let more = format!("giop:tcp:127.0.0.1:{}", second.port);
        let (program, port) = (first.program.clone(), first.port.clone());
        let server = Case { program, port, options: &[("ORBendPoint", &more)], ..*case }.serve();
        let output = first.output(&["add", "2000"]) + &second.output(&["add", "2000"]);
        first.end(server);
        output
    });
}

#[test]
fn concurrent_short_and_long_calls_return() {
    each_way("concurrent_short_and_long_calls_return", [&[], &[]], |case| {
        let server = case.serve();
        let output = case.output(&["together"]);
        case.end(server);
        output
    });
}

#[test]
fn calls_and_callbacks_work_on_one_cpu() {
    let pinned: &[&str] = &["taskset", "-c", "0"];
    each_way("calls_and_callbacks_work_on_one_cpu", [pinned, pinned], |case| {
        let server = case.serve();
        let output = case.output(&["add", "500"]) + &case.output(&["callback"]) + &case.output(&["together"]);
        case.end(server);
        output
    });
}

#[test]
fn shutdown_wakes_waiters_on_an_idle_connection() {
    each_way_at_once("shutdown_wakes_waiters_on_an_idle_connection", |case| {
        let server = case.serve();
        // It keeps its connection while its standard input is open.
        let idle = case.start(&["sh", "-c", "sleep 30 | \"$@\"", "sh"], &["idle"]).says("called");
        let began = Instant::now();
        let output = case.end(server);
        let took = began.elapsed();
        assert!(took < Duration::from_secs(10), "the server took {took:?} to end");
        drop(idle);
        output
    });
}

#[test]
fn killed_server_fails_calls_soon() {
    each_way_with("killed_server_fails_calls_soon", Exclusive::Both, [&[], &[]], |case| {
        let server = case.serve();
        let output = case.output(&["killed"]);
        drop(server);
        assert!(output.contains("COMM_FAILURE") && output.contains("soon"), "{output}");
        output
    });
}

#[test]
fn calls_keep_their_time_limits() {
    each_way_at_once("calls_keep_their_time_limits", |case| {
        let server = case.serve();
        let output = case.output(&["late"]);
        assert!(output.contains("after its time"), "{output}");
        case.end(server);
        output
    });
}

#[test]
fn calls_work_with_motet_at_one_end_only() {
    const WITHOUT_MOTET: &[&str] = &["env", "-u", "LD_PRELOAD"];
    for before in [[WITHOUT_MOTET, &[]], [&[], WITHOUT_MOTET]] {
        let counters = each_way("calls_work_with_motet_at_one_end_only", before, |case| {
            let server = case.serve();
            let output =
                case.output(&["add", "200"]) + &case.output(&["callback", "bidir"]) + &case.output(&["together"]);
            case.end(server);
            if case.sandbox.has_motet() {
                let (fast, connections) = adapter_report(case.sandbox);
                assert!(connections > 0 && fast == 0, "{connections} connections, {fast} bytes over shared memory");
            }
            output
        });
        if let Some(counters) = counters {
            assert_eq!(counters.sent_fast, 0, "{}", counters.lines);
        }
    }
}

#[test]
fn hundred_clients_share_one_server() {
    each_way("hundred_clients_share_one_server", [&[], &[]], |case| {
        let server = case.serve();
        let clients: Vec<Started> = (0..100).map(|_| case.client(&["add", "20"])).collect();
        let output: String = clients.into_iter().map(Started::finish).collect();
        assert_eq!(output, "added\n".repeat(100));
        case.end(server);
        output
    });
}

#[test]
fn naming_service_and_its_client_work_unchanged() {
    let test = "naming_service_and_its_client_work_unchanged";
    let counters = both_ways(test, &["omniNames", "nameclt"], |sandbox| {
        let (port, report) = (free_port(), sandbox.path(REPORT));
        let environment = [("MOTET_OMNIORB", "on"), ("MOTET_SHIM_REPORT", report.as_str())];
        let folder = sandbox.folder().to_str().expect("UTF-8").to_owned();
        let log = sandbox.path("names.log");
        let words = ["omniNames", "-start", &port.to_string(), "-datadir", &folder, "-errlog", &log];
        let server = sandbox.start_with(&words, &environment).listens(port);
        let root = format!("NameService=corbaloc:iiop:127.0.0.1:{port}/NameService");
        let client = |words: &[&str]| {
            let all = [&["nameclt", "-ORBInitRef", &root], words].concat();
            sandbox.start_with(&all, &environment).finish()
        };
        let mut output = client(&["bind_new_context", "here"]);
        for name in ["here/one", "here/two"] {
            output += &client(&["bind", name, "corbaloc:iiop:127.0.0.1:1/object"]);
        }
        output += &client(&["unbind", "here/one"]);
        output += &client(&["list", "here"]);
        // A reference contains the port and the time.
        let output: String = output.lines().filter(|line| !line.starts_with("IOR:")).collect();
        assert!(output.contains("two") && !output.contains("one"), "{output}");
        server.stop(15);
        if sandbox.has_motet() {
            assert!(adapter_report(sandbox).1 >= 5, "the adapter is not in use");
        }
        output
    });
    if let Some(counters) = counters {
        assert!(counters.upgraded > 0, "{}", counters.lines);
    }
}

#[test]
fn motet_bench_corba_measures_every_path() {
    let test = "motet_bench_corba_measures_every_path";
    let Some(motet) = motet_tests::engine().map(|engine| engine.with_file_name("motet")).filter(|path| path.exists())
    else {
        return skip(test, "motet is not built (make build)").unwrap_or_default();
    };
    let Ok(_) = built("omniorb_cases") else { return skip(test, "omniORB is not installed").unwrap_or_default() };
    let words = ["bench", "corba", "--quick", "--parts", "null,memory,strings", "--json"];
    let output = Command::new(motet).args(words).env_remove("LD_PRELOAD").output().expect("motet");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let lines = report["lines"].as_array().expect("lines");
    for what in [
        "empty call, kernel TCP",
        "empty call, sockets adapter, own CPUs",
        "empty call, omniORB adapter, own CPUs",
        "kernel TCP, against the omniORB adapter",
        "omniORB's unix transport, against the omniORB adapter",
        "empty call, time limits of 10 s",
        "empty call, a pool of threads",
        "octet, 64 MiB, back, fresh memory",
        "strings of 1 to 2000 B, omniORB adapter: worst at",
    ] {
        let line = lines.iter().find(|line| line["what"].as_str().is_some_and(|text| text.starts_with(what)));
        let measured = line.and_then(|line| line["figure"]["spread"]["median"].as_f64());
        assert!(measured.is_some_and(|median| median > 0.0), "{what}: {line:?}");
    }
}
