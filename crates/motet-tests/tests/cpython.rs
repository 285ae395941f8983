//! CPython's own tests of sockets and selectors come out the same under the sockets voice.

use motet_tests::programs::skip;
use motet_tests::{Mode, Program, Running, script};
use std::path::Path;

/// Processes among which the tests are divided, because most of them only wait.
const SHARES: u32 = 8;
/// The distribution's own Python: its test suite is a package of its own.
const PYTHON: &str = "/usr/bin/python3";

/// What did not simply pass, and how many ran, in order; and the details of failures.
fn results(mode: Mode) -> (Vec<String>, String) {
    let script = script("cpython_sockets.py");
    let start = |share: u32| {
        let (share, shares) = (share.to_string(), SHARES.to_string());
        Program::built(Path::new(PYTHON), &[script.to_str().expect("UTF-8"), &share, &shares]).start(mode)
    };
    let running: Vec<Running> = (0..SHARES).map(start).collect();
    let (mut lines, mut details) = (Vec::new(), String::new());
    for running in running {
        let outcome = running.finish();
        assert!(outcome.succeeded, "{mode:?}: {}{}", outcome.printed, outcome.complaints);
        lines.extend(outcome.printed.lines().map(str::to_owned));
        details += &outcome.complaints;
    }
    lines.sort();
    (lines, details)
}

#[test]
fn cpythons_own_socket_tests_come_out_the_same() {
    let test = "cpythons_own_socket_tests_come_out_the_same";
    if !Path::new(PYTHON).exists() {
        return skip(test, "python3 is not installed").unwrap_or_default();
    }
    let (plain, _) = results(Mode::Plain);
    if plain.iter().any(|line| line == "no suite") {
        return skip(test, "libpython3.11-testsuite is not installed (tests/packages.txt)").unwrap_or_default();
    }
    let (equipped, details) = results(Mode::Equipped);
    let differ: Vec<&String> =
        equipped.iter().filter(|l| !plain.contains(l)).chain(plain.iter().filter(|l| !equipped.contains(l))).collect();
    assert!(differ.is_empty(), "plainly or equipped only: {differ:#?}\n{details}");
}
