//! Python: echo over blocking sockets and over asyncio's streams.

use super::{Plan, Target, called, missing, sandbox, words};
use crate::Options;
use crate::bench::Bench;
use crate::report::{Line, Unit};
use crate::sandbox::Setup;
use anyhow::Result;

/// Row `python`.
pub fn echo(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    if let Some(line) = missing("python", "Python echo, blocking and asyncio", &["python3"]) {
        return line;
    }
    let sandbox = sandbox(bench)?;
    let script = sandbox.file("echo.py", include_str!("../../../../../tests/bench/echo.py"))?;
    let mut lines = Vec::new();
    for (kind, target) in [("blocking", Target::Times(3.0)), ("asyncio", Target::NeverSlower)] {
        let both = sandbox.both_say(&["python3", &script, "serve", kind])?;
        let plan = Plan::new("python", format!("Python, {kind}, 64 B round trips"), Unit::Ns, target);
        let start = |setup: Setup| words(&["python3", &script, "call", kind, both.port(setup.mode)]);
        lines.extend(called(&sandbox, plan, start, &format!("64 {}", bench.ms * 2), "", |ns| ns));
    }
    Ok(lines)
}
