//! `motet bench`: what Motet does on this machine, beside what the machine itself can do and what plain TCP does.
//!
//! What it is: rows ([`rows`]), each a comparison made in one run: contestants measured in turn, at least five times, the
//! one-way floor sampled around every one of them ([`floor`]), medians with their spread ([`stats`]), ratios repetition by
//! repetition. Plain TCP always counts with its better placement. What it is not: a test. Nothing fails for being slow.
//!
//! How it measures: [`pair`] starts two processes on CPUs chosen by [`place`]; they are programs of `tests/bench` or our own
//! executable as a `worker`; [`stage`] starts other people's programs. [`tune`] measures where the ways of copying cross, for
//! `motet tune`. [`corba`], [`messages`] and [`mpi`] are tools of their own, that look at CORBA, at messages and at MPI alone.
//! [`report`] is the data; [`table`], [`plot`], [`pages`] and [`overview`] show it.
#![forbid(unsafe_code)]

pub mod bench;
pub mod corba;
mod ending;
pub mod floor;
mod hosts;
pub mod messages;
pub mod mpi;
pub mod overview;
pub mod pages;
pub mod pair;
pub mod place;
pub mod plot;
pub mod report;
pub mod rows;
pub mod stage;
pub mod stats;
pub mod table;
pub mod tune;
mod worker;

use crate::bench::Bench;
use crate::pages::Group;
use crate::report::{Machine, Report};
use crate::stats::Spread;
use anyhow::{Context, Result, bail};
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::time::Duration;

/// How to measure and what to print: of `motet bench` and of its tools.
#[derive(Debug, Default, clap::Args)]
pub struct Manner {
    /// A short run: fewer and shorter repetitions
    #[arg(long)]
    pub quick: bool,
    /// Print everything as JSON
    #[arg(long)]
    pub json: bool,
    /// Print the table as Markdown
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,
    /// Folder for the plots, as SVG and PNG
    #[arg(long, value_name = "DIR", default_value = "report/bench")]
    pub plots: PathBuf,
    /// Folder for the tables as Markdown pages, one for each group of rows that is measured
    #[arg(long, value_name = "DIR")]
    pub figures: Option<PathBuf>,
    /// Repetitions of each measurement (at least 5)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(5..))]
    pub repetitions: Option<u16>,
    /// Folder of libmotet.so.0 and libmotet_sockets.so
    #[arg(long, value_name = "DIR")]
    pub libdir: Option<PathBuf>,
}

/// The command line of `motet bench`.
#[derive(Debug, Default, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Options {
    /// A tool instead of the rows
    #[command(subcommand)]
    pub tool: Option<Tool>,
    /// How to measure and what to print
    #[command(flatten)]
    pub manner: Manner,
    /// Only these rows (letters or names of the table, `curves`, or `programs`: all that have names)
    #[arg(long, value_name = "ROW", value_delimiter = ',')]
    pub only: Vec<String>,
    /// A report of the coupled demo to take its row from
    #[arg(long, value_name = "FILE", default_value = "report/report.json")]
    pub demo_report: PathBuf,
    /// Be a measuring process
    #[arg(long, hide = true, num_args = 1.., allow_hyphen_values = true)]
    pub worker: Vec<String>,
}

/// What looks at one kind of communication alone.
#[derive(Debug, clap::Subcommand)]
pub enum Tool {
    /// Measure CORBA calls over every path: empty calls, sequences, strings, and where their time goes
    Corba(corba::Options),
    /// Measure messages between processes: ours beside those of UCX, libfabric, Open MPI and MPICH
    Messages(messages::Options),
    /// Measure MPI libraries on Motet beside the same libraries by themselves
    Mpi(mpi::Options),
}

impl Options {
    /// The manner that counts: the tool's own, where one is asked for.
    pub fn manner(&mut self) -> &mut Manner {
        match &mut self.tool {
            Some(Tool::Corba(corba)) => &mut corba.manner,
            Some(Tool::Messages(messages)) => &mut messages.manner,
            Some(Tool::Mpi(mpi)) => &mut mpi.manner,
            None => &mut self.manner,
        }
    }
}

/// Measures and prints. `prefix`: the words that lead to this command in the executable that runs, as in `motet bench`.
pub fn run(options: &Options, prefix: &[&str]) -> Result<()> {
    if !options.worker.is_empty() {
        return worker::run(&options.worker);
    }
    match &options.tool {
        Some(Tool::Corba(corba)) => {
            return show(&corba::measure(begin(&corba.manner, prefix)?, corba)?, &corba.manner, |_| Group::Corba);
        }
        Some(Tool::Messages(messages)) => {
            let report = messages::measure(begin(&messages.manner, prefix)?, messages)?;
            return show(&report, &messages.manner, |_| Group::Messages);
        }
        Some(Tool::Mpi(mpi)) => {
            let report = mpi::measure(begin(&mpi.manner, prefix)?, mpi, |lines| show_part(lines, &mpi.manner))?;
            return show_rest(&report, &mpi.manner, |_| Group::Mpi);
        }
        None => {}
    }
    let wanted = rows::chosen(&options.only)?;
    let bench = begin(&options.manner, prefix)?;
    show(&measure(&bench, &wanted, options)?, &options.manner, rows::group)
}

