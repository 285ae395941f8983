//! `motet doctor`: what this machine allows, one line each.
//!
//! Features are tried, not guessed from version numbers, unless a trial would change the machine.

mod machine;
mod sharing;
mod squatters;

use clap::Args;
use serde::Serialize;

use crate::exit_error::{FAILED, Outcome};
use crate::output::{self, sanitize};

/// Show what this machine allows, one line each
///
/// The exit status is 1 if something is missing that shared memory between processes needs.
#[derive(Debug, Args)]
pub struct Arguments {}

/// The verdict of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckVerdict {
    /// Nothing better is possible.
    Ok,
    /// It works, but something is slower or missing.
    Limited,
    /// It does not work.
    No,
}

/// A check: one line of the output.
#[derive(Debug, Serialize)]
pub struct Check {
    name: &'static str,
    verdict: CheckVerdict,
    /// The state of the machine.
    found: String,
    /// The consequence for Motet.
    meaning: String,
    /// Shared memory between processes needs it.
    essential: bool,
}

impl Check {
    fn new(name: &'static str, verdict: CheckVerdict, found: impl Into<String>, meaning: impl Into<String>) -> Self {
        Self { name, verdict, found: found.into(), meaning: meaning.into(), essential: false }
    }

    /// A check that shared memory needs: Ok, or No with the error, in which case every stream stays on TCP.
    fn essential<T, E: std::fmt::Display>(name: &'static str, tried: Result<T, E>, good: &str, purpose: &str) -> Self {
        let mut check = match tried {
            Ok(_) => Self::new(name, CheckVerdict::Ok, good, purpose),
            Err(e) => Self::new(
                name,
                CheckVerdict::No,
                e.to_string(),
                format!("{purpose}: without it every stream stays on TCP"),
            ),
        };
        check.essential = true;
        check
    }
}

#[derive(Serialize)]
struct DoctorReport {
    ok: bool,
    checks: Vec<Check>,
}

/// The command.
pub fn run(_arguments: &Arguments, json: bool) -> Outcome {
    let checks: Vec<Check> = sharing::checks().into_iter().chain(machine::checks()).collect();
    let report = DoctorReport { ok: !checks.iter().any(|c| c.essential && c.verdict == CheckVerdict::No), checks };
    if json {
        output::json(&report)?;
    } else {
        output::text(&render(&report))?;
    }
    Ok(if report.ok { 0 } else { FAILED })
}

fn render(report: &DoctorReport) -> String {
    let mut out = String::new();
    for check in &report.checks {
        let word = match check.verdict {
            CheckVerdict::Ok => "ok     ",
            CheckVerdict::Limited => "limited",
            CheckVerdict::No => "no     ",
        };
        let found = sanitize(&check.found, 400);
        out += &format!("{word}  {:16} {found}; {}\n", check.name, check.meaning);
    }
    let last = if report.ok {
        "shared memory between processes works here"
    } else {
        "shared memory between processes does not work here"
    };
    out + last + "\n"
}
