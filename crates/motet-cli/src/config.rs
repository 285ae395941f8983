//! `motet config`: every setting, its value, and where that came from.

use clap::Args;
use motet_config::{Loaded, SETTINGS, Surroundings};
use serde::Serialize;

use crate::exit_error::{Outcome, USAGE};
use crate::output::{self, Lean, Table};

/// Show every setting, its value and where it comes from
#[derive(Debug, Args)]
pub struct Arguments {
    /// Say what each setting means
    #[arg(short, long)]
    verbose: bool,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    variable: &'static str,
    value: String,
    from: String,
    default: &'static str,
    accepts: String,
    help: &'static str,
}

#[derive(Serialize)]
struct Report {
    file: Option<std::path::PathBuf>,
    settings: Vec<Row>,
    problems: Vec<String>,
}

/// Settings without a problem, driver names included; otherwise the first problem as a failure.
pub fn load() -> Outcome<Loaded> {
    let mut loaded = Surroundings::of_this_process().load();
    loaded.problems.extend(unknown_drivers(&loaded));
    match loaded.problems.first() {
        Some(problem) => Err(problem.clone().into()),
        None => Ok(loaded),
    }
}

/// What is wrong with a list of drivers, if anything.
pub fn check_drivers(drivers: &motet_config::Drivers, place: motet_config::Place) -> Option<motet_config::Problem> {
    let known = crate::drivers::names();
    let name = drivers.unknown(&known).next()?;
    let (what, fix) = (format!("no such driver: `{name}`"), format!("there are: {}", known.join(", ")));
    Some(motet_config::Problem { place, what, fix })
}

fn unknown_drivers(loaded: &Loaded) -> Option<motet_config::Problem> {
    let row = SETTINGS.iter().position(|s| s.name == "drivers")?;
    check_drivers(&loaded.config.drivers, loaded.origins[row].place.clone()?)
}

/// The command.
pub fn run(arguments: &Arguments, json: bool) -> Outcome {
    let mut loaded = Surroundings::of_this_process().load();
    loaded.problems.extend(unknown_drivers(&loaded));
    let rows = SETTINGS.iter().zip(&loaded.origins).map(|(setting, origin)| Row {
        name: setting.name,
        variable: setting.env,
        value: origin.text.clone(),
        from: origin.place.as_ref().map_or("default".into(), ToString::to_string),
        default: setting.default,
        accepts: setting.kind.describe(),
        help: setting.help,
    });
    let report = Report {
        file: loaded.file.clone(),
        settings: rows.collect(),
        problems: loaded.problems.iter().map(ToString::to_string).collect(),
    };
    if json {
        output::json(&report)?;
    } else {
        output::text(&render(&report, arguments.verbose))?;
    }
    for problem in &report.problems {
        eprintln!("motet: {problem}");
    }
    Ok(if report.problems.is_empty() { 0 } else { USAGE })
}

fn render(report: &Report, verbose: bool) -> String {
    let mut table = Table::new(&[("SETTING", Lean::Left), ("VALUE", Lean::Left), ("FROM", Lean::Left)]);
    let shown = |text: &str| if text.is_empty() { "-".to_owned() } else { output::harmless(text, 200) };
    if !verbose {
        for row in &report.settings {
            table.row(vec![row.name.into(), shown(&row.value), output::harmless(&row.from, 200)]);
        }
        return table.render();
    }
    let blocks = report.settings.iter().map(|row| {
        let (value, from) = (shown(&row.value), output::harmless(&row.from, 200));
        format!("{} = {value}  ({from})\n    {}, {}\n    {}\n", row.name, row.variable, row.accepts, row.help)
    });
    blocks.collect::<Vec<_>>().join("\n")
}
