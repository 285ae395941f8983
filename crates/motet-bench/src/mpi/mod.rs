//! `motet bench mpi`: MPI libraries on the libfabric provider of Motet, beside the same libraries without Motet.
//!
//! What it is: the comparison of `motet bench messages` with other peers (`libraries`) and their targets (`targets`). The peers are
//! Open MPI 4 and 5, MPICH and Intel MPI, each without Motet and under `motet run`, with ranks on their own CPUs and separate lines for
//! near and far CPUs. Further parts are ranks on two test hosts (`hosts`), more ranks than CPUs (`oversubscribed`), CORBA calls beside
//! messages of MPI (`corba`), and all adapters in one process (`together`). The program is `tests/bench/mpi_messages.c`, compiled by the
//! compiler of each library. Its patterns are those of OSU's osu_latency, osu_bw and, with one pair, osu_mbw_mr. What it is not: a test
//! of contents; `crates/motet-tests` does that.

mod adapters;
mod corba;
mod hosts;
mod libraries;
mod oversubscribed;
mod targets;
mod together;

use crate::bench::Bench;
use crate::messages::Part as Kind;
use crate::messages::comparison;
use crate::messages::lines;
use crate::messages::peers::Peer;
use crate::messages::shape::Shape;
use crate::options::PartOptions;
use crate::report::{Line, Report};
use crate::{machine, output};
use anyhow::{Context, Result};
use indicatif::ProgressBar;
use libraries::{LIBRARIES, Libraries};

/// The command line of `motet bench mpi`.
pub type Options = PartOptions<Part>;

/// A part of the tool.
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
    /// One way in windows of 64, 16 MiB and 64 MiB; a window has at most 512 MiB
    Large,
    /// Between two test hosts, beside Open MPI's own TCP
    Hosts,
    /// More ranks than CPUs that all work: 4, 8, 64 and, without --quick, 256, beside Open MPI whose ranks yield
    Oversubscribed,
    /// CORBA calls there and back beside messages of MPI there and back
    Corba,
    /// MPI, CORBA and sockets in one process, idle and at once; a plot of their bandwidth
    Together,
}

/// A pattern of messages with its sizes.
type Question = (Kind, Vec<usize>);

/// Sizes besides the powers of two: one more than a power of two, one more than a cache line, a thousand.
const UNEVEN: [usize; 3] = [33, 65, 1000];
/// The sizes of a short run.
const QUICK_SIZES: [usize; 10] = [1, 8, 33, 64, 65, 256, 1000, 4 << 10, 64 << 10, 1 << 20];

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
            Part::Oversubscribed => "oversubscribed",
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
            Part::Oversubscribed => "more ranks than CPUs",
            Part::Corba => "CORBA calls beside messages of MPI",
            Part::Together => "all adapters in one process",
        }
    }

    /// The length of one measurement, ms. Long messages need more, as the choice between copy strategies takes whole messages.
    fn ms(self, quick: bool) -> usize {
        match (self, quick) {
            (Part::Large, _) => 600,
            (Part::Bandwidth, _) => 200,
            (_, true) => 10,
            (_, false) => 40,
        }
    }

    /// The patterns of two ranks.
    fn questions(self, quick: bool) -> Vec<Question> {
        match self {
            Part::Latency if quick => vec![(Kind::Latency, QUICK_SIZES.into())],
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
            Part::Oversubscribed | Part::Corba | Part::Together => Vec::new(),
        }
    }

    /// The variants of the patterns.
    fn shapes(self) -> &'static [Shape] {
        use Shape::{AnySource, Plain, Polling, Windows, Yielding};
        match self {
            Part::Idle => &[Plain, Polling(3), Polling(8), Yielding(3), Yielding(8)],
            Part::Rate => &[Windows(16), Windows(64), Windows(65), Windows(256)],
            Part::AnySource => &[Plain, AnySource],
            _ => &[Plain],
        }
    }

    /// Whether a peer on this host takes part.
    fn has(self, peer: &Peer) -> bool {
        match self {
            Part::Idle => [LIBRARIES[0].without_motet, LIBRARIES[0].with_motet].contains(&peer.name),
            Part::Rate => LIBRARIES.iter().any(|known| [known.without_motet, known.with_motet].contains(&peer.name)),
            Part::AnySource => peer.ours,
            _ => true,
        }
    }

    /// Whether repetitions are short, so that many are made: enough on near and on far CPUs where the distance changes.
    fn is_short(self) -> bool {
        matches!(self, Part::Latency | Part::Idle | Part::Rate | Part::AnySource | Part::Bandwidth | Part::Large)
    }
}

