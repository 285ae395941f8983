//! What lies under the calls, alone: ping-pongs of the same sizes without an ORB. One way, ns.

use super::paths::Path;
use crate::bench::{Bench, Contestant, Series};
use crate::pair::Program;
use crate::place::Placement::{self, One, Two};
use crate::rows::once;
use crate::rows::programs::middleware;
use crate::stage::{Mode, Stage, Way};
use anyhow::Result;
use motet_programs::{builds, find};
use std::cell::Cell;

/// A transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// Sockets of the kernel.
    Tcp,
    /// The same program under the sockets adapter.
    Sockets,
    /// The engine's own streams.
    Engine,
    /// Open MPI over what it chooses itself.
    Mpi,
}

impl Wire {
    /// What carries the calls of a path, where that can be measured alone.
    pub fn under(path: Path) -> Option<Self> {
        match path {
            Path::Tcp => Some(Wire::Tcp),
            Path::Unix => None,
            Path::Sockets => Some(Wire::Sockets),
            Path::Corba => Some(Wire::Engine),
        }
    }
}

const PLACES: [(Wire, Placement); 5] =
    [(Wire::Tcp, One), (Wire::Tcp, Two), (Wire::Sockets, Two), (Wire::Engine, Two), (Wire::Mpi, Two)];

/// The programs.
pub struct Wires<'a> {
    stage: &'a Stage<'a>,
    sockets: [Program; 2],
    engine: Program,
    mpi: Result<String>,
    mpi_failed: Cell<bool>,
}

impl<'a> Wires<'a> {
    /// Built; with MPI where that is installed.
    pub fn new(stage: &'a Stage<'a>) -> Result<Self> {
        let bench = stage.bench;
        let plain = bench.program("pingpong")?;
        let mut engine = bench.worker(&["ping", "engine"]);
        // The skeleton puts what arrives into a new sequence; so does this server.
        engine.serve_arguments = vec!["fresh".into()];
        let absent = ["mpicc", "mpirun"].into_iter().find(|name| find(name).is_none());
        let mpi = absent
            .map_or_else(|| middleware::mpi(stage), |name| Err(anyhow::anyhow!("skipped: {name} is not installed")));
        let sockets = [plain.clone(), plain.with_env(&bench.sockets()?)];
        Ok(Self { stage, sockets, engine, mpi, mpi_failed: Cell::new(false) })
    }

    /// Why there is no MPI.
    pub fn without_mpi(&self) -> Option<String> {
        self.mpi.as_ref().err().map(|error| format!("{error:#}"))
    }

    /// One contestant for each transport in each placement, for messages of `size`: the first so many of a fixed order.
    pub fn contestants(&self, size: usize, mpi: bool) -> Vec<Contestant<'_>> {
        let bench: &Bench = self.stage.bench;
        let arguments = [size.to_string(), bench.ms.to_string()];
        let contestant = |(wire, placement): (Wire, Placement)| -> Contestant<'_> {
            let arguments = arguments.clone();
            Box::new(move |turn| match wire {
                Wire::Tcp => once(bench, &self.sockets[0], placement, turn, &arguments),
                Wire::Sockets => once(bench, &self.sockets[1], placement, turn, &arguments),
                Wire::Engine => once(bench, &self.engine, placement, turn, &arguments),
                Wire::Mpi => Ok(self.between_ranks(size)),
            })
        };
        PLACES[..Self::count(mpi)].iter().map(|&place| contestant(place)).collect()
    }

    /// How many those are.
    pub fn count(mpi: bool) -> usize {
        PLACES.len() - usize::from(!mpi)
    }

    /// What one of them measured, of those of one size.
    pub fn of(measured: &[Series], wire: Wire, placement: Placement) -> Option<&Series> {
        let at = PLACES.iter().position(|&place| place == (wire, placement))?;
        measured.get(at).filter(|series| series.values.iter().any(|value| value.is_finite()))
    }

    /// MPI may be absent, or refuse to run here: it is no part of what is asked.
    fn between_ranks(&self, size: usize) -> f64 {
        if self.mpi_failed.get() {
            return f64::NAN;
        }
        let way = Way { mode: Mode::WithoutMotet, placement: Two };
        let told = match &self.mpi {
            Ok(program) => middleware::mpi_one_way(self.stage, way, &builds::MPIRUN, program, size),
            Err(_) => return f64::NAN,
        };
        told.unwrap_or_else(|error| {
            eprintln!("MPI: {error:#}");
            self.mpi_failed.set(true);
            f64::NAN
        })
    }
}
