//! The chatty case of the coupled demo, from the report that the demo wrote.

use crate::Options;
use crate::bench::Bench;
use crate::report::{Bound, Line, Quantity, Unit, WithMotet};
use anyhow::{Context, Result};
use serde_json::Value;

/// Row `coupled-demo`.
pub fn chatty(_: &Bench, options: &Options) -> Result<Vec<Line>> {
    let path = &options.demo_report;
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("no report of the demo at {} (make demo writes it)", path.display()))?;
    let report: Value =
        serde_json::from_str(&text).with_context(|| format!("{} is not a report of the demo", path.display()))?;
    let repetitions = report["repetitions"].as_u64().unwrap_or(0);
    let line = |(name, what): (&str, &str)| -> Result<Line> {
        let cases = report["cases"].as_array().into_iter().flatten();
        let case = cases
            .into_iter()
            .find(|case| case["case"] == name)
            .with_context(|| format!("the report has no case {name}"))?;
        let seconds = |way: &str| case[way]["coupling"].as_f64();
        let plain = seconds("plain").context("the demo's report has no coupling time without Motet")?;
        let motet = seconds("motet").context("the demo's report has no run under Motet")?;
        Ok(Line::new("coupled-demo", format!("coupled demo, time in coupling calls, {what}"))
            .figure(Quantity::of("without Motet", &[plain], Unit::Seconds))
            .against(Quantity::of("under Motet", &[motet], Unit::Seconds), &[plain / motet])
            .with_motet(WithMotet::Reference)
            .bound(Bound::AtLeast(15.0))
            .note(format!("medians of {repetitions} repetitions, as the demo reported them in {}", path.display())))
    };
    CASES.into_iter().map(line).collect()
}

/// Small exchanges, by the number of ranks that share the machine.
const CASES: [(&str, &str); 2] = [("chatty", "1 + 2 ranks"), ("chatty-pair", "1 + 1 ranks")];
