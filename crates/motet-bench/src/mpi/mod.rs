//! `motet bench mpi`: MPI libraries on Motet's provider of libfabric, beside the same libraries on what they choose themselves.
//!
//! What it is: a judgement (`judged`) of what the contest of `motet bench messages` measures of other contenders (`libraries`): Open MPI 4
//! and 5, MPICH and Intel MPI, each by itself and under `motet run`, ranks on CPUs of their own; the same between two test
//! hosts (`hosts`); many more ranks than CPUs (`crowd`); CORBA calls beside messages of MPI (`corba`); and all voices in one process (`together`). The program is
//! `tests/bench/mpi_messages.c`, compiled by each library's own compiler; its patterns are those of OSU's osu_latency, osu_bw and, of one
//! pair, osu_mbw_mr. What it is not: a test of what arrives; `crates/motet-tests` does that.

mod corba;
mod crowd;
mod hosts;
mod judged;
mod libraries;
mod together;
mod voices;

use crate::bench::Bench;
use crate::messages::Part as Kind;
use crate::messages::contenders::Contender;
use crate::messages::contest;
use crate::report::{Line, Report};
use anyhow::Result;
use clap::ValueEnum;
use indicatif::ProgressBar;
use libraries::Libraries;

/// The command line of `motet bench mpi`.
#[derive(Debug, Default, clap::Args)]
pub struct Options {
    /// How to measure and what to print
    #[command(flatten)]
    pub manner: crate::Manner,
    /// Only these parts
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    pub parts: Vec<Part>,
}

/// What can be measured by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Half a round trip, 8 B and 64 KiB
    Latency,
    /// Messages of 8 B one way, windows of 64
    Rate,
    /// One way in windows of 64, 64 KiB and 1 MiB
    Bandwidth,
    /// The same, 16 MiB and 64 MiB; a window has at most 512 MiB
    Large,
    /// Between two test hosts, beside Open MPI's own TCP
    Hosts,
    /// 64 ranks on this machine, and 256 where the run is not a short one, beside Open MPI whose ranks yield
    Crowd,
    /// CORBA calls there and back beside messages of MPI there and back
    Corba,
    /// MPI, CORBA and sockets in one process, idle and at once; a plot of their bandwidth
    Together,
}

/// A pattern of messages with its sizes.
type Question = (Kind, &'static [usize]);

impl Part {
    /// The row of its lines.
    fn word(self) -> &'static str {
        match self {
            Part::Latency => "latency",
            Part::Rate => "rate",
            Part::Bandwidth => "bandwidth",
            Part::Large => "large",
            Part::Hosts => "hosts",
            Part::Crowd => "crowd",
            Part::Corba => "corba",
            Part::Together => "together",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Part::Latency => "half a round trip",
            Part::Rate => "8 B, one way",
            Part::Bandwidth => "one way, windows of 64",
            Part::Large => "one way, windows of 64, large messages",
            Part::Hosts => "between two hosts",
            Part::Crowd => "many more ranks than CPUs",
            Part::Corba => "CORBA calls beside messages of MPI",
            Part::Together => "all voices in one process",
        }
    }

    /// How long one measurement of it takes, ms. Which way long messages come is found out by whole ones.
    fn ms(self, quick: bool) -> usize {
        match (self, quick) {
            (Part::Large, _) => 600,
            (Part::Bandwidth, _) => 200,
            (_, true) => 10,
            (_, false) => 40,
        }
    }

    /// What is asked of two ranks.
    fn questions(self) -> &'static [Question] {
        match self {
            Part::Latency => &[(Kind::Latency, &[8, 64 << 10])],
            Part::Rate => &[(Kind::Rate, &[8])],
            Part::Bandwidth => &[(Kind::Stream, &[64 << 10, 1 << 20])],
            Part::Large => &[(Kind::Stream, &[16 << 20, 64 << 20])],
            Part::Hosts => &[(Kind::Latency, &[8]), (Kind::Stream, &[1 << 20])],
            Part::Crowd | Part::Corba | Part::Together => &[],
        }
    }
}

/// Everything, or only some parts. A library that is missing, and what fails, is a line that says why.
pub fn measure(mut bench: Bench, options: &Options) -> Result<Report> {
    bench.repetitions = bench.of_programs; // ranks take their time to begin
    bench.ms = Part::Latency.ms(bench.quick);
    let copies = crate::copies(&bench);
    let parts = Part::value_variants().iter().filter(|part| options.parts.is_empty() || options.parts.contains(part));
    let parts: Vec<Part> = parts.copied().collect();
    let libraries = Libraries::find(&bench)?;
    let missing = libraries.missing.iter().map(|(name, why)| Line::not_measured("", *name, why.clone()));
    let mut lines: Vec<Line> = missing.collect();
    let mut curves = Vec::new();
    let bar = crate::progress(parts.len() as u64)?;
    for part in parts {
        bar.set_message(part.title());
        bench.ms = part.ms(bench.quick);
        let bench = &bench;
        let found = match part {
            Part::Hosts => hosts::measure(bench, &libraries, &bar),
            Part::Crowd => crowd::measure(bench, &libraries, &bar),
            Part::Corba => corba::measure(bench, &libraries),
            Part::Together => together::prepare(&libraries).and_then(|ready| {
                curves = voices::curves(bench, &ready)?;
                together::measure(bench, &ready)
            }),
            _ => contested(bench, &libraries.contenders(), part, &bar),
        };
        lines.extend(
            found.unwrap_or_else(|error| vec![Line::not_measured(part.word(), part.title(), format!("{error:#}"))]),
        );
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(Report { machine: crate::machine(&bench, &copies), lines, curves })
}

/// All contenders of a part in turn, judged.
fn contested(bench: &Bench, contenders: &[Contender], part: Part, bar: &ProgressBar) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for &(kind, sizes) in part.questions() {
        let measured = contest::run(bench, contenders, (kind, sizes), bar)?;
        lines.extend(judged::lines(part, kind, &measured));
    }
    Ok(lines)
}
