//! `motet bench mpi`: MPI libraries on Motet's provider of libfabric, beside the same libraries on what they choose themselves.
//!
//! What it is: a judgement (`judged`) of what the contest of `motet bench messages` measures of other contenders (`libraries`): Open MPI 4
//! and 5, MPICH and Intel MPI, each by itself and under `motet run`, ranks on CPUs of their own, repetitions on near and on far CPUs apart;
//! the same between two test hosts (`hosts`); many more ranks than CPUs (`crowd`); CORBA calls beside messages of MPI (`corba`); and all adapters in one process (`together`). The program is
//! `tests/bench/mpi_messages.c`, compiled by each library's own compiler; its patterns are those of OSU's osu_latency, osu_bw and, of one
//! pair, osu_mbw_mr. What it is not: a test of what arrives; `crates/motet-tests` does that.

mod corba;
mod crowd;
mod hosts;
mod judged;
mod libraries;
mod together;
mod adapters;

use crate::bench::Bench;
use crate::messages::Part as Kind;
use crate::messages::contenders::Contender;
use crate::messages::contest;
use crate::messages::lines;
use crate::messages::shape::Shape;
use crate::report::{Line, Report};
use anyhow::{Context, Result};
use clap::ValueEnum;
use indicatif::ProgressBar;
use libraries::{LIBRARIES, Libraries};

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
    /// Half a round trip, 1 B to 1 MiB
    Latency,
    /// Half a round trip where two of 3 and of 8 ranks talk and the others sleep, 8 B to 64 KiB; Open MPI 4
    Idle,
    /// Messages of 8 B one way, windows of 16, 64, 65 and 256
    Rate,
    /// Half a round trip with receives that name no source, over those that name it, 8 B and 1 KiB
    AnySource,
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
type Question = (Kind, Vec<usize>);

/// Sizes beside the powers of two: one more than a power, one more than a line, a thousand.
const UNEVEN: [usize; 3] = [33, 65, 1000];
/// Those of a short run.
const FEW: [usize; 10] = [1, 8, 33, 64, 65, 256, 1000, 4 << 10, 64 << 10, 1 << 20];

impl Part {
    /// The row of its lines.
    fn word(self) -> &'static str {
        match self {
            Part::Latency => "latency",
            Part::Idle => "idle",
            Part::Rate => "rate",
            Part::AnySource => "any-source",
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
            Part::Idle => "two of several ranks talk",
            Part::Rate => "8 B, one way",
            Part::AnySource => "receives from any source",
            Part::Bandwidth => "one way, windows of 64",
            Part::Large => "one way, windows of 64, large messages",
            Part::Hosts => "between two hosts",
            Part::Crowd => "many more ranks than CPUs",
            Part::Corba => "CORBA calls beside messages of MPI",
            Part::Together => "all adapters in one process",
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
    fn questions(self, quick: bool) -> Vec<Question> {
        match self {
            Part::Latency if quick => vec![(Kind::Latency, FEW.into())],
            Part::Latency => {
                let mut sizes: Vec<usize> = (0..=20).map(|bits| 1 << bits).chain(UNEVEN).collect();
                sizes.sort_unstable();
                vec![(Kind::Latency, sizes)]
            }
            Part::Idle => vec![(Kind::Latency, vec![8, 256, 1 << 10, 64 << 10])],
            Part::Rate => vec![(Kind::Rate, vec![8])],
            Part::AnySource => vec![(Kind::Latency, vec![8, 1 << 10])],
            Part::Bandwidth => vec![(Kind::Stream, vec![64 << 10, 1 << 20])],
            Part::Large => vec![(Kind::Stream, vec![16 << 20, 64 << 20])],
            Part::Hosts => vec![(Kind::Latency, vec![8, 1 << 10, 64 << 10]), (Kind::Stream, vec![1 << 20])],
            Part::Crowd | Part::Corba | Part::Together => Vec::new(),
        }
    }

    /// In which shapes.
    fn shapes(self) -> &'static [Shape] {
        use Shape::{AnySource, Plain, Polling, Windows, Yielding};
        match self {
            Part::Idle => &[Plain, Polling(3), Polling(8), Yielding(3), Yielding(8)],
            Part::Rate => &[Windows(16), Windows(64), Windows(65), Windows(256)],
            Part::AnySource => &[Plain, AnySource],
            _ => &[Plain],
        }
    }

    /// Whether a contender on this host takes part.
    fn has(self, contender: &Contender) -> bool {
        match self {
            Part::Idle => [LIBRARIES[0].own, LIBRARIES[0].ours].contains(&contender.name),
            Part::Rate => LIBRARIES.iter().any(|known| [known.own, known.ours].contains(&contender.name)),
            Part::AnySource => contender.ours,
            _ => true,
        }
    }

