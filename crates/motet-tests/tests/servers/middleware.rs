//! Communication libraries over TCP: omniORB, Open MPI, gRPC. (ZeroMQ: `servers/others.rs`.)

use motet_tests::programs::{both_ways, builds, find, free_port, placed, skip, source};
use motet_tests::{folder, script};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs the commands of a build; each must succeed.
#[track_caller]
fn build(steps: &[Vec<String>]) {
    for step in steps {
        let output = Command::new(&step[0]).args(&step[1..]).output().unwrap_or_else(|e| panic!("{}: {e}", step[0]));
        assert!(output.status.success(), "{step:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Builds a program for omniORB from these sources (relative to `tests/programs`); the first one names it. The error says why it cannot be built.
fn omniorb(sources: &[&str]) -> Result<PathBuf, &'static str> {
    if find("omniidl").is_none() || !Path::new("/usr/include/omniORB4/CORBA.h").exists() {
        return Err("omniORB is not installed (examples/coupling/packages.txt)");
    }
    let name = Path::new(sources[0]).file_stem().and_then(|name| name.to_str()).expect("a name");
    let folder = folder(name);
    for source in sources {
        let file = Path::new(source).file_name().expect("a file");
        std::fs::copy(script(source), folder.join(file)).expect("a copy of the source");
    }
    build(&builds::omniorb(folder.to_str().expect("UTF-8"), name));
    Ok(folder.join(name))
}

#[test]
fn omniorb_answers_every_kind_of_call() {
    let test = "omniorb_answers_every_kind_of_call";
    let program = match omniorb(&["omniorb_echo.idl", "omniorb_echo.cc"]) {
        Ok(program) => program,
        Err(reason) => return skip(test, reason).unwrap_or_default(),
    };
    let counters = both_ways(test, &[], |sandbox| {
        let (program, port) = (placed(sandbox, &program), free_port().to_string());
        let server = sandbox.start(&[&program, "serve", &port]).says("ready");
        let output = sandbox.run(&[&program, "call", &port, "600"]);
        server.finish();
        output
    });
    if let Some(counters) = counters {
        counters.went_over_shared_memory(4);
    }
}

/// The program of `motet bench corba`: each call with each type and size returns equal data. Where the C++ mapping lets data arrive in the caller's
/// memory (all types but strings), it must, because the benchmark of warm memory relies on it.
#[test]
fn omniorb_carries_every_type_in_every_direction() {
    const SIZES: [usize; 6] = [1, 100, 4096, 65536, 1 << 20, 16 << 20];
    let test = "omniorb_carries_every_type_in_every_direction";
    let sources = ["../bench/corba.idl", "../bench/corba.cc", "../bench/corba_data.h"];
    let program = match omniorb(&sources) {
        Ok(program) => program,
        Err(reason) => return skip(test, reason).unwrap_or_default(),
    };
    let limit = ["-ORBgiopMaxMsgSize", "67108864"];
    let sizes = SIZES.map(|size| size.to_string());
    let expected: String = SIZES.iter().map(|&size| equal_in_all_types(size)).collect();
    let counters = both_ways(test, &[], |sandbox| {
        let mut output = String::new();
        for endpoint in ["giop:tcp:127.0.0.1:".to_owned(), format!("giop:unix:{}", sandbox.path("socket"))] {
            let program = placed(sandbox, &program);
            let serve = [&[&program, "serve", "-ORBendPoint", &endpoint][..], &limit].concat();
            let server = sandbox.start(&serve).says("\n");
            let printed = server.printed();
            let uri = printed.trim().strip_prefix("object ").expect("the object's address").to_owned();
            let sizes: Vec<&str> = sizes.iter().map(String::as_str).collect();
            output += &sandbox.run(&[&[program.as_str(), "check", &uri], &sizes[..], &limit].concat());
            server.finish();
        }
        assert_eq!(output, [&*expected; 2].concat());
        output
    });
    if let Some(counters) = counters {
        counters.went_over_shared_memory(2);
    }
}

/// The output of `corba check` when all data is equal.
fn equal_in_all_types(size: usize) -> String {
    let equal = |(name, element): (&str, usize)| {
        let count = (size / element).max(1);
        let warm = if name == "string" { "" } else { " in-place" };
        format!("{name} {count} elements: in out inout{warm} refill{warm} marshalled\n")
    };
    [("long", 4), ("double", 8), ("octet", 1), ("struct", 24), ("string", 1)].map(equal).concat()
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
    let counters = both_ways(test, &[], |sandbox| {
        let program = placed(sandbox, &program);
        // Three polling ranks share two CPUs or fewer, so they yield.
        let more = ["--mca", "mpi_yield_when_idle", "1", "-n", "3", &program, "60"];
        sandbox.run(&[&builds::MPIRUN_OVER_TCP[..], &more].concat())
    });
    // Ranks that only poll and never wait may leave small messages on TCP.
    if let Some(counters) = counters {
        assert!(counters.upgraded >= 6, "{}", counters.lines);
    }
}

#[test]
fn grpc_calls_and_streams_complete() {
    let test = "grpc_calls_and_streams_complete";
    let python = find("python3");
    let has_it =
        |python: &PathBuf| Command::new(python).args(["-c", "import grpc"]).output().is_ok_and(|o| o.status.success());
    if !python.as_ref().is_some_and(has_it) {
        return skip(test, "python3-grpcio is not installed (tests/programs/packages.txt)").unwrap_or_default();
    }
    let counters = both_ways(test, &[], |sandbox| {
        let script = source(sandbox, "grpc_echo.py");
        let server = sandbox.start(&["python3", &script, "serve"]).says("port ");
        let printed = server.printed();
        let port = printed.split_whitespace().nth(1).expect("the port").to_owned();
        let output = sandbox.run(&["python3", &script, "call", &port, "200"]);
        server.finish();
        output
    });
    // gRPC asks with each receive how many bytes remain (TCP_INQ), so its connections stay on TCP.
    if let Some(counters) = counters {
        assert_eq!(counters.upgraded, 0, "{}", counters.lines);
    }
}
