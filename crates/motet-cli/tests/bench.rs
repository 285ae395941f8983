//! How `motet bench` ends: by a signal, and when its output cannot be written.

mod common;

use common::{Folder, finish, motet};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn bench(folder: &Path, rows: &str) -> Command {
    let mut command = motet(["bench", "--quick", "--only", rows]);
    // Anything left in the folder belongs to this run.
    command.env("TMPDIR", folder).env("RUN_OF", folder).current_dir(folder);
    command
}

fn two_processors() -> bool {
    let enough = std::thread::available_parallelism().map_or(1, usize::from) >= 2;
    if !enough {
        eprintln!("SKIPPED: needs two CPUs");
    }
    enough
}

/// Processes with this variable in their environment.
fn of(mark: &str) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|b| *b == 0).any(|variable| variable == mark.as_bytes())
    };
    pids.filter(has).collect()
}

/// Whether `word` is among the words that it was started with.
fn has(pid: u32, word: &str) -> bool {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.split(|b| *b == 0).any(|other| other == word.as_bytes())
}

#[test]
fn signal_leaves_neither_a_process_nor_a_file() {
    if !two_processors() {
        return;
    }
    let folder = Folder::new("bench-ended");
    let mark = format!("RUN_OF={}", folder.path().display());
    // While a compiler runs, and while a pair of programs measures. (Signals other than TERM may be ignored by the caller.)
    for (row, word) in [("short", "connect.c"), ("a", "serve")] {
        let mut command = bench(folder.path(), row);
        let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let began = Instant::now();
        while !of(&mark).into_iter().any(|pid| has(pid, word)) {
            assert!(began.elapsed() < Duration::from_secs(60), "it reaches {word}");
            std::thread::sleep(Duration::from_millis(2));
        }
        kill_process(Pid::from_child(&running), Signal::TERM).unwrap();
        assert_eq!(running.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
        let began = Instant::now();
        while !of(&mark).is_empty() {
            assert!(began.elapsed() < Duration::from_secs(10), "still there: {:?}", of(&mark));
            std::thread::sleep(Duration::from_millis(2));
        }
        let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
        assert!(files.is_empty(), "{files:?}");
    }
}

#[test]
fn closed_pipe_is_no_error_and_a_full_disk_is_one() {
    if !two_processors() {
        return;
    }
    let folder = Folder::new("bench-read");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ended = bench(folder.path(), "fifo").stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert!(ended.status.success() && ended.stderr.is_empty(), "{}", String::from_utf8_lossy(&ended.stderr));
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ended = bench(folder.path(), "fifo").stdout(full).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(1) && said.starts_with("motet: cannot write"), "{said}");
    assert_eq!(finish(&mut bench(folder.path(), "nonsense")).0, 2);
}
