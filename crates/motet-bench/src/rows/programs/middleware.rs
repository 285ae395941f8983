//! Communication libraries over TCP: omniORB, Open MPI, ZeroMQ, gRPC.

use super::{Plan, Target, called, missing, sandbox, words};
use crate::Options;
use crate::bar::{Bar, ProgramKind};
use crate::bench::{Bench, Series};
use crate::corba::transports::{Ends, OrbProgram, Transport, Variant};
use crate::mpi_pingpong;
use crate::place::Placement::{One, Two};
use crate::report::{Line, Unit};
use crate::sandbox::{Ready, Sandbox, Setup};
use anyhow::{Context, Result, bail};
use motet_programs::builds;

const ORB_INTERFACE: &str = include_str!("../../../../../tests/programs/omniorb_echo.idl");
const ORB_PROGRAM: &str = include_str!("../../../../../tests/programs/omniorb_echo.cc");
const PEER: &str = include_str!("../../../../../tests/bench/peer.h");

fn skipped(row: &str, what: &str, package: &str) -> Result<Vec<Line>> {
    Ok(vec![Line::not_measured(row, what, format!("skipped: {package} is not installed"))])
}

/// Row `omniorb`.
pub fn omniorb(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let what = "omniORB, calls with 64 B there and back";
    if let Some(line) = missing("omniorb", what, &["omniidl", "c++"]) {
        return line;
    }
    if !std::path::Path::new("/usr/include/omniORB4/CORBA.h").exists() {
        return skipped("omniorb", what, "libomniorb4-dev");
    }
    let sandbox = sandbox(bench)?;
    sandbox.file("omniorb_echo.idl", ORB_INTERFACE)?;
    sandbox.file("omniorb_echo.cc", ORB_PROGRAM)?;
    for step in builds::omniorb(sandbox.path("").trim_end_matches('/'), "omniorb_echo") {
        sandbox.build(&step)?;
    }
    let program = sandbox.path("omniorb_echo");
    let both = sandbox.both(|mode, port| sandbox.server(mode, &[&program, "serve", port], Ready::Says("ready")))?;
    let plan = Plan::new("omniorb", what, Unit::Ns, Target::Shown);
    let start = |setup: Setup| words(&[&program, "measure", both.port(setup.mode)]);
    let mut lines = called(&sandbox, plan, start, &format!("64 {}", bench.ms * 2), "", |ns| ns);
    drop(both);
    let failed = |error| vec![Line::not_measured("omniorb", WITH_ADAPTER, format!("{error:#}"))];
    lines.extend(with_adapter(&sandbox).unwrap_or_else(failed));
    Ok(lines)
}

const WITH_ADAPTER: &str = "omniORB with Motet's transport, calls with octets there and back";

/// omniORB with the omniORB adapter, as under `motet run`: the time of calls with few octets, the rate of calls with many.
fn with_adapter(sandbox: &Sandbox<'_>) -> Result<Vec<Line>> {
    const LARGE: usize = 65536;
    let bench = sandbox.bench;
    let pair = OrbProgram::of(sandbox, None)?;
    let ends =
        Ends::open(sandbox, &pair, Variant { transports: &[Transport::Tcp, Transport::Corba], ..Variant::USUAL })?;
    if let Some(why) = ends.missing(Transport::Corba) {
        bail!("{why}");
    }
    let questions = [64, LARGE].map(|size| format!("inout octet {size} {}", bench.ms));
    let found = ends.compare((bench.of_programs, true), ends.places(false), &questions, Vec::new())?;
    let line = |at: usize, size: &str, unit: Unit| {
        let of = |path: Transport, placement| -> Result<Series> {
            let answer = found.of((path, placement), at).with_context(|| format!("no answer over {}", path.name()))?;
            let mut series = answer.median.clone();
            if unit == Unit::GBs {
                // The octets travel there and back.
                series.values.iter_mut().for_each(|value| *value = 2.0 * LARGE as f64 / *value);
            }
            Ok(series)
        };
        let plan = Plan::new("omniorb", format!("{WITH_ADAPTER}, {size}"), unit, Target::Shown);
        anyhow::Ok(plan.line(bench, &of(Transport::Corba, Two)?, &of(Transport::Tcp, One)?, &of(Transport::Tcp, Two)?))
    };
    Ok(vec![
        line(0, "64 B", Unit::Ns)?.bar(Bar::round_trip(ProgramKind::OmniOrb)),
        line(1, "64 KiB", Unit::GBs)?.bar(Bar::bandwidth(ProgramKind::OmniOrb)),
    ])
}

