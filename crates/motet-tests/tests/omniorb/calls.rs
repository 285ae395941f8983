//! omniORB under the adapter of `adapters/omniorb`: what happens to connections, in both of the ORB's threading policies.
//!
//! `servers/middleware.rs` has the calls themselves.

use motet_tests::omniorb::{POLICIES, REPORT, Scene, built, by_the_adapter, each_way, each_way_at_once, each_way_with};
use motet_tests::programs::{Alone, Stage, Started, both_ways, both_ways_open, free_port, placed, skip};
use motet_tests::{Built, folder};
use std::cell::Cell;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn connections_are_the_adapters() {
    let test = "connections_are_the_adapters";
    let Ok(program) = built("omniorb_cases") else { return skip(test, "omniORB is not installed").unwrap_or_default() };
    for policy in POLICIES {
        let carried = Cell::new(0);
        let scene = |stage: &Stage| {
            let scene = Scene::new(stage, &program, policy, [&[], &[]]);
            let server = scene.serve();
            let told = scene.told(&["add", "2000"]);
            let mapped = std::fs::read_to_string(format!("/proc/{}/maps", server.pid())).unwrap_or_default();
            let loaded = mapped.contains("libmotet_omniorb42.so");
            assert_eq!(loaded, stage.has_motet(), "{mapped}");
            scene.end(server);
            let (fast, connections) = by_the_adapter(stage);
            assert!(if stage.has_motet() { connections >= 2 } else { connections == 0 }, "{connections} connections");
            carried.set(fast);
            told
        };
        both_ways(test, &[], scene);
        if both_ways_open(test, &[], Alone::WithMotet, scene).is_some() {
            assert!(carried.get() > 0, "nothing went over shared memory, policy {policy}");
        }
    }
}

#[test]
fn a_program_without_an_orb_loads_nothing() {
    both_ways("a_program_without_an_orb_loads_nothing", &[], |stage| {
        let maps = stage.run(&["cat", "/proc/self/maps"]);
        assert_eq!(maps.contains("libmotet_sockets.so"), stage.has_motet(), "{maps}");
        for library in ["libmotet_omniorb4", "libmotet.so", "libomniORB4"] {
            assert!(!maps.contains(library), "{library} in {maps}");
        }
        String::new()
    });
}

#[test]
fn a_plug_in_may_have_an_orb_of_its_own_within() {
    let folder = folder("own-orb");
    let plug_in = Built::library("own_orb", &folder, &["-DPLUG_IN"]);
    let program = Built::program("own_orb", &folder, &[]);
    both_ways("a_plug_in_may_have_an_orb_of_its_own_within", &[], |stage| {
        let (program, plug_in) = (placed(stage, &program), placed(stage, &plug_in));
        stage.start_with(&[&program, &plug_in], &[("MOTET_OMNIORB", "on")]).finish()
    });
}

#[test]
fn callbacks_come_during_calls() {
    each_way("callbacks_come_during_calls", [&[], &[]], |scene| {
        let server = scene.serve();
        let told = scene.told(&["callback"]) + &scene.told(&["callback", "bidir"]);
        scene.end(server);
        told
    });
}

#[test]
fn every_endpoint_of_a_server_is_served() {
    each_way("every_endpoint_of_a_server_is_served", [&[], &[]], |scene| {
        let (first, second) = (scene.beside(), scene.beside());
        let more = format!("giop:tcp:127.0.0.1:{}", second.port);
        let (program, port) = (first.program.clone(), first.port.clone());
        let server = Scene { program, port, options: &[("ORBendPoint", &more)], ..*scene }.serve();
        let told = first.told(&["add", "2000"]) + &second.told(&["add", "2000"]);
        first.end(server);
        told
    });
}

#[test]
fn threads_call_at_once_short_beside_long() {
    each_way("threads_call_at_once_short_beside_long", [&[], &[]], |scene| {
        let server = scene.serve();
        let told = scene.told(&["together"]);
        scene.end(server);
        told
    });
}

#[test]
fn all_of_it_on_one_cpu() {
    let pinned: &[&str] = &["taskset", "-c", "0"];
    each_way("all_of_it_on_one_cpu", [pinned, pinned], |scene| {
        let server = scene.serve();
        let told = scene.told(&["add", "500"]) + &scene.told(&["callback"]) + &scene.told(&["together"]);
        scene.end(server);
        told
    });
}

