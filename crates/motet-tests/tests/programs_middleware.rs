//! Communication libraries over TCP: omniORB, Open MPI, gRPC. (ZeroMQ: `programs_others.rs`.)

use motet_tests::programs::{both_ways, builds, find, free_port, placed, skip, source};
use motet_tests::{folder, script};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs the steps of a recipe; each must succeed.
#[track_caller]
fn build(steps: &[Vec<String>]) {
    for step in steps {
        let output = Command::new(&step[0]).args(&step[1..]).output().unwrap_or_else(|e| panic!("{}: {e}", step[0]));
        assert!(output.status.success(), "{step:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The program for omniORB, or why there is none.
fn omniorb() -> Result<PathBuf, &'static str> {
    if find("omniidl").is_none() || !Path::new("/usr/include/omniORB4/CORBA.h").exists() {
        return Err("omniORB is not installed (examples/coupling/packages.txt)");
    }
    let folder = folder("omniorb");
    for ending in ["idl", "cc"] {
        let name = format!("omniorb_echo.{ending}");
        std::fs::copy(script(&name), folder.join(&name)).expect("a copy of the source");
    }
    build(&builds::omniorb(folder.to_str().expect("UTF-8"), "omniorb_echo"));
    Ok(folder.join("omniorb_echo"))
}

#[test]
fn omniorb_answers_every_kind_of_call() {
    let test = "omniorb_answers_every_kind_of_call";
    let program = match omniorb() {
        Ok(program) => program,
        Err(reason) => return skip(test, reason).unwrap_or_default(),
    };
    let counters = both_ways(test, &[], |stage| {
        let (program, port) = (placed(stage, &program), free_port().to_string());
        let server = stage.start(&[&program, "serve", &port]).says("ready");
        let told = stage.run(&[&program, "call", &port, "600"]);
        server.finish();
        told
    });
    if let Some(counters) = counters {
        counters.went_over_shared_memory(4);
    }
}

#[test]
fn open_mpi_over_tcp_exchanges_and_reduces() {
    let test = "open_mpi_over_tcp_exchanges_and_reduces";
    if ["mpicc", "mpirun"].iter().any(|name| find(name).is_none()) {
        return skip(test, "Open MPI is not installed (examples/coupling/packages.txt)").unwrap_or_default();
    }
    let (folder, name) = (folder("openmpi"), "mpi_exchange.c");
    let program = folder.join("mpi_exchange");
    build(&[builds::mpi(script(name).to_str().expect("UTF-8"), program.to_str().expect("UTF-8"))]);
    let counters = both_ways(test, &[], |stage| {
        let program = placed(stage, &program);
        // Three ranks that poll share two CPUs or fewer: they yield.
        let more = ["--mca", "mpi_yield_when_idle", "1", "-n", "3", &program, "60"];
        stage.run(&[&builds::MPIRUN_OVER_TCP[..], &more].concat())
    });
    // Ranks that only poll, and never wait, may leave small messages on TCP.
    if let Some(counters) = counters {
        assert!(counters.upgraded >= 6, "{}", counters.lines);
    }
}

#[test]
fn grpc_calls_and_streams() {
    let test = "grpc_calls_and_streams";
    let python = find("python3");
    let has_it =
        |python: &PathBuf| Command::new(python).args(["-c", "import grpc"]).output().is_ok_and(|o| o.status.success());
    if !python.as_ref().is_some_and(has_it) {
        return skip(test, "python3-grpcio is not installed (tests/programs/packages.txt)").unwrap_or_default();
    }
    let counters = both_ways(test, &[], |stage| {
        let script = source(stage, "grpc_echo.py");
        let server = stage.start(&["python3", &script, "serve"]).says("port ");
        let printed = server.printed();
        let port = printed.split_whitespace().nth(1).expect("the port").to_owned();
        let told = stage.run(&["python3", &script, "call", &port, "200"]);
        server.finish();
        told
    });
    if let Some(counters) = counters {
        counters.went_over_shared_memory(2);
    }
}
