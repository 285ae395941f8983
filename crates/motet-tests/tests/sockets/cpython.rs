//! CPython's own tests of sockets and selectors come out the same under the sockets adapter.

use motet_tests::machine::tried_again;
use motet_tests::programs::skip;
use motet_tests::{LIMIT, Mode, Program, Running, script};
use std::path::Path;
use std::time::Duration;

/// Processes among which the tests are divided, because most of them only wait.
const SHARES: u32 = 8;
/// The distribution's own Python: its test suite is a package of its own.
const PYTHON: &str = "/usr/bin/python3";

/// The limit of a run that comes after one that failed while the host took the CPUs.
const PATIENCE: Duration = Duration::from_secs(240);

/// What did not simply pass, and how many ran, in order; and the details of failures.
struct Results {
    lines: Vec<String>,
    details: String,
}

impl Results {
    /// Of all tests, in shares.
    fn of_all(mode: Mode, limit: Duration) -> Result<Self, String> {
        Self::of((0..SHARES).map(|share| program(share, SHARES, &[]).within(limit).start(mode)).collect())
    }

    fn of(running: Vec<Running>) -> Result<Self, String> {
        let (mut lines, mut details) = (Vec::new(), String::new());
        for running in running {
            let outcome = running.finish();
            if !outcome.succeeded {
                return Err(format!("{}{}", outcome.printed, outcome.complaints));
            }
            lines.extend(outcome.printed.lines().map(str::to_owned));
            details += &outcome.complaints;
        }
        lines.sort();
        Ok(Self { lines, details })
    }

    fn differ<'a>(&'a self, other: &'a Self) -> Vec<&'a String> {
        let only = |one: &'a Self, other: &'a Self| one.lines.iter().filter(|line| !other.lines.contains(line));
        only(self, other).chain(only(other, self)).collect()
    }
}

fn program(share: u32, shares: u32, tests: &[String]) -> Program {
    let script = script("cpython_sockets.py");
    let (share, shares) = (share.to_string(), shares.to_string());
    let words = [script.to_str().expect("UTF-8"), &share, &shares];
    let words: Vec<&str> = words.into_iter().chain(tests.iter().map(String::as_str)).collect();
    Program::built(Path::new(PYTHON), &words)
}

#[test]
fn cpythons_own_socket_tests_come_out_the_same() {
    let test = "cpythons_own_socket_tests_come_out_the_same";
    if !Path::new(PYTHON).exists() {
        return skip(test, "python3 is not installed").unwrap_or_default();
    }
    let suite = program(0, 1, &["none".to_owned()]).run(Mode::WithoutMotet);
    if suite.printed.contains("no suite") {
        return skip(test, "libpython3.11-testsuite is not installed (tests/packages.txt)").unwrap_or_default();
    }
    let mut limit = LIMIT;
    let same = tried_again(test, || {
        let pair = Results::of_all(Mode::WithoutMotet, limit).and_then(|p| Ok((p, Results::of_all(Mode::WithMotet, limit)?)));
        limit = PATIENCE;
        let (plain, with_motet) = pair?;
        let differ = plain.differ(&with_motet);
        assert!(!plain.lines.contains(&"ran 0".to_owned()), "nothing has run: {:?}", plain.lines);
        let told = || format!("without or with Motet only: {differ:#?}\n{}{}", plain.details, with_motet.details);
        if differ.is_empty() { Ok(()) } else { Err(told()) }
    });
    same.unwrap_or_else(|failed| panic!("{failed}"));
}
