//! Two test hosts: calls over the engine's tcp driver beside unary calls of gRPC in Python, and a startpoint that is taken up on the other host.

use super::pair::Pair;
use super::{NS_IN_MS, compare, ratio_line};
use crate::bench::{Bench, Measurement};
use crate::cleanup;
use crate::files::scene;
use crate::hosts::Hosts;
use crate::pair::{Process, Program};
use crate::place::Placement;
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::{Context, Result, ensure};
use std::cell::RefCell;
use std::fs;
use std::process::Command;
use tempfile::TempDir;

/// How many times as fast as gRPC's a call has to be.
const LEAST_OF_GRPC: f64 = 3.0;
const SCRIPT: &str = include_str!("../../../../tests/programs/grpc_echo.py");

/// gRPC's server on one host, its client on the other. They end when this is dropped.
struct Grpc {
    client: RefCell<Process>,
    _server: Process,
    _folder: TempDir,
}

impl Grpc {
    fn start(bench: &Bench, hosts: &Hosts) -> Result<Self> {
        let python = motet_programs::find("python3").context("no python3")?;
        let has_grpc = cleanup::output(Command::new(&python).args(["-c", "import grpc"]))?.status.success();
        ensure!(has_grpc, "{} has no module grpc (python3-grpcio)", python.display());
        let folder = cleanup::folder()?;
        let script = folder.path().join("grpc_echo.py");
        fs::write(&script, SCRIPT)?;
        let program = hosts.spread(Program { words: vec![python.into(), script.into()], ..Program::default() });
        let [server_cpu, client_cpu] = bench.cpus.of(Placement::Two, 0);
        let mut command = program.command(0, "serve");
        command.arg(hosts.address());
        let mut server = Process::start(command, &bench.cpus, server_cpu)?;
        let line = server.line()?;
        let port = line.strip_prefix("port ").context("gRPC's server names no port")?;
        let mut command = program.command(1, "measure");
        command.args([port, hosts.address()]);
        let client = RefCell::new(Process::start(command, &bench.cpus, client_cpu)?);
        Ok(Self { client, _server: server, _folder: folder })
    }
}

/// Part `hosts`.
pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    let hosts = Hosts::up()?;
    let (calls, threads) = (Pair::start_on(bench, "caller", &hosts)?, Pair::start_on(bench, "thread", &hosts)?);
    let call = format!("call 0 {}", bench.ms);
    let mut lines = match Grpc::start(bench, &hosts) {
        Ok(grpc) => {
            let question = format!("0 {}", bench.ms);
            let mut measurements: Vec<Measurement<'_>> = vec![
                Box::new(|_| calls.ask(&call)),
                Box::new(|_| threads.ask(&call)),
                Box::new(|_| Ok(scene::ask(&mut grpc.client.borrow_mut(), &question)?[0])),
            ];
            let series = bench.compare(bench.repetitions, false, &mut measurements)?;
            let line = |at: usize, what: &str| {
                let bound = Some(Bound::AtMost(1.0 / LEAST_OF_GRPC));
                let what = format!("empty call between test hosts, {what}");
                ratio_line(what, "hosts", ("call", &series[at]), ("gRPC in Python, unary call", &series[2]), bound)
            };
            vec![line(0, "the callers poll"), line(1, "one thread")]
        }
        Err(error) => {
            let series = compare(bench, &[(&calls, call)])?;
            let line = Line::new("hosts", "empty call between test hosts, the callers poll");
            let line = line.figure(Quantity::of("call", &series[0].values, Unit::Ns)).floors(&series[0].floors);
            vec![line.note(format!("gRPC: {error:#}"))]
        }
    };
    let series = compare(bench, &[(&threads, format!("take-up 0 {}", bench.ms))])?;
    let times: Vec<f64> = series[0].values.iter().map(|ns| ns / NS_IN_MS).collect();
    let what =
        "startpoint made, serialised, taken up on another test host by a node without a link, first call answered";
    lines.push(
        Line::new("hosts", what)
            .figure(Quantity::of("together", &times, Unit::Ms))
            .floors(&series[0].floors)
            .bound(Bound::AtMost(10.0)),
    );
    Ok(lines)
}