fn begin(manner: &Manner, prefix: &[&str]) -> Result<Bench> {
    if let Some(folder) = &manner.figures {
        pages::prepare(folder)?;
    }
    let mut bench = Bench::new(prefix, manner.quick, manner.libdir.as_deref())?;
    if let Some(repetitions) = manner.repetitions {
        bench.repetitions = repetitions.into();
        bench.of_programs = repetitions.into();
    }
    Ok(bench)
}

fn show(report: &Report, manner: &Manner, group: fn(&report::Line) -> Group) -> Result<()> {
    ending::hold();
    let shown = if manner.json {
        serde_json::to_string_pretty(report)? + "\n"
    } else if manner.markdown {
        table::markdown(report)
    } else {
        table::terminal(report)
    };
    print(&shown)?;
    show_files(report, manner, group)
}

/// Lines of a part of a long run, as soon as it has ended. JSON is one document, and comes at the end.
fn show_part(lines: &[report::Line], manner: &Manner) -> Result<()> {
    ending::hold();
    match (manner.json, manner.markdown) {
        (true, _) => Ok(()),
        (false, true) => print(&(table::markdown_lines(lines) + "\n")),
        (false, false) => print(&(table::lines(lines) + "\n")),
    }
}

/// What is left to show of a run whose parts have been shown.
fn show_rest(report: &Report, manner: &Manner, group: fn(&report::Line) -> Group) -> Result<()> {
    if manner.json {
        return show(report, manner, group);
    }
    print(&table::machine(&report.machine))?;
    show_files(report, manner, group)
}

/// Draws the plots, and writes the figures pages where a folder for them is given.
fn show_files(report: &Report, manner: &Manner, group: fn(&report::Line) -> Group) -> Result<()> {
    if !report.curves.is_empty() {
        let folder = &manner.plots;
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let files = plot::all(folder, report)?;
        eprintln!("plots: {}", files.join(" "));
    }
    if let Some(folder) = &manner.figures {
        let pages = pages::write(folder, report, group, &pages::Origin::here())?;
        let mut files: Vec<String> = pages.iter().map(|path| path.display().to_string()).collect();
        files.extend(overview::draw(folder, &manner.plots, report)?);
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

fn measure(bench: &Bench, wanted: &[&rows::Row], options: &Options) -> Result<Report> {
    let bar = progress(wanted.len() as u64 + 1)?;
    let (mut lines, mut curves) = (Vec::new(), Vec::new());
    bar.set_message("floor");
    let copies = copies(bench);
    for row in wanted {
        bar.inc(1);
        bar.set_message(row.title);
        match row.measure {
            rows::Measure::Lines(measure) => match measure(bench, options) {
                Ok(found) => lines.extend(found),
                Err(error) => lines.push(report::Line::not_measured(row.id, row.title, format!("{error:#}"))),
            },
            rows::Measure::Curves(measure) => curves.extend(measure(bench)),
        }
    }
    bar.finish_and_clear();
    if lines.is_empty() && curves.is_empty() {
        bail!("nothing was measured");
    }
    Ok(Report { machine: machine(bench, &copies), lines, curves })
}

/// Where a run stands, for whoever waits.
fn progress(steps: u64) -> Result<indicatif::ProgressBar> {
    let bar = indicatif::ProgressBar::new(steps);
    bar.set_style(indicatif::ProgressStyle::with_template("{spinner} [{pos}/{len}] {msg}")?);
    bar.enable_steady_tick(Duration::from_secs(1)); // seldom: it takes time of a CPU that is measured
    Ok(bar)
}

/// One core's copy of 64 KiB within its cache, GB/s, a few times.
fn copies(bench: &Bench) -> Vec<f64> {
    (0..5).map(|_| 65536e-9 / floor::copy(bench.cpus.pair[0], 65536, 1, Duration::from_millis(20))).collect()
}

/// What was measured on, once all is measured.
fn machine(bench: &Bench, copies: &[f64]) -> Machine {
    let [floors, exchanges] = bench.floors();
    let fast = floors.iter().filter(|&&f| f <= floor::FAST).count();
    let (near, far): (Vec<f64>, Vec<f64>) = floors.iter().partition(|&&f| f <= floor::NEAR);
    let here = motet_config::profile::Machine::here();
    Machine {
        processor: if here.processor.is_empty() { "unknown processor".into() } else { here.processor },
        kernel: here.kernel,
        cpus: bench.cpus.count(),
        floor: Spread::of(&floors),
        floor_by_distance: [Spread::of(&near), Spread::of(&far)],
        exchange: Spread::of(&exchanges),
        floor_fast: fast as f64 / floors.len().max(1) as f64,
        copy: Spread::of(copies),
        repetitions: (bench.repetitions, bench.ms),
    }
}
