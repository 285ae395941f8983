//! The transports below CORBA calls, without an ORB: ping-pongs of the same sizes. Times are of one way, ns.

use super::transports::Transport;
use crate::bench::{Bench, Measurement, Series};
use crate::measure::once;
use crate::mpi_pingpong;
use crate::pair::Program;
use crate::place::Placement::{self, One, Two};
use crate::sandbox::{Mode, Sandbox, Setup};
use anyhow::Result;
use motet_programs::{builds, find};
use std::cell::Cell;

/// A transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawTransport {
    /// TCP sockets of the kernel.
    Tcp,
    /// The program for TCP with the sockets adapter.
    Sockets,
    /// Streams of the engine.
    Engine,
    /// Open MPI over the transport that it chooses.
    Mpi,
}

impl RawTransport {
    /// The raw transport that carries the calls of a transport, where there is one.
    pub fn under(transport: Transport) -> Option<Self> {
        match transport {
            Transport::Tcp => Some(RawTransport::Tcp),
            Transport::Unix => None,
            Transport::Sockets => Some(RawTransport::Sockets),
            Transport::Corba => Some(RawTransport::Engine),
        }
    }
}

const PLACEMENTS: [(RawTransport, Placement); 5] = [
    (RawTransport::Tcp, One),
    (RawTransport::Tcp, Two),
    (RawTransport::Sockets, Two),
    (RawTransport::Engine, Two),
    (RawTransport::Mpi, Two),
];

/// The programs.
pub struct RawTransports<'a> {
    sandbox: &'a Sandbox<'a>,
    sockets: [Program; 2],
    engine: Program,
    mpi: Result<String>,
    mpi_failed: Cell<bool>,
}

impl<'a> RawTransports<'a> {
    /// Builds the programs, with that of MPI where MPI is installed.
    pub fn new(sandbox: &'a Sandbox<'a>) -> Result<Self> {
        let bench = sandbox.bench;
        let plain = bench.program("pingpong")?;
        let mut engine = bench.worker(&["ping", "engine"]);
        // As the skeleton, this server receives into fresh memory.
        engine.serve_arguments = vec!["fresh".into()];
        let absent = ["mpicc", "mpirun"].into_iter().find(|name| find(name).is_none());
        let mpi = absent.map_or_else(
            || mpi_pingpong::compiled(sandbox),
            |name| Err(anyhow::anyhow!("skipped: {name} is not installed")),
        );
        let sockets = [plain.clone(), plain.with_env(&bench.sockets()?)];
        Ok(Self { sandbox, sockets, engine, mpi, mpi_failed: Cell::new(false) })
    }

    /// Why MPI is not measured; `None` if it is.
    pub fn without_mpi(&self) -> Option<String> {
        self.mpi.as_ref().err().map(|error| format!("{error:#}"))
    }

    /// One measurement for each transport in each placement, for messages of `size`, in a fixed order; MPI last, if it is wanted.
    pub fn measurements(&self, size: usize, mpi: bool) -> Vec<Measurement<'_>> {
        let bench: &Bench = self.sandbox.bench;
        let arguments = [size.to_string(), bench.ms.to_string()];
        let measurement = |(raw, placement): (RawTransport, Placement)| -> Measurement<'_> {
            let arguments = arguments.clone();
            Box::new(move |turn| match raw {
                RawTransport::Tcp => once(bench, &self.sockets[0], placement, turn, &arguments),
                RawTransport::Sockets => once(bench, &self.sockets[1], placement, turn, &arguments),
                RawTransport::Engine => once(bench, &self.engine, placement, turn, &arguments),
                RawTransport::Mpi => Ok(self.between_ranks(size)),
            })
        };
        PLACEMENTS[..Self::count(mpi)].iter().map(|&place| measurement(place)).collect()
    }

    /// The number of these measurements.
    pub fn count(mpi: bool) -> usize {
        PLACEMENTS.len() - usize::from(!mpi)
    }

    /// The results of one transport in one placement, of the results of one size.
    pub fn of(measured: &[Series], raw: RawTransport, placement: Placement) -> Option<&Series> {
        let at = PLACEMENTS.iter().position(|&place| place == (raw, placement))?;
        measured.get(at).filter(|series| series.values.iter().any(|value| value.is_finite()))
    }

    /// One way between two ranks; NaN if MPI is absent or fails, as no target depends on it.
    fn between_ranks(&self, size: usize) -> f64 {
        if self.mpi_failed.get() {
            return f64::NAN;
        }
        let setup = Setup { mode: Mode::WithoutMotet, placement: Two };
        let reported = match &self.mpi {
            Ok(program) => mpi_pingpong::one_way(self.sandbox, setup, &builds::MPIRUN, program, size),
            Err(_) => return f64::NAN,
        };
        reported.unwrap_or_else(|error| {
            eprintln!("MPI: {error:#}");
            self.mpi_failed.set(true);
            f64::NAN
        })
    }
}
