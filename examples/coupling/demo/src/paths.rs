//! What Motet says about the links of a run, asked while the run is on: `motet why --json` and `motet ps --json`.
//!
//! The only place that reads these formats. It takes any JSON: every object that names a path or a driver is one link.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

/// One link as Motet reported it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Link {
    /// Who is at its ends, in Motet's words.
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
        let answers: Vec<Value> = ["why", "ps"].iter().filter_map(|verb| ask(motet, verb)).collect();
        let mut links = Vec::new();
        for answer in &answers {
            collect(answer, "", &mut links);
        }
        if !links.is_empty() && links.len() >= best.links.len() {
            best = Measured { links, answers };
        }
        std::thread::sleep(Duration::from_millis(30));
    }
    best
}

/// One question, answered within two seconds or not at all.
fn ask(motet: &Path, verb: &str) -> Option<Value> {
    let file = tempfile::NamedTempFile::new().ok()?;
    let output = file.reopen().ok()?;
    let mut child = Command::new(motet)
        .args([verb, "--json"])
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

fn word(object: &serde_json::Map<String, Value>, keys: &[&str]) -> Option<String> {
    keys.iter().find_map(|key| match object.get(*key)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    })
}

/// Every object with a path is a link; `around` is the name of the process that it was found under.
fn collect(value: &Value, around: &str, links: &mut Vec<Link>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, around, links)),
        Value::Object(object) => {
            let here = word(object, &["program", "command", "name", "pid", "local"]).unwrap_or_else(|| around.into());
            if let Some(path) = word(object, &["path", "driver", "in_use"]) {
                let peer = word(object, &["peer", "remote", "peer_pid", "to"]).unwrap_or_default();
                let bytes = ["bytes", "bytes_total"].iter().find_map(|key| object.get(*key)?.as_u64());
                let sides = ["bytes_sent", "bytes_received"].map(|key| object.get(key).and_then(Value::as_u64));
                let sum = sides.iter().flatten().copied().reduce(u64::wrapping_add);
                let link = Link { between: format!("{here} - {peer}"), path, bytes: bytes.or(sum) };
                if !links.contains(&link) {
                    links.push(link);
                }
                return;
            }
            object.values().for_each(|inner| collect(inner, &here, links));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_wherever_they_are() {
        let answer: Value = serde_json::from_str(
            r#"{"processes": [{"pid": 7, "links": [{"peer": 9, "path": "shm", "bytes_sent": 3, "bytes_received": 4},
                                                   {"peer": 11, "driver": "tcp"}]}]}"#,
        )
        .unwrap();
        let mut links = Vec::new();
        collect(&answer, "", &mut links);
        assert_eq!(links[0], Link { between: "7 - 9".into(), path: "shm".into(), bytes: Some(7) });
        assert_eq!(links[1], Link { between: "7 - 11".into(), path: "tcp".into(), bytes: None });
    }

    #[test]
    fn an_answer_without_links_says_nothing() {
        let mut links = Vec::new();
        collect(&serde_json::json!({"processes": []}), "", &mut links);
        assert!(links.is_empty());
    }
}
