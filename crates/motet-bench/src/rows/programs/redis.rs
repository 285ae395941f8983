//! Redis and its own tools.

use super::{Plan, Target, missing, sandbox};
use crate::Options;
use crate::bar::{Bar, ProgramKind};
use crate::bench::Bench;
use crate::report::{Line, Unit};
use crate::sandbox::{BothServers, Ready, SETUPS, Sandbox, Setup};
use anyhow::{Context, Result};
use motet_programs::servers;

const CLOCK: &str = include_str!("../../../../../tests/bench/fine_clock.c");

/// Row `redis`.
pub fn redis(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let needs = ["redis-server", "redis-benchmark", "redis-cli"];
    if let Some(line) = missing("redis", "Redis with redis-benchmark and redis-cli", &needs) {
        return line;
    }
    let sandbox = sandbox(bench)?;
    let both = sandbox
        .both(|mode, port| sandbox.server(mode, &servers::redis(port), Ready::Says("Ready to accept connections")))?;
    let mut lines = Vec::new();
    for (clients, pipeline, requests, target) in [
        (1, "1", 24_000, Target::Times(1.5)),
        (50, "1", 40_000, Target::NeverSlower),
        (1, "16", 150_000, Target::NeverSlower),
        (50, "16", 300_000, Target::NeverSlower),
    ] {
        let (requests, count) = (bench.load(clients, requests).to_string(), clients.to_string());
        let depth = if pipeline == "1" { "" } else { ", 16 requests at once" };
        let what = format!("Redis GET, c={clients}{depth}");
        lines.extend(
            Plan::new("redis", what, Unit::PerSecond, target).measure(&sandbox, |setup| {
                gets(&sandbox, &both, setup, &["-c", &count, "-P", pipeline, "-n", &requests])
            }),
        );
    }
    lines[0].bar = Some(Bar::round_trip(ProgramKind::Redis));
    lines.extend(latency(&sandbox, &both)?);
    lines.extend(large(&sandbox, &both)?);
    Ok(lines)
}

/// Measures answers of 64 KiB.
fn large(sandbox: &Sandbox<'_>, both: &BothServers) -> Result<Vec<Line>> {
    const SIZE: &str = "65536";
    for setup in [SETUPS[1], SETUPS[0]] {
        let port = both.port(setup.mode);
        sandbox.client(setup, &["redis-benchmark", "-p", port, "-t", "set", "-d", SIZE, "-c", "1", "-n", "1", "-q"])?;
    }
    let requests = if sandbox.bench.quick { "2000" } else { "8000" };
    let plan = Plan::new("redis", "Redis GET, values of 64 KiB, c=1", Unit::GBs, Target::Shown);
    let mut lines = plan.measure(sandbox, |setup| {
        let a_second = gets(sandbox, both, setup, &["-c", "1", "-n", requests, "-d", SIZE])?;
        Ok(a_second * 65536e-9)
    });
    lines[0].bar = Some(Bar::bandwidth(ProgramKind::Redis));
    Ok(lines)
}

/// GETs a second, as redis-benchmark reports them.
fn gets(sandbox: &Sandbox<'_>, both: &BothServers, setup: Setup, more: &[&str]) -> Result<f64> {
    let reported = sandbox
        .client(setup, &[&["redis-benchmark", "-p", both.port(setup.mode), "--csv", "-t", "get"], more].concat())?;
    let line = reported.lines().find(|line| line.starts_with("\"GET\"")).context("no line of GET")?;
    let rate = line.split(',').nth(1).and_then(|word| word.trim_matches('"').parse().ok());
    rate.context("redis-benchmark reports no rate")
}

/// `redis-cli --latency`: a PING every 10 ms.
fn latency(sandbox: &Sandbox<'_>, both: &BothServers) -> Result<Vec<Line>> {
    let (source, clock) = (sandbox.file("fine_clock.c", CLOCK)?, sandbox.path("libfine_clock.so"));
    sandbox.build(&["cc", "-O2", "-shared", "-fPIC", "-o", &clock, &source])?;
    // A second of redis-cli is a millisecond by that clock.
    let seconds = if sandbox.bench.quick { "300" } else { "1000" };
    let plan = Plan::new("redis", "redis-cli --latency, a PING every 10 ms", Unit::Ns, Target::NeverSlower);
    let lines = plan.measure(sandbox, |setup| {
        let all = ["redis-cli", "-p", both.port(setup.mode), "--latency", "--raw", "-i", seconds];
        let reported = sandbox.client_with(setup, &all, &[("LD_PRELOAD", &clock)])?;
        let average = reported.split_whitespace().nth(2).and_then(|word| word.parse::<f64>().ok());
        Ok(average.context("redis-cli reports no average")? * 1e3)
    });
    let by_clock = "by a clock that counts microseconds instead of its milliseconds";
    Ok(lines.into_iter().map(|line| line.note(by_clock)).collect())
}
