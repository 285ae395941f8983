//! The report: a table for the terminal, an HTML page with pictures, and all figures as JSON.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::compare::{Comparison, Medians};
use crate::validate::{SlabErrors, TimeError, orders};

/// Everything that a report may say.
#[derive(Serialize)]
pub struct Report {
    /// The compared cases.
    pub cases: Vec<Comparison>,
    /// Repetitions of each way of running a case.
    pub repetitions: usize,
    /// Two slabs of constant conductivity.
    pub slab: SlabErrors,
    /// Kirchhoff's case, three grids.
    pub grid: Vec<SlabErrors>,
    /// Time steps.
    pub time: Vec<TimeError>,
}

/// Others that use this many CPUs make the comparison worth a warning.
const BUSY_CPUS: f64 = 0.5;

type Quantity = (&'static str, fn(&Medians) -> f64);

/// What the table shows, one row per quantity.
const QUANTITIES: [Quantity; 6] = [
    ("whole run, with start and end", |m| m.run),
    ("all time steps", |m| m.stepping),
    ("in coupling calls", |m| m.coupling),
    ("  of which the wall's own steps", |m| m.solving),
    ("  all else: transport, waiting", |m| m.transport),
    ("CPU time, all ranks", |m| m.cpu),
];

fn seconds(value: f64) -> String {
    format!("{value:.3} s")
}

/// Links as text, or that they were not measured.
fn links(case: &Comparison) -> Vec<String> {
    if case.motet.is_none() {
        return vec!["not measured (runs without Motet only)".into()];
    }
    if case.links.links.is_empty() {
        return vec!["not measured (Motet reported no links)".into()];
    }
    let bytes = |bytes: Option<u64>| bytes.map_or("bytes not measured".into(), |bytes| format!("{bytes} bytes"));
    case.links.links.iter().map(|l| format!("{}: {}, {}", l.between, l.path, bytes(l.bytes))).collect()
}

fn facts(case: &Comparison) -> String {
    format!(
        "gas on {} x wall on {} ranks, {} exchanges of {} values, {} calls, {:.3} MB of boundary values",
        case.ranks[0],
        case.ranks[1],
        case.exchanges,
        case.columns,
        case.calls,
        case.bytes / 1e6
    )
}

/// The range of the times in coupling calls over the repetitions.
fn spread(case: &Comparison) -> String {
    let range = |m: &Medians| format!("{:.3} to {:.3} s", m.coupling_spread[0], m.coupling_spread[1]);
    let motet = case.motet.as_ref().map_or(String::new(), |m| format!(", with Motet {}", range(m)));
    format!("time in coupling calls over the repetitions: without Motet {}{motet}", range(&case.plain))
}

/// A warning, if other programs have used the CPUs meanwhile.
fn load(case: &Comparison) -> Option<String> {
    let used = case.used_by_others;
    (used >= BUSY_CPUS).then(|| {
        format!("other programs used {used:.1} CPUs meanwhile: the ratios are nearer to 1 than on an idle machine")
    })
}

fn identity(case: &Comparison) -> String {
    format!("bit-identical in {} runs: {}", case.runs, if case.identical { "yes" } else { "NO" })
}

/// The comparison for the terminal.
pub fn terminal(cases: &[Comparison]) -> String {
    let mut text = String::new();
    for case in cases {
        let _ = writeln!(text, "\n{}: {}\n  {}", case.case, case.title, facts(case));
        let _ = writeln!(text, "  {:34}{:>14}{:>14}{:>9}", "", "without Motet", "with Motet", "ratio");
        for (name, quantity) in QUANTITIES {
            let motet = case.motet.as_ref().map_or("-".into(), |m| seconds(quantity(m)));
            let ratio = case.ratio(quantity).map_or("-".into(), |ratio| format!("{ratio:.2}"));
            let _ = writeln!(text, "  {name:34}{:>14}{motet:>14}{ratio:>9}", seconds(quantity(&case.plain)));
        }
        let _ = writeln!(text, "  {}; largest error of an energy balance {:.1e}", identity(case), case.balance_error);
        let _ = writeln!(text, "  {}", spread(case));
        if let Some(load) = load(case) {
            let _ = writeln!(text, "  {load}");
        }
        for link in links(case) {
            let _ = writeln!(text, "  link {link}");
        }
    }
    text
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Writes `index.html` and `report.json` into the directory; the pictures are there already.
pub fn write(directory: &Path, report: &Report) -> Result<()> {
    let json = serde_json::to_string_pretty(report)?;
    std::fs::write(directory.join("report.json"), json).context("cannot write report.json")?;
    let mut page = String::from(HEAD);
    page.push_str("<h1>Coupled heat transfer, without Motet and with Motet</h1>\n");
    let _ = writeln!(
        page,
        "<p>Medians of {} repetitions each way, alternating, in one run on this machine.</p>",
        report.repetitions
    );
    page.push_str(
        r#"<h2>Temperature, end of the demo case</h2><img src="temperature.png" alt="temperature of gas and wall">"#,
    );
    page.push_str(r#"<h2>Comparison</h2><img src="comparison.svg" alt="time per exchange">"#);
    for case in &report.cases {
        let _ =
            writeln!(page, "<h3>{}: {}</h3><p>{}.</p>", escape(&case.case), escape(&case.title), escape(&facts(case)));
        page.push_str("<table><tr><th></th><th>without Motet</th><th>with Motet</th><th>ratio</th></tr>\n");
        for (name, quantity) in QUANTITIES {
            let motet = case.motet.as_ref().map_or("not measured".into(), |m| seconds(quantity(m)));
            let ratio = case.ratio(quantity).map_or("not measured".into(), |ratio| format!("{ratio:.2}"));
            let plain = seconds(quantity(&case.plain));
            let _ = writeln!(page, "<tr><td>{name}</td><td>{plain}</td><td>{motet}</td><td>{ratio}</td></tr>");
        }
        let _ = writeln!(
            page,
            "</table><p>{}{}; {}. Largest error of an energy balance, relative: {:.1e}. Links:</p><ul>",
            spread(case),
            load(case).map_or(String::new(), |load| format!("; {load}")),
            identity(case),
            case.balance_error
        );
        for link in links(case) {
            let _ = writeln!(page, "<li>{}</li>", escape(&link));
        }
        page.push_str("</ul>\n");
    }
    page.push_str(r#"<h2>Against exact solutions</h2><img src="convergence.svg" alt="convergence">"#);
    let _ = writeln!(
        page,
        "<p>Two slabs of constant conductivity: largest relative error {:.1e}.</p>",
        report.slab.largest
    );
    let list = |orders: Vec<f64>| orders.iter().map(|o| format!("{o:.3}")).collect::<Vec<_>>().join(", ");
    let _ = writeln!(
        page,
        "<p>Observed order on successive grids: {}.</p>",
        list(orders(report.grid.iter().map(|e| e.mean)))
    );
    let _ = writeln!(
        page,
        "<p>Observed order of successive time steps: {}.</p>",
        list(orders(report.time.iter().map(|e| e.error)))
    );
    page.push_str("</body></html>\n");
    std::fs::write(directory.join("index.html"), page).context("cannot write index.html")
}

const HEAD: &str = r#"<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Coupled heat transfer</title>
<style>body{font:16px/1.5 sans-serif;max-width:1100px;margin:2em auto;padding:0 1em}img{max-width:100%}
table{border-collapse:collapse}td,th{padding:.2em 1em;border-bottom:1px solid #ccc;text-align:right}
td:first-child{text-align:left;white-space:pre}</style></head><body>
"#;
