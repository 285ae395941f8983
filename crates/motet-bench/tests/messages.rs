//! `motet-bench messages` in short runs: every part that measures Motet only, and the workers of the other parts.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

fn bench(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_motet-bench"));
    command.args(words).env("MOTET_CONFIG", "/dev/null");
    command
}

/// Reports that something was not tested, on standard error and in the log of skips.
fn skip(reason: &str) {
    let line = format!("SKIP parts of messages: {reason}\n");
    eprint!("{line}");
    if let Some(log) = std::env::var_os("MOTET_SKIP_LOG")
        && let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(log)
    {
        let _ = file.write_all(line.as_bytes());
    }
}

/// Runs a part. All its lines must have been measured.
fn part(name: &str, lines: usize) {
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() < 2) {
        return skip("there are no two CPUs");
    }
    let plots = tempfile::tempdir().unwrap();
    let mut command = bench(&["messages", "--quick", "--json", "--parts", name, "--plots"]);
    let output = command.arg(plots.path()).output().unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = report["lines"].as_array().unwrap();
    for line in found {
        let note = line["note"].as_str().unwrap_or_default();
        if note.starts_with("SKIPPED") {
            return skip(&format!("{name}: {note}"));
        }
        assert_eq!(line["row"], name, "{line}");
        assert_ne!(line["verdict"], "not_measured", "{line}");
        for figure in [&line["figure"]["spread"], &line["ratio"]].into_iter().filter(|figure| !figure.is_null()) {
            assert!(figure["median"].as_f64().is_some(), "{line}");
        }
    }
    assert_eq!(found.len(), lines, "{name}");
}

#[test]
fn layers_are_measured() {
    part("layers", 4);
}

#[test]
fn waits_are_measured() {
    part("waits", 3);
}

#[test]
fn receptions_are_measured() {
    part("receptions", 3);
}

#[test]
fn nodes_over_tcp_are_measured() {
    part("tcp", 4);
}

#[test]
fn idle_peers_and_channels_are_measured() {
    part("idle", 2);
}

#[test]
fn rings_are_measured() {
    part("ring", 2);
}

#[test]
fn memory_is_measured() {
    part("memory", 3);
}

/// Starts a server with nodes. Returns its port.
fn server(words: &[&str]) -> (Child, BufReader<std::process::ChildStdout>, String) {
    let mut child = bench(words).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let port = line.trim().strip_prefix("port ").unwrap().to_owned();
    (child, output, port)
}

fn numbers(text: &str) -> Vec<f64> {
    text.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

#[test]
fn workers_of_comparisons_measure() {
    for (how, what, size) in [
        ("tagged-one", "ping", "8"),
        ("queue-many", "rate", "8"),
        ("handler-one", "ping", "64"),
        ("tagged-one", "windows", "8"),
        ("queue-one", "windows", "100000"),
        ("queue-one-tcp", "windows", "70000"),
        ("tagged-one", "cold", "300000"),
    ] {
        let (mut server, _output, port) = server(&["--worker", "node", how, what, "serve"]);
        let called = bench(&["--worker", "node", how, what, "call", "127.0.0.1", &port, size, "5"]).output().unwrap();
        let said = String::from_utf8_lossy(&called.stdout).into_owned();
        assert!(called.status.success(), "{how} {what}: {}", String::from_utf8_lossy(&called.stderr));
        let found = numbers(&said);
        assert!(found.len() == 3 && found.iter().all(|number| *number > 0.0), "{how} {what}: {said}");
        assert!(server.wait().unwrap().success());
    }
}

#[test]
fn server_counts_messages_of_each_client() {
    const CLIENTS: usize = 6;
    for (what, numbers_said) in [("server", 3), ("shares", 4)] {
        let worker = ["--worker", "node", "tagged-one", what];
        let (mut server, mut output, port) = server(&[&worker[..], &["serve", "6", "20000", "20"]].concat());
        let call = [&worker[..], &["call", "127.0.0.1", &port, "20000", "20"]].concat();
        let clients: Vec<Child> = (0..CLIENTS).map(|_| bench(&call).spawn().unwrap()).collect();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let found = numbers(&line);
        assert_eq!(found.len(), numbers_said, "{line}");
        if let [_, count, least, most] = found[..] {
            assert!(least <= most && most <= count && most * CLIENTS as f64 >= count, "{line}");
        }
        for mut child in clients {
            assert!(child.wait().unwrap().success());
        }
        assert!(server.wait().unwrap().success());
    }
}
