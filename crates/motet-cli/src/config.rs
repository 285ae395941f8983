//! `motet config`: every setting, its value, and the source of the value.

use clap::Args;
use motet_config::{Environment, Loaded, SETTINGS};
use serde::Serialize;

use crate::exit_error::{Outcome, USAGE};
use crate::output::{self, Align, Table};

/// Show every setting, its value and the source of the value
#[derive(Debug, Args)]
pub struct Arguments {
    /// Also print the meaning of each setting
    #[arg(short, long)]
    verbose: bool,
}

#[derive(Serialize)]
struct SettingRow {
    name: &'static str,
    variable: &'static str,
    value: String,
    from: String,
    default: &'static str,
    accepts: String,
    help: &'static str,
}

#[derive(Serialize)]
struct ConfigReport {
    file: Option<std::path::PathBuf>,
    settings: Vec<SettingRow>,
    problems: Vec<String>,
}

/// Loads the settings. The first problem, an unknown driver included, is a failure.
pub fn load() -> Outcome<Loaded> {
    let mut loaded = Environment::of_this_process().load();
    loaded.problems.extend(unknown_drivers(&loaded));
    match loaded.problems.first() {
        Some(problem) => Err(problem.clone().into()),
        None => Ok(loaded),
    }
}

/// The problem with a list of drivers: an unknown name.
pub fn check_drivers(
    drivers: &motet_config::Drivers,
    source: motet_config::ValueSource,
) -> Option<motet_config::Problem> {
    let known = motet_inspect::drivers::names();
    let name = drivers.unknown(&known).next()?;
    let (what, fix) = (format!("no such driver: `{name}`"), format!("use {}", known.join(" or ")));
    Some(motet_config::Problem { source, what, fix })
}

fn unknown_drivers(loaded: &Loaded) -> Option<motet_config::Problem> {
    let row = SETTINGS.iter().position(|s| s.name == "drivers")?;
    check_drivers(&loaded.config.drivers, loaded.origins[row].source.clone()?)
}

/// The command.
pub fn run(arguments: &Arguments, json: bool) -> Outcome {
    let mut loaded = Environment::of_this_process().load();
    loaded.problems.extend(unknown_drivers(&loaded));
    let rows = SETTINGS.iter().zip(&loaded.origins).map(|(setting, origin)| SettingRow {
        name: setting.name,
        variable: setting.env,
        value: origin.text.clone(),
        from: origin.source.as_ref().map_or("default".into(), ToString::to_string),
        default: setting.default,
        accepts: setting.kind.describe(),
        help: setting.help,
    });
    let report = ConfigReport {
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
        motet_session::notes::note(problem);
    }
    Ok(if report.problems.is_empty() { 0 } else { USAGE })
}

fn render(report: &ConfigReport, verbose: bool) -> String {
    let mut table = Table::new(&[("SETTING", Align::Left), ("VALUE", Align::Left), ("FROM", Align::Left)]);
    let shown = |text: &str| if text.is_empty() { "-".to_owned() } else { output::sanitize(text, 200) };
    if !verbose {
        for row in &report.settings {
            table.row(vec![row.name.into(), shown(&row.value), output::sanitize(&row.from, 200)]);
        }
        return table.render();
    }
    let blocks = report.settings.iter().map(|row| {
        let (value, from) = (shown(&row.value), output::sanitize(&row.from, 200));
        format!("{} = {value}  ({from})\n    {}, {}\n    {}\n", row.name, row.variable, row.accepts, row.help)
    });
    blocks.collect::<Vec<_>>().join("\n")
}
