//! CPython's own tests of sockets and selectors give the same results under the sockets adapter.

use motet_tests::cpu_steal::retry_on_steal;
use motet_tests::programs::skip;
use motet_tests::{Mode, Program, Running, TIMEOUT, script};
use std::path::Path;
use std::time::Duration;

/// Number of processes that share the tests, because most tests only wait.
const SHARES: u32 = 8;
/// The distribution's Python, whose test suite is a separate package.
const PYTHON: &str = "/usr/bin/python3";

/// Time limit of a retry after CPU steal.
const RETRY_LIMIT: Duration = Duration::from_secs(240);

/// Sorted lines: tests that did not simply pass, and how many ran. With the details of failures.
struct Results {
    lines: Vec<String>,
    details: String,
}

impl Results {
    /// Results of all tests, run in shares.
    fn of_all(mode: Mode, limit: Duration) -> Result<Self, String> {
        Self::of((0..SHARES).map(|share| program(share, SHARES, &[]).within(limit).start(mode)).collect())
    }

    fn of(running: Vec<Running>) -> Result<Self, String> {
        let (mut lines, mut details) = (Vec::new(), String::new());
        for running in running {
            let outcome = running.finish();
            if !outcome.succeeded {
                return Err(format!("{}{}", outcome.printed, outcome.stderr));
            }
            lines.extend(outcome.printed.lines().map(str::to_owned));
            details += &outcome.stderr;
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
fn cpython_socket_tests_give_the_same_results() {
    let test = "cpython_socket_tests_give_the_same_results";
    if !Path::new(PYTHON).exists() {
        return skip(test, "python3 is not installed").unwrap_or_default();
    }
    let suite = program(0, 1, &["none".to_owned()]).run(Mode::WithoutMotet);
    if suite.printed.contains("no suite") {
        return skip(test, "libpython3.11-testsuite is not installed (tests/packages.txt)").unwrap_or_default();
    }
    let mut limit = TIMEOUT;
    let same = retry_on_steal(test, || {
        let pair =
            Results::of_all(Mode::WithoutMotet, limit).and_then(|p| Ok((p, Results::of_all(Mode::WithMotet, limit)?)));
        limit = RETRY_LIMIT;
        let (without_motet, with_motet) = pair?;
        let differ = without_motet.differ(&with_motet);
        assert!(!without_motet.lines.contains(&"ran 0".to_owned()), "nothing has run: {:?}", without_motet.lines);
        let difference =
            || format!("without or with Motet only: {differ:#?}\n{}{}", without_motet.details, with_motet.details);
        if differ.is_empty() { Ok(()) } else { Err(difference()) }
    });
    same.unwrap_or_else(|failed| panic!("{failed}"));
}
