//! Communication libraries over TCP: omniORB, Open MPI, ZeroMQ, gRPC.

use super::{Asked, Plan, called, missing, words};
use crate::Options;
use crate::bench::{Bench, Series};
use crate::corba::paths::{Ends, Pair, Path, Variant};
use crate::overview::{Bar, Program};
use crate::place::Placement::{One, Two};
use crate::report::{Line, Unit};
use crate::stage::{Ready, Stage, Way};
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
    let stage = Stage::new(bench)?;
    stage.file("omniorb_echo.idl", ORB_INTERFACE)?;
    stage.file("omniorb_echo.cc", ORB_PROGRAM)?;
    for step in builds::omniorb(stage.path("").trim_end_matches('/'), "omniorb_echo") {
        stage.build(&step)?;
    }
    let program = stage.path("omniorb_echo");
    let both = stage.both(|mode, port| stage.server(mode, &[&program, "serve", port], Ready::Says("ready")))?;
    let plan = Plan::new("omniorb", what, Unit::Ns, Asked::Shown);
    let start = |way: Way| words(&[&program, "measure", both.port(way.mode)]);
    let mut lines = vec![called(&stage, plan, start, &format!("64 {}", bench.ms * 2), "", |ns| ns)];
    drop(both);
    let failed = |error| vec![Line::not_measured("omniorb", ADAPTED, format!("{error:#}"))];
    lines.extend(by_adapter(&stage).unwrap_or_else(failed));
    Ok(lines)
}

const ADAPTED: &str = "omniORB with Motet's transport, calls with octets there and back";

/// The same ORB with Motet's transport in it, as under `motet run`: times of calls with few octets, the rate of calls with many.
fn by_adapter(stage: &Stage<'_>) -> Result<Vec<Line>> {
    const LARGE: usize = 65536;
    let bench = stage.bench;
    let pair = Pair::of(stage, None)?;
    let ends = Ends::open(stage, &pair, Variant { paths: &[Path::Tcp, Path::Corba], ..Variant::USUAL })?;
    if let Some(why) = ends.missing(Path::Corba) {
        bail!("{why}");
    }
    let questions = [64, LARGE].map(|size| format!("inout octet {size} {}", bench.ms));
    let found = ends.contest((bench.of_programs, true), ends.places(false), &questions, Vec::new())?;
    let line = |at: usize, size: &str, unit: Unit| {
        let of = |path: Path, placement| -> Result<Series> {
            let answer = found.of((path, placement), at).with_context(|| format!("no answer over {}", path.name()))?;
            let mut series = answer.median.clone();
            if unit == Unit::GBs {
                // The octets travel there and back.
                series.values.iter_mut().for_each(|value| *value = 2.0 * LARGE as f64 / *value);
            }
            Ok(series)
        };
        let plan = Plan::new("omniorb", format!("{ADAPTED}, {size}"), unit, Asked::Shown);
        anyhow::Ok(plan.line(bench, &of(Path::Corba, Two)?, &of(Path::Tcp, One)?, &of(Path::Tcp, Two)?))
    };
    Ok(vec![
        line(0, "64 B", Unit::Ns)?.bar(Bar::round_trip(Program::OmniOrb)),
        line(1, "64 KiB", Unit::GBs)?.bar(Bar::bandwidth(Program::OmniOrb)),
    ])
}

/// Row `openmpi`.
pub fn openmpi(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let what = "Open MPI, btl tcp, 64 B one way";
    if let Some(line) = missing("openmpi", what, &["mpicc", "mpirun"]) {
        return line;
    }
    let stage = Stage::new(bench)?;
    let program = mpi(&stage)?;
    let mut lines = Vec::new();
    for (size, name) in [(64, "64 B one way"), (65536, "64 KiB one way")] {
        let plan = Plan::new("openmpi", format!("Open MPI, btl tcp, {name}"), Unit::Ns, Asked::Shown);
        lines.push(plan.measure(&stage, |way| mpi_one_way(&stage, way, &builds::MPIRUN_OVER_TCP, &program, size)));
    }
    Ok(lines)
}

/// Row `mpi`: what `motet bench mpi` looks at closely.
pub fn mpi_on_motet(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let [latency, bandwidth] = crate::mpi::beside_itself(bench)?;
    let row = |line: Line| Line { row: "mpi".to_owned(), ..line };
    Ok(vec![row(latency).bar(Bar::one_way(Program::OpenMpi)), row(bandwidth).bar(Bar::bandwidth(Program::OpenMpi))])
}

/// The ping-pong between two ranks, compiled.
pub(crate) fn mpi(stage: &Stage<'_>) -> Result<String> {
    stage.file("peer.h", PEER)?;
    let source = stage.file("mpi.c", include_str!("../../../../../tests/bench/mpi.c"))?;
    let program = stage.path("mpi");
    stage.build(&builds::mpi(&source, &program))?;
    Ok(program)
}

/// ns for one way of a message of `size` between two ranks, which `launcher` starts.
pub(crate) fn mpi_one_way(stage: &Stage<'_>, way: Way, launcher: &[&str], program: &str, size: usize) -> Result<f64> {
    // mpirun stays with rank 0; each rank goes to its own CPU by itself.
    let cpus = [stage.cpu(way.placement), stage.bench.cpus.pair[0]].map(|cpu| cpu.to_string());
    let (size, ms) = (size.to_string(), (stage.bench.ms * 2).to_string());
    let told = stage.client(way, &[launcher, &["-n", "2", program, &cpus[0], &cpus[1], &size, &ms]].concat())?;
    Ok(crate::pair::parse(&told)?.median)
}

/// Row `zeromq`.
pub fn zeromq(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let what = "ZeroMQ, requests and answers of 64 B";
    if !std::path::Path::new("/usr/include/zmq.h").exists() {
        return skipped("zeromq", what, "libzmq3-dev");
    }
    let stage = Stage::new(bench)?;
    stage.file("peer.h", PEER)?;
    let source = stage.file("zeromq.c", include_str!("../../../../../tests/bench/zeromq.c"))?;
    let program = stage.path("zeromq");
    stage.build(&["cc", "-O2", "-std=gnu11", "-o", &program, &source, "-lzmq"])?;
    let both = stage.both_say(&[&program, "serve"])?;
    let plan = Plan::new("zeromq", what, Unit::Ns, Asked::Shown);
    let start = |way: Way| words(&[&program, "call", both.port(way.mode)]);
    Ok(vec![called(&stage, plan, start, &format!("64 {}", bench.ms * 2), "", |ns| ns)])
}

/// Row `grpc`.
pub fn grpc(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let what = "gRPC in Python, calls with 64 B there and back";
    if let Some(line) = missing("grpc", what, &["python3"]) {
        return line;
    }
    let stage = Stage::new(bench)?;
    let python = motet_programs::find("python3").unwrap_or_default().to_string_lossy().into_owned();
    if stage.build(&[&python, "-c", "import grpc"]).is_err() {
        return skipped("grpc", what, "python3-grpcio");
    }
    let script = stage.file("grpc_echo.py", include_str!("../../../../../tests/programs/grpc_echo.py"))?;
    let both = stage.both_say(&["python3", &script, "serve"])?;
    let plan = Plan::new("grpc", what, Unit::Ns, Asked::Shown);
    let start = |way: Way| words(&["python3", &script, "measure", both.port(way.mode)]);
    Ok(vec![called(&stage, plan, start, &format!("64 {}", bench.ms * 2), "", |ns| ns)])
}
