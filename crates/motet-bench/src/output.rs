//! What a run shows: the report as text or JSON, plots, figures pages, and its progress.

use crate::options::RunOptions;
use crate::pages::{self, Group};
use crate::report::{self, Report};
use crate::{cleanup, overview, plot, table};
use anyhow::{Context, Result};
use std::io::{ErrorKind, Write as _};
use std::time::Duration;

/// Prints a report, and writes its files.
pub fn show(report: &Report, options: &RunOptions, group: impl Fn(&report::Line) -> Group) -> Result<()> {
    cleanup::block_while_ending();
    let shown = if options.json {
        serde_json::to_string_pretty(report)? + "\n"
    } else if options.markdown {
        table::markdown(report)
    } else {
        table::terminal(report)
    };
    print(&shown)?;
    show_files(report, options, group)
}

/// Prints the lines of a part of a long run when the part ends. JSON is one document and is printed at the end.
pub fn show_part(lines: &[report::Line], options: &RunOptions) -> Result<()> {
    cleanup::block_while_ending();
    match (options.json, options.markdown) {
        (true, _) => Ok(()),
        (false, true) => print(&(table::markdown_lines(lines) + "\n")),
        (false, false) => print(&(table::lines(lines) + "\n")),
    }
}

/// Prints the rest of a run whose parts have been printed, and writes its files.
pub fn show_rest(report: &Report, options: &RunOptions, group: impl Fn(&report::Line) -> Group) -> Result<()> {
    if options.json {
        return show(report, options, group);
    }
    print(&table::machine(&report.machine))?;
    show_files(report, options, group)
}

/// Draws the plots, and writes the figures pages where a folder for them is given.
fn show_files(report: &Report, options: &RunOptions, group: impl Fn(&report::Line) -> Group) -> Result<()> {
    if !report.curves.is_empty() {
        let folder = &options.plots;
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let files = plot::all(folder, report)?;
        eprintln!("plots: {}", files.join(" "));
    }
    if let Some(folder) = &options.figures {
        let pages = pages::write(folder, report, group, &pages::Origin::here())?;
        let mut files: Vec<String> = pages.iter().map(|path| path.display().to_string()).collect();
        files.extend(overview::draw(folder, &options.plots, report)?);
        eprintln!("figures: {}", files.join(" "));
    }
    Ok(())
}

/// Writes to standard output. A reader that left early (`| head`) is no error.
fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(e).context("cannot write to standard output"),
        _ => Ok(()),
    }
}

/// A progress bar.
pub fn progress(steps: u64) -> Result<indicatif::ProgressBar> {
    let bar = indicatif::ProgressBar::new(steps);
    bar.set_style(indicatif::ProgressStyle::with_template("{spinner} [{pos}/{len}] {msg}")?);
    bar.enable_steady_tick(Duration::from_secs(1)); // no faster: it takes time of a CPU that is measured
    Ok(bar)
}