    /// Whether a repetition takes so little time that there are many: enough on near and on far CPUs, where these change.
    fn is_short(self) -> bool {
        matches!(self, Part::Latency | Part::Idle | Part::Rate | Part::AnySource | Part::Bandwidth | Part::Large)
    }
}

/// Everything, or only some parts, each shown as it ends. A library that is missing, and what fails, is a line that says why.
pub fn measure(mut bench: Bench, options: &Options, show: impl Fn(&[Line]) -> Result<()>) -> Result<Report> {
    bench.ms = Part::Latency.ms(bench.quick);
    let few = bench.of_programs;
    let many = options.manner.repetitions.map_or(if bench.quick { 7 } else { 15 }, usize::from);
    let copies = crate::copies(&bench);
    let parts = Part::value_variants().iter().filter(|part| options.parts.is_empty() || options.parts.contains(part));
    let parts: Vec<Part> = parts.copied().collect();
    let libraries = Libraries::find(&bench)?;
    let missing = libraries.missing.iter().map(|(name, why)| Line::not_measured("", *name, why.clone()));
    let mut lines: Vec<Line> = missing.collect();
    if !lines.is_empty() {
        show(&lines)?;
    }
    let mut curves = Vec::new();
    let bar = crate::progress(parts.len() as u64)?;
    for part in parts {
        bar.set_message(part.title());
        bench.ms = part.ms(bench.quick);
        bench.repetitions = if part.is_short() { many } else { few };
        let bench = &bench;
        let found = match part {
            Part::Hosts => hosts::measure(bench, &libraries, &bar),
            Part::Crowd => crowd::measure(bench, &libraries, &bar),
            Part::Corba => corba::measure(bench, &libraries),
            Part::Together => together::prepare(&libraries).and_then(|ready| {
                curves = adapters::curves(bench, &ready)?;
                together::measure(bench, &ready)
            }),
            _ => contested(bench, &contenders(&libraries, part), part, &bar),
        };
        let found =
            found.unwrap_or_else(|error| vec![Line::not_measured(part.word(), part.title(), format!("{error:#}"))]);
        bar.suspend(|| show(&found))?;
        lines.extend(found);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(Report { machine: crate::machine(&bench, &copies), lines, curves })
}

/// The first library that is installed, on Motet beside itself without: half a round trip of 8 B, and the rate of 64 KiB in full windows.
pub(crate) fn beside_itself(bench: &Bench) -> Result<[Line; 2]> {
    let libraries = Libraries::find(bench)?;
    let known = libraries.all.first().context("skipped: no MPI library is installed")?.known;
    let mut contenders = libraries.contenders();
    contenders.retain(|contender| [known.ours, known.own].contains(&contender.name));
    let line = |kind: Kind, size: usize| {
        let measured = contest::run(bench, &contenders, (kind, &[size]), &ProgressBar::hidden())?;
        let best = |name: &str| {
            let of = measured.of.iter().find(|of| of.contender.name == name);
            of.and_then(|of| of.best(0)).with_context(|| format!("{name} was not measured"))
        };
        anyhow::Ok(lines::over(kind, size, &best(known.ours)?, &best(known.own)?, "over itself without Motet"))
    };
    Ok([line(Kind::Latency, 8)?, line(Kind::Stream, 64 << 10)?])
}

/// All contenders of a part on this host, in all its shapes. Those that are compared come one after the other: a contender with itself in
/// another shape, else a library with itself without Motet.
fn contenders(libraries: &Libraries, part: Part) -> Vec<Contender> {
    let in_shape = |&shape: &Shape| libraries.contenders().into_iter().map(move |contender| contender.shaped(shape));
    let mut all: Vec<Contender> = part.shapes().iter().flat_map(in_shape).filter(|of| part.has(of)).collect();
    if matches!(part, Part::Idle | Part::AnySource) {
        all.sort_by_key(|contender| contender.name);
    }
    all
}

/// All contenders of a part in turn, judged.
fn contested(bench: &Bench, contenders: &[Contender], part: Part, bar: &ProgressBar) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (kind, sizes) in part.questions(bench.quick) {
        let measured = contest::run(bench, contenders, (kind, &sizes), bar)?;
        lines.extend(judged::lines(part, kind, &measured));
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_measures_eight_bytes_between_two_ranks_alone() {
        for &part in Part::value_variants() {
            for (kind, sizes) in part.questions(false).into_iter().chain(part.questions(true)) {
                assert!(sizes != [8] || part.shapes().len() > 1, "{part:?} {kind:?}");
            }
        }
    }

    #[test]
    fn sizes_are_powers_of_two_and_some_between_them() {
        let [(_, all)] = &Part::Latency.questions(false)[..] else { panic!("one question") };
        assert!(all.is_sorted() && all.len() == 24 && all[0] == 1 && all[23] == 1 << 20);
        assert!(FEW.iter().chain(&UNEVEN).all(|size| all.contains(size)));
    }
}
