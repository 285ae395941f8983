//! `motet bench`: what Motet does on this machine, compared with what the machine can do and with plain TCP.
//!
//! What it is: rows ([`rows`]). Each row is a comparison within one run: its measurements take turns, at least five times, and the
//! one-way floor is sampled before and after each of them ([`floor`]). A row shows medians with their spread ([`stats`]), and ratios
//! repetition by repetition. Plain TCP counts with its better placement. What it is not: a test. Nothing fails for being slow.
//!
//! How it measures: [`pair`] starts two processes on the CPUs that [`place`] chooses. They are programs of `tests/bench`, or this
//! executable as a `worker`. [`sandbox`] starts programs of other projects. [`measure`] has what rows and tools share. [`tune`]
//! measures for `motet tune` from which sizes on payload is better copied once. The tools [`corba`], [`files`], [`globus`], [`messages`], [`mpi`]
//! and [`session`] each measure one kind of communication. [`report`] is the data; [`table`], [`plot`], [`pages`] and [`overview`] show it.
#![forbid(unsafe_code)]

pub mod bar;
pub mod bench;
mod cleanup;
pub mod corba;
pub mod files;
pub mod floor;
pub mod format;
pub mod globus;
mod hosts;
mod jvm;
mod machine;
pub mod measure;
pub mod messages;
pub mod mpi;
mod mpi_pingpong;
pub mod options;
mod output;
pub mod overview;
pub mod pages;
pub mod pair;
mod parts;
pub mod place;
pub mod plot;
pub mod report;
pub mod rows;
pub mod rsr;
pub mod sandbox;
pub mod session;
pub mod stats;
pub mod table;
pub mod tune;
mod worker;

use crate::bench::Bench;
use crate::options::{PartOptions, RunOptions};
use crate::pages::Group;
use crate::parts::Part;
use crate::report::Report;
use anyhow::{Result, bail};
use std::path::PathBuf;

/// The command line of `motet bench`.
#[derive(Debug, Default, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Options {
    /// A tool instead of the rows
    #[command(subcommand)]
    pub tool: Option<Tool>,
    /// How to measure and what to print
    #[command(flatten)]
    pub run: RunOptions,
    /// Only these rows (names or letters of the table), or `programs`: all rows of other projects' programs
    #[arg(long, value_name = "ROW", value_delimiter = ',')]
    pub only: Vec<String>,
    /// The report of the coupled demo from which its row is taken
    #[arg(long, value_name = "FILE", default_value = "report/report.json")]
    pub demo_report: PathBuf,
    /// Run as a measuring process
    #[arg(long, hide = true, num_args = 1.., allow_hyphen_values = true)]
    pub worker: Vec<String>,
}

/// A tool that measures one kind of communication.
#[derive(Debug, clap::Subcommand)]
pub enum Tool {
    /// Measure CORBA calls over every transport: empty calls, sequences, strings, and where their time goes
    Corba(corba::Options),
    /// Measure messages between processes: Motet beside UCX, libfabric, Open MPI and MPICH
    Messages(messages::Options),
    /// Measure MPI libraries on Motet beside the same libraries without Motet
    Mpi(mpi::Options),
    /// Measure remote files: the client, the mounted file system, two test hosts, many clients
    Files(files::Options),
    /// Measure GridFTP over the driver of Globus XIO and under motet run, beside TCP
    Globus(globus::Options),
    /// Measure remote service requests beside messages of the engine and omniORB
    Rsr(rsr::Options),
    /// Measure sessions, groups and circuits beside their limits, and collective operations beside Open MPI
    Session(session::Options),
}

impl Options {
    /// The run options that apply: those of the tool, if one is named.
    pub fn run_options(&mut self) -> &mut RunOptions {
        match &mut self.tool {
            Some(Tool::Corba(corba)) => &mut corba.parts.run,
            Some(Tool::Messages(messages)) => &mut messages.run,
            Some(Tool::Mpi(mpi)) => &mut mpi.run,
            Some(Tool::Files(files)) => &mut files.run,
            Some(Tool::Globus(globus)) => &mut globus.run,
            Some(Tool::Rsr(rsr)) => &mut rsr.run,
            Some(Tool::Session(session)) => &mut session.run,
            None => &mut self.run,
        }
    }
}

/// Measures and prints. `prefix` is the words that lead to this command in the running executable, as in `motet bench`.
pub fn run(options: &Options, prefix: &[&str]) -> Result<()> {
    if !options.worker.is_empty() {
        return worker::run(&options.worker);
    }
    match &options.tool {
        Some(Tool::Corba(corba)) => {
            let report = corba::measure(begin(&corba.parts.run, prefix)?, corba)?;
            return output::show(&report, &corba.parts.run, |_| Group::Corba);
        }
        Some(Tool::Messages(messages)) => {
            let report = messages::measure(begin(&messages.run, prefix)?, messages)?;
            return output::show(&report, &messages.run, |_| Group::Messages);
        }
        Some(Tool::Mpi(mpi)) => {
            let report = mpi::measure(begin(&mpi.run, prefix)?, mpi, |lines| output::show_part(lines, &mpi.run))?;
            return output::show_rest(&report, &mpi.run, |_| Group::Mpi);
        }
        Some(Tool::Files(files)) => return of_parts(files, prefix, Group::Files),
        Some(Tool::Globus(globus)) => return of_parts(globus, prefix, Group::Globus),
        Some(Tool::Rsr(rsr)) => return of_parts(rsr, prefix, Group::Rsr),
        Some(Tool::Session(session)) => return of_parts(session, prefix, Group::Session),
        None => {}
    }
    let wanted = rows::chosen(&options.only)?;
    let bench = begin(&options.run, prefix)?;
    output::show(&measure(&bench, &wanted, options)?, &options.run, rows::group)
}

/// Measures a tool by its parts; each is shown when it ends.
fn of_parts<P: Part>(options: &PartOptions<P>, prefix: &[&str], group: Group) -> Result<()> {
    let run = &options.run;
    let report = parts::measure(&begin(run, prefix)?, options, |lines| output::show_part(lines, run))?;
    output::show_rest(&report, run, |_| group)
}

fn begin(options: &RunOptions, prefix: &[&str]) -> Result<Bench> {
    if let Some(folder) = &options.figures {
        pages::prepare(folder)?;
    }
    let mut bench = Bench::new(prefix, options.quick, options.libdir.as_deref())?;
    if let Some(repetitions) = options.repetitions {
        bench.repetitions = repetitions.into();
        bench.of_programs = repetitions.into();
    }
    Ok(bench)
}

fn measure(bench: &Bench, wanted: &[&rows::Row], options: &Options) -> Result<Report> {
    let bar = output::progress(wanted.len() as u64 + 1)?;
    let (mut lines, mut curves) = (Vec::new(), Vec::new());
    bar.set_message("floor");
    let copies = machine::copies(bench);
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
    Ok(Report { machine: machine::describe(bench, &copies), lines, curves })
}
