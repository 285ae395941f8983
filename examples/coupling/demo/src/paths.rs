//! The links of a run, as `motet ps -l --json` reports them during the run. No other file reads that format.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

/// One link as Motet reported it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Link {
    /// The programs at its ends, in the words of Motet.
    pub between: String,
    /// The path in use, e.g. `shm`.
    pub path: String,
    /// Bytes over it, where reported.
    pub bytes: Option<u64>,
}

/// The links of the run during which this was called, and the answers as they came.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Measured {
    /// Empty: not measured.
    pub links: Vec<Link>,
    /// The last non-empty answers.
    pub answers: Vec<Value>,
}

/// Asks again and again until `stop`; keeps the answer with the most links and, among those, the latest.
pub fn watch(motet: &Path, stop: &AtomicBool) -> Measured {
    let mut best = Measured::default();
    while !stop.load(Ordering::SeqCst) {
        let answers: Vec<Value> = ask(motet).into_iter().collect();
        let mut links = Vec::new();
        for answer in &answers {
            collect(answer, &mut links);
        }
        if !links.is_empty() && links.len() >= best.links.len() {
            best = Measured { links, answers };
        }
        std::thread::sleep(Duration::from_millis(30));
    }
    best
}

/// One question, answered within two seconds or not at all.
fn ask(motet: &Path) -> Option<Value> {
    let file = tempfile::NamedTempFile::new().ok()?;
    let output = file.reopen().ok()?;
    let mut child = Command::new(motet)
        .args(["ps", "-l", "--json"])
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        match child.try_wait() {
            Ok(Some(_)) => break,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
    serde_json::from_str(&std::fs::read_to_string(file.path()).ok()?).ok()
}

/// The streams of `motet ps -l --json`, each once: from the end that made the connection.
fn collect(answer: &Value, links: &mut Vec<Link>) {
    let list = |value: &Value, key: &str| value.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let processes = list(answer, "processes");
    let name_of = |pid: &Value| {
        let found = processes.iter().find(|p| p.get("pid") == Some(pid));
        found.and_then(program).unwrap_or_else(|| "?".into())
    };
    for process in &processes {
        let Some(here) = program(process) else { continue };
        for stream in list(process, "streams").iter().filter(|s| s.get("connected") == Some(&Value::Bool(true))) {
            let moved = |way: &str, path: &str| stream.get(way)?.get(path)?.as_u64();
            let sum = |path: &str| Some(moved("sent", path)? + moved("received", path)?);
            let path = stream.get("path").and_then(Value::as_str).unwrap_or("?").to_string();
            let bytes = sum(if path == "tcp" { "tcp" } else { "fast" });
            let there = stream.get("peer_pid").map_or_else(|| "?".into(), &name_of);
            let peer = stream.get("peer").and_then(Value::as_str).unwrap_or("");
            links.push(Link { between: format!("{here} - {there} at {peer}"), path, bytes });
        }
    }
}

/// The program of a process, without its folder and arguments, if it is one of the demo's.
fn program(process: &Value) -> Option<String> {
    let command = process.get("command")?.as_str()?.split_whitespace().next()?;
    let name = command.rsplit('/').next()?;
    (name.starts_with("coupling-") || name == "omniNames").then(|| name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_is_reported_once_with_its_bytes() {
        let answer: Value = serde_json::from_str(
            r#"{"processes": [
                {"pid": 7, "command": "/b/coupling-fluid case", "streams": [
                    {"connected": true, "peer_pid": 9, "peer": "127.0.0.1:5", "path": "shm",
                     "sent": {"fast": 3, "tcp": 100}, "received": {"fast": 4, "tcp": 0}}]},
                {"pid": 9, "command": "coupling-solid", "streams": [{"connected": false, "path": "shm"}]},
                {"pid": 5, "command": "mpirun -n 2", "streams": [{"connected": true, "path": "tcp"}]}]}"#,
        )
        .unwrap();
        let mut links = Vec::new();
        collect(&answer, &mut links);
        let between = "coupling-fluid - coupling-solid at 127.0.0.1:5".to_string();
        assert_eq!(links, [Link { between, path: "shm".into(), bytes: Some(7) }]);
    }
}
