//! Options, settings, exit codes, JSON.

mod common;

use common::{Folder, finish, json, motet, refused};

#[test]
fn wrong_options_are_one_line_and_code_2() {
    for arguments in
        [&["--rign"][..], &["ps", "--nonsense"], &["sing"], &["run"], &["ps", "x"], &["top", "-i", "0"], &["top"]]
    {
        refused(&mut motet(arguments), 2);
    }
    assert!(refused(&mut motet(["whyy"]), 2).contains("why"));
    let (code, out, err) = finish(&mut motet::<&str>([]));
    assert!(code == 2 && out.is_empty() && err.contains("Commands:"));
}

#[test]
fn tool_of_bench_has_options_of_its_own() {
    // A tool takes neither rows nor the options of rows.
    for arguments in [
        &["bench", "corba", "--only", "a"][..],
        &["bench", "--quick", "corba"],
        &["bench", "messages", "--parts", "x"],
        &["bench", "x"],
    ] {
        refused(&mut motet(arguments), 2);
    }
    assert!(refused(&mut motet(["bench", "--only", "nonsense"]), 2).contains("no row `nonsense`"));
    let nowhere = ["bench", "--only", "a", "--libdir", "/no/such/folder"];
    assert!(refused(&mut motet(nowhere), 2).contains("no such folder"));
    let (code, out, _) = finish(&mut motet(["bench", "corba", "--help"]));
    assert!(code == 0 && out.contains("--pair") && out.contains("--plots") && !out.contains("--only"), "{out}");
}

#[test]
fn help_and_version_succeed() {
    for arguments in [&["--help"][..], &["run", "--help"], &["--version"], &["doctor", "-h"]] {
        let (code, out, err) = finish(&mut motet(arguments));
        assert!(code == 0 && !out.is_empty() && err.is_empty(), "{arguments:?}");
    }
    assert!(finish(&mut motet(["--help"])).1.contains("Exit status: 0 success"));
}

#[test]
fn settings_are_shown_with_their_source() {
    let folder = Folder::new("settings");
    let file = folder.file("motet.toml", "hot = 8\nring = \"8KiB\"\n", 0o644);
    let mut command = motet(["config", "--json"]);
    let (code, out, _) = finish(command.env("MOTET_CONFIG", &file).env("MOTET_RING", "16K"));
    let report = json(&out);
    let of = |name| report["settings"].as_array().unwrap().iter().find(|s| s["name"] == name).unwrap().clone();
    assert_eq!(code, 0);
    assert_eq!(
        (of("ring")["value"].as_str(), of("ring")["from"].as_str()),
        (Some("16K"), Some("environment variable MOTET_RING"))
    );
    assert_eq!(of("hot")["from"].as_str().unwrap(), format!("{}:1", file.display()));
    assert_eq!(of("spin")["from"], "default");
}

#[test]
fn wrong_settings_are_one_line_and_code_2() {
    for (name, value, expected) in [
        ("MOTET_RING", "70000", "use 64KiB or 128KiB"),
        ("MOTET_SPIN", "fast", "is not a time"),
        ("MOTET_RIGN", "65536", "did you mean MOTET_RING?"),
        ("MOTET_DRIVERS", "warp", "no such driver: `warp`; use shm or tcp"),
        ("MOTET_CONFIG", "/no/such/file", "correct or unset MOTET_CONFIG"),
    ] {
        let said = refused(motet(["run", "true"]).env(name, value), 2);
        assert!(said.contains(expected), "{said}");
        let (code, out, err) = finish(motet(["config"]).env(name, value));
        assert!(code == 2 && out.contains("ring") && err.contains(expected), "{err}");
    }
    let folder = Folder::new("wrong-settings");
    let file = folder.file("motet.toml", "ring = \n", 0o644);
    assert!(refused(motet(["run", "true"]).env("MOTET_CONFIG", &file), 2).contains("motet.toml:1: "));
}

#[test]
fn every_report_is_json_when_asked() {
    for arguments in
        [&["ps", "--json"][..], &["why", "--json"], &["top", "--json", "-i", "0.05"], &["--json", "config"]]
    {
        let (code, out, _) = finish(&mut motet(arguments));
        assert!(code == 0 && json(&out).is_object(), "{arguments:?}");
    }
}

#[test]
fn doctor_checks_what_shared_memory_needs() {
    let folder = Folder::new("doctor");
    let (code, out, _) = finish(motet(["doctor", "--json"]).env("MOTET_LIBDIR", folder.libraries()));
    let report = json(&out);
    assert_eq!(report["ok"].as_bool().unwrap(), code == 0);
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.iter().all(|c| ["ok", "limited", "no"].contains(&c["verdict"].as_str().unwrap())));
    let (code, out, _) = finish(motet(["doctor"]).env("MOTET_LIBDIR", "/nowhere"));
    assert!(code == 1 && out.contains("libmotet_sockets.so is not in /nowhere"), "{out}");
}

#[test]
fn why_reports_an_unknown_process_or_peer() {
    refused(&mut motet(["why", "4194305"]), 3);
    assert!(refused(&mut motet(["why", "no-such-peer.example:1"]), 3).contains("no stream or link to"));
}

#[test]
fn why_says_how_to_start_a_process_under_motet() {
    let own = std::process::id().to_string();
    let (code, out, _) = finish(&mut motet(["why", &own]));
    assert_eq!(code, 0);
    assert!(out.contains("not started under Motet") && out.contains("motet run -- COMMAND"), "{out}");
}

#[test]
fn reader_that_leaves_early_is_no_error() {
    let mut command = std::process::Command::new("sh");
    command.arg("-c").arg(format!("{} config -v | head -n 1", env!("CARGO_BIN_EXE_motet")));
    let (code, out, err) = finish(command.env("MOTET_CONFIG", "/dev/null"));
    assert_eq!((code, out.lines().count(), err.as_str()), (0, 1, ""));
}
