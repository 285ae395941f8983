//! `motet doctor`: what this machine allows, one line each.
//!
//! Everything is tried, not guessed from version numbers, as far as trying changes nothing.

mod machine;
mod sharing;
mod squatters;

use clap::Args;
use serde::Serialize;

use crate::exit_error::{FAILED, Outcome};
use crate::output::{self, harmless};

/// Tell what this machine allows, one line each
///
/// The exit status is 1 when something is missing that shared memory between processes cannot do without.
#[derive(Debug, Args)]
pub struct Arguments {}

/// How good it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As good as it gets.
    Ok,
    /// Works, but something is slower or absent.
    Limited,
    /// Does not work.
    No,
}

/// One line.
#[derive(Debug, Serialize)]
pub struct Check {
    name: &'static str,
    verdict: Verdict,
    /// What was found.
    found: String,
    /// What follows from it.
    meaning: String,
    /// Shared memory between processes cannot do without it.
    essential: bool,
}

impl Check {
    fn new(name: &'static str, verdict: Verdict, found: impl Into<String>, meaning: impl Into<String>) -> Self {
        Self { name, verdict, found: found.into(), meaning: meaning.into(), essential: false }
    }

    /// Ok, or No with the reason, and then everything stays on TCP.
    fn essential<T, E: std::fmt::Display>(name: &'static str, tried: Result<T, E>, good: &str, purpose: &str) -> Self {
        let mut check = match tried {
            Ok(_) => Self::new(name, Verdict::Ok, good, purpose),
            Err(e) => {
                Self::new(name, Verdict::No, e.to_string(), format!("{purpose}: without it every stream stays on TCP"))
            }
        };
        check.essential = true;
        check
    }
}

#[derive(Serialize)]
struct Report {
    ok: bool,
    checks: Vec<Check>,
}

/// The command.
pub fn run(_arguments: &Arguments, json: bool) -> Outcome {
    let checks: Vec<Check> = sharing::checks().into_iter().chain(machine::checks()).collect();
    let report = Report { ok: !checks.iter().any(|c| c.essential && c.verdict == Verdict::No), checks };
    if json {
        output::json(&report)?;
    } else {
        output::text(&render(&report))?;
    }
    Ok(if report.ok { 0 } else { FAILED })
}

fn render(report: &Report) -> String {
    let mut out = String::new();
    for check in &report.checks {
        let word = match check.verdict {
            Verdict::Ok => "ok     ",
            Verdict::Limited => "limited",
            Verdict::No => "no     ",
        };
        let found = harmless(&check.found, 400);
        out += &format!("{word}  {:16} {found}; {}\n", check.name, check.meaning);
    }
    let last = if report.ok {
        "shared memory between processes works here"
    } else {
        "shared memory between processes does not work here"
    };
    out + last + "\n"
}
