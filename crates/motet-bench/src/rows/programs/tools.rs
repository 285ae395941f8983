//! Programs that measure networks: sockperf, iperf3, qperf.

use super::{Plan, Target, missing, number_after, sandbox};
use crate::Options;
use crate::bench::Bench;
use crate::report::{Line, Unit};
use crate::sandbox::Ready;
use anyhow::{Context, Result};
use motet_programs::free_port;
use motet_sys::rustix::process::Signal;

/// Row `sockperf`. Its server ends with its first client, so each measurement has its own. Its shortest run takes a second, of which
/// it leaves out the first 0.4. It stores both times of each message, so it needs the number of messages to expect. It takes two
/// seconds before it begins.
pub fn sockperf(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let what = "sockperf ping-pong, 64 B, one way as it reports it";
    if let Some(line) = missing("sockperf", what, &["sockperf"]) {
        return line;
    }
    let sandbox = sandbox(bench)?;
    let plan = Plan::new("sockperf", what, Unit::Ns, Target::Times(8.0));
    let lines = plan.measure(&sandbox, |setup| {
        let port = free_port()?.to_string();
        let at = ["--tcp", "-i", "127.0.0.1", "-p", &port];
        let mut server =
            sandbox.server(setup.mode, &[&["sockperf", "server"], &at[..]].concat(), Ready::Says("Warmup stage"))?;
        server.signal = Signal::INT;
        let more = ["-t", "1", "-m", "64", "--mps", "5000000"];
        let reported = sandbox.client(setup, &[&["sockperf", "ping-pong"], &at[..], &more].concat())?;
        server.end();
        Ok(number_after(&reported, "percentile 50.000 =")? * 1e3)
    });
    Ok(lines)
}

/// Row `iperf3`.
pub fn iperf3(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let what = "iperf3, one stream";
    if let Some(line) = missing("iperf3", what, &["iperf3"]) {
        return line;
    }
    let sandbox = sandbox(bench)?;
    let both = sandbox.both(|mode, port| {
        sandbox.server(mode, &["iperf3", "-s", "-B", "127.0.0.1", "-p", port, "--forceflush"], Ready::Says("listening"))
    })?;
    let amount = if bench.quick { "1G" } else { "4G" };
    let plan = Plan::new("iperf3", what, Unit::GBs, Target::Times(4.0));
    let lines = plan.measure(&sandbox, |setup| {
        let reported = sandbox
            .client(setup, &["iperf3", "-c", "127.0.0.1", "-p", both.port(setup.mode), "-n", amount, "--json"])?;
        let reported: serde_json::Value = serde_json::from_str(&reported)?;
        let bits = reported["end"]["sum_received"]["bits_per_second"].as_f64();
        Ok(bits.context("iperf3 reports no rate")? / 8e9)
    });
    Ok(lines)
}

/// Row `qperf`. Its shortest run takes a second.
pub fn qperf(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let what = "qperf tcp_lat, 1 B, one way as it reports it";
    if let Some(line) = missing("qperf", what, &["qperf"]) {
        return line;
    }
    let sandbox = sandbox(bench)?;
    let both = sandbox.both(|mode, port| sandbox.server(mode, &["qperf", "-lp", port], Ready::Started))?;
    let plan = Plan::new("qperf", what, Unit::Ns, Target::Shown);
    let lines = plan.measure(&sandbox, |setup| {
        let (port, data) = (both.port(setup.mode), free_port()?.to_string());
        let reported =
            sandbox.client(setup, &["qperf", "-lp", port, "-ip", &data, "-t", "1", "127.0.0.1", "tcp_lat"])?;
        let value = number_after(&reported, "=")?;
        let unit = reported.split_whitespace().last().unwrap_or_default();
        Ok(value
            * match unit {
                "ns" => 1.0,
                "us" => 1e3,
                "ms" => 1e6,
                _ => 1e9,
            })
    });
    Ok(lines)
}
