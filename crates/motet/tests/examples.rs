//! The examples run and get the right results. Those of several processes run in processes of their own, which all exit when one is killed.
#![allow(clippy::duplicate_mod)] // two examples, which are programs of their own, share a module

#[path = "../examples/jacobi.rs"]
mod jacobi;
#[path = "../examples/messages.rs"]
mod messages;
#[path = "../examples/pipeline.rs"]
mod pipeline;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Arguments of the example that this program runs as.
const ARGUMENTS: &str = "MOTET_TEST_ARGUMENTS";
const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn ping_pong_messages_are_answered() {
    for length in [0, 8, 100_000] {
        let (runs, driver) = messages::ping_pong(200, length).expect("two nodes of one process");
        assert_eq!((runs.len(), driver), (7, "shm"), "{length} bytes");
    }
}

/// Runs an example, if this process was started for that.
fn become_example(start: fn(&[String]) -> u8) {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let arguments: Vec<_> = arguments.split_whitespace().map(str::to_owned).collect();
    std::process::exit(start(&arguments).into());
}

#[test]
#[ignore = "an example, for the tests below"]
fn jacobi_process() {
    become_example(jacobi::start);
}

#[test]
#[ignore = "an example, for the tests below"]
fn pipeline_process() {
    become_example(pipeline::start);
}

fn start(example: &str, arguments: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([&format!("{example}_process"), "--exact", "--ignored", "--nocapture"])
        .env(ARGUMENTS, arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The example's standard output and standard error.
fn texts(output: &Output) -> (String, String) {
    let [printed, complaints] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    (printed, complaints)
}

fn run(example: &str, arguments: &str) -> String {
    let output = start(example, arguments).wait_with_output().unwrap();
    let (printed, complaints) = texts(&output);
    assert!(output.status.success(), "{example} {arguments}: {}: {printed}{complaints}", output.status);
    assert_eq!(complaints, "", "{example} {arguments}");
    printed
}

#[test]
fn jacobi_on_regions_matches_the_serial_result() {
    for processes in [1, 2, 5] {
        let printed = run("jacobi", &format!("{processes} 120 100"));
        assert!(printed.contains(&format!("sees {} regions", processes - 1)), "{printed}");
        assert!(printed.contains("the serial result, to the last bit"), "{printed}");
    }
    assert!(run("jacobi", "4 6 7").contains("to the last bit"), "one row for each");
    assert!(run("jacobi", "2 6000 2").contains("to the last bit"), "rows that are no short put");
}

#[test]
fn pipeline_reads_in_place_and_waits_for_a_slow_stage() {
    // More frames than all pools together hold, so that every stage waits for blocks.
    for (filters, arguments) in [(1, "24 8 1 10"), (3, "30 1 3 0"), (2, "8 32 2 1")] {
        let printed = run("pipeline", arguments);
        let frames = arguments.split(' ').next().unwrap();
        assert!(printed.contains("as they should be"), "{printed}");
        let read = format!("{frames} frames; {frames} read in place, 0 copied");
        assert_eq!(printed.matches(&read).count(), filters + 1, "{printed}");
        let out =
            printed.lines().filter_map(|line| line.split_once("at most ")?.1.split_once(" MiB")).map(|(out, _)| out);
        let out: Vec<usize> = out.map(|out| out.parse().unwrap()).collect();
        assert!(out.len() == filters + 2 && out.iter().all(|&out| out <= 64), "{printed}");
    }
}

#[test]
fn examples_refuse_unknown_arguments() {
    let wrong = ["0", "x", "--help", "65 400 1", "4 5 1", "4 100 0", "4 100 1 1", "-1"].map(|words| ("jacobi", words));
    let wrong =
        wrong.into_iter().chain(["0", "x", "5 0", "5 33", "5 1 0", "5 1 1 1 1"].map(|words| ("pipeline", words)));
    for (example, arguments) in wrong {
        let output = start(example, arguments).wait_with_output().unwrap();
        let (_, complaints) = texts(&output);
        assert_eq!(output.status.code(), Some(2), "{example} {arguments}: {complaints}");
        assert!(complaints.starts_with(&format!("{example} [")), "{complaints}");
    }
}

/// State and parent of a process. `None`: it has exited.
fn parent(process: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    let state = words.next()?;
    let parent = words.next()?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(parent)
}

fn children(of: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap();
    let all = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut children: Vec<u32> = all.filter(|&process| parent(process) == Some(of)).collect();
    children.sort_unstable();
    children
}

#[test]
fn examples_exit_with_an_error_when_a_process_is_killed() {
    let examples = [("jacobi", "4 400 1000000", "have met"), ("pipeline", "1000000 1 2 1", "first frame")];
    for ((example, arguments, sign), victim) in examples.into_iter().flat_map(|one| (0..4).map(move |n| (one, n))) {
        let mut first = start(example, arguments);
        let mut lines = BufReader::new(first.stdout.take().unwrap()).lines();
        assert!(lines.by_ref().map_while(Result::ok).any(|line| line.contains(sign)), "{example}");
        let all: Vec<u32> = [first.id()].into_iter().chain(children(first.id())).collect();
        assert_eq!(all.len(), 4, "{example}");
        let killed = Command::new("sh").args(["-c", &format!("kill -KILL {}", all[victim])]).status().unwrap();
        assert!(killed.success());

        let until = Instant::now() + TIMEOUT;
        while all.iter().any(|&process| parent(process).is_some()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let left: Vec<_> = all.iter().filter(|&&process| parent(process).is_some()).collect();
        left.iter().for_each(|process| _ = Command::new("sh").args(["-c", &format!("kill -KILL {process}")]).status());
        let mut complaints = String::new();
        first.stderr.take().unwrap().read_to_string(&mut complaints).unwrap();
        assert!(left.is_empty(), "{example}, {victim} was killed: {left:?} of {all:?} stay: {complaints}");
        let status = first.wait().unwrap();
        assert!(complaints.contains("the link is gone: the peer is gone"), "{complaints}");
        if victim > 0 {
            assert_eq!(status.code(), Some(1), "{complaints}");
            assert!(complaints.contains("signal: 9"), "{complaints}");
        }
    }
}
