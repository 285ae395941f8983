//! Python: echo over blocking sockets and over asyncio's streams.

use super::{Asked, Plan, called, missing, words};
use crate::Options;
use crate::bench::Bench;
use crate::report::{Line, Unit};
use crate::stage::{Stage, Way};
use anyhow::Result;

/// Row `python`.
pub fn echo(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    if let Some(line) = missing("python", "Python echo, blocking and asyncio", &["python3"]) {
        return line;
    }
    let stage = Stage::new(bench)?;
    let script = stage.file("echo.py", include_str!("../../../../../tests/bench/echo.py"))?;
    let mut lines = Vec::new();
    for (kind, asked) in [("blocking", Asked::Times(3.0)), ("asyncio", Asked::NeverSlower)] {
        let both = stage.both_say(&["python3", &script, "serve", kind])?;
        let plan = Plan::new("python", format!("Python, {kind}, 64 B round trips"), Unit::Ns, asked);
        let start = |way: Way| words(&["python3", &script, "call", kind, both.port(way.mode)]);
        lines.push(called(&stage, plan, start, &format!("64 {}", bench.ms * 2), "", |ns| ns));
    }
    Ok(lines)
}
