//! Redis and its own tools.

use super::{Asked, Plan, missing};
use crate::Options;
use crate::bench::Bench;
use crate::overview::{Bar, Program};
use crate::report::{Line, Unit};
use crate::stage::{Both, Ready, Stage, WAYS, Way};
use anyhow::{Context, Result};
use motet_programs::servers;

const CLOCK: &str = include_str!("../../../../../tests/bench/fine_clock.c");

/// Row `redis`.
pub fn redis(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let needs = ["redis-server", "redis-benchmark", "redis-cli"];
    if let Some(line) = missing("redis", "Redis with redis-benchmark and redis-cli", &needs) {
        return line;
    }
    let stage = Stage::new(bench)?;
    let both = stage
        .both(|mode, port| stage.server(mode, &servers::redis(port), Ready::Says("Ready to accept connections")))?;
    let mut lines = Vec::new();
    for (clients, pipeline, requests, asked) in [
        ("1", "1", 24_000, Asked::Times(1.5)),
        ("50", "1", 60_000, Asked::NeverSlower),
        ("1", "16", 150_000, Asked::NeverSlower),
        ("50", "16", 400_000, Asked::NeverSlower),
    ] {
        let requests = (if bench.quick { requests / 4 } else { requests }).to_string();
        let depth = if pipeline == "1" { "" } else { ", 16 requests at once" };
        let what = format!("Redis GET, c={clients}{depth}");
        lines.push(
            Plan::new("redis", what, Unit::PerSecond, asked)
                .measure(&stage, |way| gets(&stage, &both, way, &["-c", clients, "-P", pipeline, "-n", &requests])),
        );
    }
    lines[0].bar = Some(Bar::round_trip(Program::Redis));
    lines.push(latency(&stage, &both)?);
    lines.push(large(&stage, &both)?);
    Ok(lines)
}

/// Answers with 64 KiB.
fn large(stage: &Stage<'_>, both: &Both) -> Result<Line> {
    const SIZE: &str = "65536";
    for way in [WAYS[1], WAYS[0]] {
        let port = both.port(way.mode);
        stage.client(way, &["redis-benchmark", "-p", port, "-t", "set", "-d", SIZE, "-c", "1", "-n", "1", "-q"])?;
    }
    let requests = if stage.bench.quick { "2000" } else { "8000" };
    let plan = Plan::new("redis", "Redis GET, values of 64 KiB, c=1", Unit::GBs, Asked::Shown);
    let line = plan.measure(stage, |way| {
        let a_second = gets(stage, both, way, &["-c", "1", "-n", requests, "-d", SIZE])?;
        Ok(a_second * 65536e-9)
    });
    Ok(line.bar(Bar::bandwidth(Program::Redis)))
}

/// GETs a second, as redis-benchmark reports them.
fn gets(stage: &Stage<'_>, both: &Both, way: Way, more: &[&str]) -> Result<f64> {
    let told =
        stage.client(way, &[&["redis-benchmark", "-p", both.port(way.mode), "--csv", "-t", "get"], more].concat())?;
    let line = told.lines().find(|line| line.starts_with("\"GET\"")).context("no line of GET")?;
    let rate = line.split(',').nth(1).and_then(|word| word.trim_matches('"').parse().ok());
    rate.context("redis-benchmark reports no rate")
}

/// `redis-cli --latency`: a PING every 10 ms.
fn latency(stage: &Stage<'_>, both: &Both) -> Result<Line> {
    let (source, clock) = (stage.file("fine_clock.c", CLOCK)?, stage.path("libfine_clock.so"));
    stage.build(&["cc", "-O2", "-shared", "-fPIC", "-o", &clock, &source])?;
    // Its seconds are milliseconds by that clock.
    let seconds = if stage.bench.quick { "300" } else { "1000" };
    let plan = Plan::new("redis", "redis-cli --latency, a PING every 10 ms", Unit::Ns, Asked::NeverSlower);
    let line = plan.measure(stage, |way| {
        let all = ["redis-cli", "-p", both.port(way.mode), "--latency", "--raw", "-i", seconds];
        let told = stage.client_with(way, &all, &[("LD_PRELOAD", &clock)])?;
        let average = told.split_whitespace().nth(2).and_then(|word| word.parse::<f64>().ok());
        Ok(average.context("redis-cli reports no average")? * 1e3)
    });
    Ok(line.note("by a clock that counts microseconds instead of its milliseconds"))
}