#[test]
fn a_shutdown_wakes_whoever_waits_on_an_idle_connection() {
    each_way_at_once("a_shutdown_wakes_whoever_waits_on_an_idle_connection", |scene| {
        let server = scene.serve();
        // It keeps its connection as long as its input lasts.
        let idle = scene.start(&["sh", "-c", "sleep 30 | \"$@\"", "sh"], &["idle"]).says("called");
        let began = Instant::now();
        let told = scene.end(server);
        let took = began.elapsed();
        assert!(took < Duration::from_secs(10), "the server took {took:?} to end");
        drop(idle);
        told
    });
}

#[test]
fn a_killed_server_is_an_error_soon() {
    each_way_with("a_killed_server_is_an_error_soon", Alone::Both, [&[], &[]], |scene| {
        let server = scene.serve();
        let told = scene.told(&["killed"]);
        drop(server);
        assert!(told.contains("COMM_FAILURE") && told.contains("soon"), "{told}");
        told
    });
}

#[test]
fn calls_have_their_time_limits() {
    each_way_at_once("calls_have_their_time_limits", |scene| {
        let server = scene.serve();
        let told = scene.told(&["late"]);
        assert!(told.contains("after its time"), "{told}");
        scene.end(server);
        told
    });
}

#[test]
fn one_end_may_be_without_motet() {
    const PLAIN: &[&str] = &["env", "-u", "LD_PRELOAD"];
    for before in [[PLAIN, &[]], [&[], PLAIN]] {
        let counters = each_way("one_end_may_be_without_motet", before, |scene| {
            let server = scene.serve();
            let told = scene.told(&["add", "200"]) + &scene.told(&["callback", "bidir"]) + &scene.told(&["together"]);
            scene.end(server);
            if scene.stage.has_motet() {
                let (fast, connections) = by_the_adapter(scene.stage);
                assert!(connections > 0 && fast == 0, "{connections} connections, {fast} bytes over shared memory");
            }
            told
        });
        if let Some(counters) = counters {
            assert_eq!(counters.sent_fast, 0, "{}", counters.lines);
        }
    }
}

#[test]
fn a_hundred_clients_have_one_server() {
    each_way("a_hundred_clients_have_one_server", [&[], &[]], |scene| {
        let server = scene.serve();
        let clients: Vec<Started> = (0..100).map(|_| scene.client(&["add", "20"])).collect();
        let told: String = clients.into_iter().map(Started::finish).collect();
        assert_eq!(told, "added\n".repeat(100));
        scene.end(server);
        told
    });
}

#[test]
fn the_naming_service_and_its_client_are_as_ever() {
    let test = "the_naming_service_and_its_client_are_as_ever";
    let counters = both_ways(test, &["omniNames", "nameclt"], |stage| {
        let (port, report) = (free_port(), stage.path(REPORT));
        let environment = [("MOTET_OMNIORB", "on"), ("MOTET_SHIM_REPORT", report.as_str())];
        let folder = stage.folder().to_str().expect("UTF-8").to_owned();
        let log = stage.path("names.log");
        let words = ["omniNames", "-start", &port.to_string(), "-datadir", &folder, "-errlog", &log];
        let server = stage.start_with(&words, &environment).listens(port);
        let root = format!("NameService=corbaloc:iiop:127.0.0.1:{port}/NameService");
        let client = |words: &[&str]| {
            let all = [&["nameclt", "-ORBInitRef", &root], words].concat();
            stage.start_with(&all, &environment).finish()
        };
        let mut told = client(&["bind_new_context", "here"]);
        for name in ["here/one", "here/two"] {
            told += &client(&["bind", name, "corbaloc:iiop:127.0.0.1:1/object"]);
        }
        told += &client(&["unbind", "here/one"]);
        told += &client(&["list", "here"]);
        // A reference has the port and the time in it.
        let told: String = told.lines().filter(|line| !line.starts_with("IOR:")).collect();
        assert!(told.contains("two") && !told.contains("one"), "{told}");
        server.stop(15);
        if stage.has_motet() {
            assert!(by_the_adapter(stage).1 >= 5, "the adapter is not in use");
        }
        told
    });
    if let Some(counters) = counters {
        assert!(counters.upgraded > 0, "{}", counters.lines);
    }
}

#[test]
fn the_measuring_tool_measures_calls_on_every_path() {
    let test = "the_measuring_tool_measures_calls_on_every_path";
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
