//! A ping-pong between two ranks of the machine's MPI (`tests/bench/mpi.c`): compiled, and run by a launcher.

use crate::sandbox::{Sandbox, Setup};
use anyhow::Result;
use motet_programs::builds;

const PEER: &str = include_str!("../../../tests/bench/peer.h");

/// Compiles the ping-pong. Returns its path.
pub fn compiled(sandbox: &Sandbox<'_>) -> Result<String> {
    sandbox.file("peer.h", PEER)?;
    let source = sandbox.file("mpi.c", include_str!("../../../tests/bench/mpi.c"))?;
    let program = sandbox.path("mpi");
    sandbox.build(&builds::mpi(&source, &program))?;
    Ok(program)
}

/// The time of one way of a message between two ranks that `launcher` starts, ns.
pub fn one_way(sandbox: &Sandbox<'_>, setup: Setup, launcher: &[&str], program: &str, size: usize) -> Result<f64> {
    // mpirun stays with rank 0; each rank goes to its own CPU by itself. One that is named `-` goes nowhere.
    let caller = sandbox.cpu(setup.placement);
    let cpus = [caller, caller.and(Some(sandbox.bench.cpus.pair[0]))];
    let cpus = cpus.map(|cpu| cpu.map_or_else(|| "-".to_owned(), |cpu| cpu.to_string()));
    let (size, ms) = (size.to_string(), (sandbox.bench.ms * 2).to_string());
    let reported =
        sandbox.client(setup, &[launcher, &["-n", "2", program, &cpus[0], &cpus[1], &size, &ms]].concat())?;
    Ok(crate::pair::parse(&reported)?.median)
}
