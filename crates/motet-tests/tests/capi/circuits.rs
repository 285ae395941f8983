//! Groups and circuits through `motet_group.h`, by processes that `motet run --group` starts.

use motet_tests::native::Native;
use motet_tests::session::Session;

/// Runs the program as a group, and returns its lines, sorted, and whether all processes succeeded.
#[track_caller]
fn run(test: &str, size: u32, what: &str) -> Option<(Vec<String>, bool)> {
    let program = Native::compile("cc", "tests/session/circuits.c")?;
    let session = Session::up(test)?;
    let (said, succeeded) = session.run_group(("circuits", size), &program.program(), &[what], 60);
    let mut lines: Vec<_> = said.lines().map(str::to_owned).collect();
    lines.sort();
    Some((lines, succeeded))
}

#[test]
fn circuit_calls_match_their_documentation() {
    let Some((lines, succeeded)) = run("circuit_calls_match_their_documentation", 4, "calls") else { return };
    let wanted: Vec<_> = (0..4).map(|rank| format!("rank {rank} did all calls")).collect();
    assert!(succeeded && lines == wanted, "{lines:#?}");
}

#[test]
fn killed_member_is_an_error_and_a_new_view() {
    let Some((lines, succeeded)) = run("killed_member_is_an_error_and_a_new_view", 4, "killed") else { return };
    let wanted = [0, 1, 3].map(|rank| format!("rank {rank} goes on"));
    assert!(wanted.iter().all(|line| lines.contains(line)), "{lines:#?}");
    assert!(!succeeded && lines.iter().any(|line| line == "motet: rank 2 of group circuits ended with signal 9"));
}

#[test]
fn invalid_circuit_calls_are_errors() {
    let Some((lines, succeeded)) = run("invalid_circuit_calls_are_errors", 1, "invalid") else { return };
    assert!(succeeded && lines == ["every error was reported"], "{lines:#?}");
}