/// Measures the chosen parts, each shown when it ends. A library that is missing, and a part that fails, have a line that says why.
pub fn measure(mut bench: Bench, options: &Options, show: impl Fn(&[Line]) -> Result<()>) -> Result<Report> {
    bench.ms = Part::Latency.ms(bench.quick);
    let few = bench.of_programs;
    let many = options.run.repetitions.map_or(if bench.quick { 7 } else { 15 }, usize::from);
    let copies = machine::copies(&bench);
    let parts = options.chosen();
    let libraries = Libraries::find(&bench)?;
    let missing = libraries.missing.iter().map(|(name, why)| Line::not_measured("", *name, why.clone()));
    let mut lines: Vec<Line> = missing.collect();
    if !lines.is_empty() {
        show(&lines)?;
    }
    let mut curves = Vec::new();
    let bar = output::progress(parts.len() as u64)?;
    for part in parts {
        bar.set_message(part.title());
        bench.ms = part.ms(bench.quick);
        bench.repetitions = if part.is_short() { many } else { few };
        let bench = &bench;
        let found = match part {
            Part::Hosts => hosts::measure(bench, &libraries, &bar),
            Part::Oversubscribed => oversubscribed::measure(bench, &libraries, &bar),
            Part::Corba => corba::measure(bench, &libraries),
            Part::Together => together::prepare(&libraries).and_then(|ready| {
                curves = adapters::curves(bench, &ready)?;
                together::measure(bench, &ready)
            }),
            _ => compare(bench, &peers(&libraries, part), part, &bar),
        };
        let found =
            found.unwrap_or_else(|error| vec![Line::not_measured(part.word(), part.title(), format!("{error:#}"))]);
        bar.suspend(|| show(&found))?;
        lines.extend(found);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(Report { machine: machine::describe(&bench, &copies), lines, curves })
}

/// The first installed library on Motet over itself without Motet: half a round trip of 8 B, and the rate of 64 KiB in full windows.
pub(crate) fn beside_itself(bench: &Bench) -> Result<[Line; 2]> {
    let libraries = Libraries::find(bench)?;
    let known = libraries.all.first().context("skipped: no MPI library is installed")?.known;
    let mut peers = libraries.peers();
    peers.retain(|peer| [known.with_motet, known.without_motet].contains(&peer.name));
    let line = |kind: Kind, size: usize| {
        let measured = comparison::run(bench, &peers, (kind, &[size]), &ProgressBar::hidden())?;
        let best = |name: &str| {
            let of = measured.of.iter().find(|of| of.peer.name == name);
            of.and_then(|of| of.best(0)).with_context(|| format!("{name} was not measured"))
        };
        anyhow::Ok(lines::over(
            kind,
            size,
            &best(known.with_motet)?,
            &best(known.without_motet)?,
            "over itself without Motet",
        ))
    };
    Ok([line(Kind::Latency, 8)?, line(Kind::Stream, 64 << 10)?])
}

/// All peers of a part on this host, in all its variants. Peers that are compared with each other follow each other: a peer and its
/// other variants, else a library and itself without Motet.
fn peers(libraries: &Libraries, part: Part) -> Vec<Peer> {
    let in_shape = |&shape: &Shape| libraries.peers().into_iter().map(move |peer| peer.shaped(shape));
    let mut all: Vec<Peer> = part.shapes().iter().flat_map(in_shape).filter(|of| part.has(of)).collect();
    if matches!(part, Part::Idle | Part::AnySource) {
        all.sort_by_key(|peer| peer.name);
    }
    all
}

/// Measures all peers of a part in turn, and compares them with their targets.
fn compare(bench: &Bench, peers: &[Peer], part: Part, bar: &ProgressBar) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (kind, sizes) in part.questions(bench.quick) {
        let measured = comparison::run(bench, peers, (kind, &sizes), bar)?;
        lines.extend(targets::lines(part, kind, &measured));
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn no_part_measures_only_eight_bytes_of_two_ranks() {
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
        assert!(QUICK_SIZES.iter().chain(&UNEVEN).all(|size| all.contains(size)));
    }
}
