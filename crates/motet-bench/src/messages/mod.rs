//! `motet bench messages`: messages between processes, those of Motet beside UCX, libfabric, Open MPI and MPICH.
//!
//! What it is: measurements (`Part`) of every library (`peers`), in turn in one run with the floor around each (`comparison`), ranks
//! of MPI also in variants (`shape`); their lines and curves (`lines`); and measurements of Motet only (`motet_only`). A peer counts
//! with its better placement. The measuring programs are `tests/bench/*_messages.c`, one set of loops over each interface
//! (`tests/bench/messages.h`). What it is not: a test of contents, or a measurement of networks, as both ends are on this host.

pub(crate) mod comparison;
pub(crate) mod lines;
mod motet_only;
pub(crate) mod peers;
pub(crate) mod shape;

use crate::bench::Bench;
use crate::options::PartOptions;
use crate::report::{Line, Report};
use crate::{machine, output};
use anyhow::Result;
use peers::Peers;

/// The command line of `motet bench messages`.
pub type Options = PartOptions<Part>;

/// A part of the tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Half a round trip, 8 B to 4 MiB
    Latency,
    /// Messages of 8 B one way
    Rate,
    /// One way, 1 KiB to 4 MiB, one buffer at each end
    Bandwidth,
    /// One way, 64 MiB, from and into buffers that no cache holds
    Cold,
    /// One way in windows of 64, up to 512 MiB of them, one buffer at each end: what `motet bench mpi` calls bandwidth
    #[value(skip)]
    Stream,
    /// Five headers on a message, as bytes of its body, in a message of their own
    Layers,
    /// Waits for one, for any, for a completion queue, beside a thread that dispatches completions
    Waits,
    /// The receiving thread of a server: one that sleeps, the caller, one that polls
    Receptions,
    /// Four clients that send 64 KiB to one server; Motet also with 92 and 184
    Server,
    /// Nodes of two test hosts over TCP, beside plain TCP
    Tcp,
    /// One active peer beside 256 idle ones, and beside 10 000 idle channels
    Idle,
    /// Eight processes on two CPUs that pass tokens round
    Ring,
    /// Memory of peers and channels
    Memory,
}

/// Clients of the server.
const CLIENTS: usize = 4;

/// Measures the chosen parts. A library that is missing, and a part that fails, have a line that says why.
pub fn measure(mut bench: Bench, options: &Options) -> Result<Report> {
    bench.ms = if bench.quick { 10 } else { 40 }; // there are many sizes
    let bench = &bench;
    let copies = machine::copies(bench);
    let parts = options.chosen();
    let found = parts.iter().any(|part| part.has_peers()).then(|| Peers::find(bench)).transpose()?;
    let peers = found.unwrap_or_default();
    let bar = output::progress(parts.len() as u64)?;
    let missing = |(name, why): &(&'static str, String)| Line::not_measured("", *name, why.clone());
    let mut lines: Vec<Line> = peers.missing.iter().map(missing).collect();
    let mut curves = Vec::new();
    for part in parts {
        bar.set_message(part.title());
        let failed = |error| Line::not_measured(part.word(), part.title(), format!("{error:#}"));
        if part.has_peers() {
            match comparison::run(bench, &peers.all, (part, &part.sizes(bench.quick)), &bar) {
                Ok(measured) => {
                    lines.extend(lines::of(part, &measured));
                    curves.extend(lines::curves(part, &measured));
                }
                Err(error) => lines.push(failed(error)),
            }
        }
        if let Some(measure) = motet_only::of(part) {
            lines.extend(measure(bench).unwrap_or_else(|error| vec![failed(error)]));
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(Report { machine: machine::describe(bench, &copies), lines, curves })
}

impl Part {
    /// The word of the measuring programs for this part, and the row of its lines.
    pub fn word(self) -> &'static str {
        match self {
            Part::Latency => "latency",
            Part::Rate => "rate",
            Part::Bandwidth => "bandwidth",
            Part::Stream => "stream",
            Part::Cold => "cold",
            Part::Server => "server",
            Part::Layers => "layers",
            Part::Waits => "waits",
            Part::Receptions => "receptions",
            Part::Tcp => "tcp",
            Part::Idle => "idle",
            Part::Ring => "ring",
            Part::Memory => "memory",
        }
    }

    /// Whether other libraries are measured, too.
    pub fn has_peers(self) -> bool {
        matches!(self, Part::Latency | Part::Rate | Part::Bandwidth | Part::Stream | Part::Cold | Part::Server)
    }

    fn title(self) -> &'static str {
        match self {
            Part::Latency => "half a round trip",
            Part::Rate => "8 B, one way",
            Part::Bandwidth => "one way, buffers reused",
            Part::Stream => "one way, full windows",
            Part::Cold => "64 MiB one way, cold buffers",
            Part::Server => "64 KiB from several clients to one server",
            Part::Layers => "headers of five layers",
            Part::Waits => "waits",
            Part::Receptions => "the receiving thread",
            Part::Tcp => "nodes of two hosts over TCP",
            Part::Idle => "idle peers and channels",
            Part::Ring => "tokens among eight processes",
            Part::Memory => "memory of peers and channels",
        }
    }

    /// The sizes of its messages.
    pub fn sizes(self, quick: bool) -> Vec<usize> {
        let powers = |from: u32, step: usize| (from..=22).step_by(step).map(|bits| 1 << bits).collect();
        match self {
            Part::Latency if quick => [3, 6, 10, 12, 14, 16, 20, 22].map(|bits| 1 << bits).into(),
            Part::Latency => powers(3, 1),
            Part::Bandwidth => powers(10, if quick { 3 } else { 1 }),
            Part::Rate => vec![8],
            Part::Cold => vec![64 << 20],
            Part::Server => vec![64 << 10],
            _ => Vec::new(),
        }
    }

    /// The length of one measurement, ms.
    pub fn ms(self, bench: &Bench) -> usize {
        if self == Part::Cold { bench.ms.max(400) } else { bench.ms }
    }
}