/// Row `openmpi`.
pub fn openmpi(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let what = "Open MPI, btl tcp, 64 B one way";
    if let Some(line) = missing("openmpi", what, &["mpicc", "mpirun"]) {
        return line;
    }
    let sandbox = sandbox(bench)?;
    let program = mpi_pingpong::compiled(&sandbox)?;
    let mut lines = Vec::new();
    for (size, name) in [(64, "64 B one way"), (65536, "64 KiB one way")] {
        let plan = Plan::new("openmpi", format!("Open MPI, btl tcp, {name}"), Unit::Ns, Target::Shown);
        lines.extend(plan.measure(&sandbox, |setup| {
            mpi_pingpong::one_way(&sandbox, setup, &builds::MPIRUN_OVER_TCP, &program, size)
        }));
    }
    Ok(lines)
}

/// Row `mpi`: two lines of what `motet bench mpi` measures in detail.
pub fn mpi_on_motet(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let [latency, bandwidth] = crate::mpi::beside_itself(bench)?;
    let row = |line: Line| Line { row: "mpi".to_owned(), ..line };
    Ok(vec![
        row(latency).bar(Bar::one_way(ProgramKind::OpenMpi)),
        row(bandwidth).bar(Bar::bandwidth(ProgramKind::OpenMpi)),
    ])
}

/// Row `zeromq`.
pub fn zeromq(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let what = "ZeroMQ, requests and answers of 64 B";
    if !std::path::Path::new("/usr/include/zmq.h").exists() {
        return skipped("zeromq", what, "libzmq3-dev");
    }
    let sandbox = sandbox(bench)?;
    sandbox.file("peer.h", PEER)?;
    let source = sandbox.file("zeromq.c", include_str!("../../../../../tests/bench/zeromq.c"))?;
    let program = sandbox.path("zeromq");
    sandbox.build(&["cc", "-O2", "-std=gnu11", "-o", &program, &source, "-lzmq"])?;
    let both = sandbox.both_say(&[&program, "serve"])?;
    let plan = Plan::new("zeromq", what, Unit::Ns, Target::Shown);
    let start = |setup: Setup| words(&[&program, "call", both.port(setup.mode)]);
    Ok(called(&sandbox, plan, start, &format!("64 {}", bench.ms * 2), "", |ns| ns))
}

/// Row `grpc`.
pub fn grpc(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let what = "gRPC in Python, calls with 64 B there and back";
    if let Some(line) = missing("grpc", what, &["python3"]) {
        return line;
    }
    let sandbox = sandbox(bench)?;
    let python = motet_programs::find("python3").unwrap_or_default().to_string_lossy().into_owned();
    if sandbox.build(&[&python, "-c", "import grpc"]).is_err() {
        return skipped("grpc", what, "python3-grpcio");
    }
    let script = sandbox.file("grpc_echo.py", include_str!("../../../../../tests/programs/grpc_echo.py"))?;
    let both = sandbox.both_say(&["python3", &script, "serve"])?;
    let plan = Plan::new("grpc", what, Unit::Ns, Target::Shown);
    let start = |setup: Setup| words(&["python3", &script, "measure", both.port(setup.mode)]);
    Ok(called(&sandbox, plan, start, &format!("64 {}", bench.ms * 2), "", |ns| ns))
}
