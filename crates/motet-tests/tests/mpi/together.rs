//! MPI, CORBA and sockets in one process (`tests/together`): one engine carries all of them, alone or at the same time, with any allocator, and none
//! starves another.

use motet_programs::find;
use motet_tests::cpu_steal::retry_on_steal;
use motet_tests::mpi::{OPEN_MPI_4, exclusively, installed, output, root, skip};
use motet_tests::{engine, folder};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// The command and the program. `None`, with a message, if something is missing.
fn program(test: &str) -> Option<(PathBuf, PathBuf)> {
    let built = engine()?.parent()?;
    let missing = ["libfabric/libmotet-fi.so", "libmotet_omniorb42.so", "libmotet_sockets.so", "motet"];
    if let Some(missing) = missing.iter().find(|name| !built.join(name).exists()) {
        skip(test, &format!("{missing} is not built (make build)"));
        return None;
    }
    if find("omniidl").is_none() || find("mpicxx.openmpi").is_none() {
        skip(test, "omniidl or mpicxx.openmpi is not installed (tests/programs/packages.txt)");
        return None;
    }
    let (into, from) = (folder(&format!("together-{test}")), root().join("tests/together"));
    succeeds(Command::new("omniidl").arg("-bcxx").arg("-C").arg(&into).arg(from.join("together.idl")));
    let sources = ["main", "mpi", "corba", "sockets"].map(|name| from.join(format!("{name}.cc")));
    let program = into.join("together");
    let mut compiler = Command::new("mpicxx.openmpi");
    compiler.args(["-std=c++17", "-O2", "-DOMPI_SKIP_MPICXX", "-Wall", "-Wextra", "-Werror"]);
    compiler.arg("-I").arg(&into).arg("-I").arg(&from).args(sources).arg(into.join("togetherSK.cc"));
    succeeds(compiler.arg("-o").arg(&program).args(["-lomniORB4", "-lomnithread", "-lpthread"]));
    Some((built.join("motet"), program))
}

fn succeeds(command: &mut Command) {
    let ran = command.output().expect("a program");
    assert!(ran.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

/// A job of two ranks under `motet run` (`tests/together/main.cc`).
fn job(motet: &Path, program: &Path, words: &[&str]) -> Option<Command> {
    let mpi = installed("together", &[OPEN_MPI_4]).pop()?;
    let all = mpi.launcher(2, &["--bind-to", "none"]).into_iter().chain([program.display().to_string()]);
    let all: Vec<String> = all.chain(words.iter().map(|word| (*word).to_owned())).collect();
    Some(mpi.run(motet, &["--set", "mpi=on"], &all))
}

/// Checks the output: a line for each adapter and size, and that each process has one engine and one thread of Motet.
#[track_caller]
fn one_engine(said: &str, adapters: &str, sizes: &[&str]) {
    for size in sizes {
        for adapter in adapters.chars() {
            let times = adapters.matches(adapter).count();
            let lines = said.lines().filter(|line| line.starts_with(&format!("{adapter} {size} ")));
            let counts: Vec<u64> = lines.filter_map(|line| line.split(' ').nth(4)?.parse().ok()).collect();
            assert!(counts.len() == times && counts.iter().all(|count| *count >= 10), "{adapter} {size}: {said}");
        }
    }
    for rank in ["rank 0: ", "rank 1: "] {
        let census = said.lines().find_map(|line| line.strip_prefix(rank)).expect(said);
        let (counts, threads) = census.split_once(", threads ").expect(census);
        assert_eq!(counts, "engines 1, node stats pages 1", "{rank}");
        let ours: Vec<_> = threads.split(' ').filter(|thread| thread.starts_with("motet")).collect();
        assert_eq!(ours, ["motet-progress=1"], "{rank}{census}");
    }
}

#[test]
fn three_adapters_share_an_engine_alone_and_at_once() {
    let _shared = crate::shared_cpus();
    let Some((motet, program)) = program("three_adapters_share_an_engine_alone_and_at_once") else { return };
    for used in ["m", "c", "s", "mcs"] {
        let Some(mut job) = job(&motet, &program, &["150", "mcs", used, "8", "65536", "2000000"]) else { return };
        one_engine(&output(&mut job), used, &["8", "65536", "2000000"]);
    }
}

/// Each rank has two threads that poll for MPI and one that computes, on CPUs that CORBA calls and sockets need as well.
#[test]
fn no_adapter_starves_beside_busy_threads() {
    let _shared = crate::shared_cpus();
    let Some((motet, program)) = program("no_adapter_starves_beside_busy_threads") else { return };
    let Some(mut job) = job(&motet, &program, &["500", "mmcsx", "mcsx", "8", "65536"]) else { return };
    one_engine(&output(&mut job), "mmcs", &["8", "65536"]);
}

#[test]
fn other_allocators_make_no_difference() {
    let _shared = crate::shared_cpus();
    let test = "other_allocators_make_no_difference";
    let Some((motet, program)) = program(test) else { return };
    for allocator in ["libjemalloc.so.2", "libmimalloc.so.2.0"] {
        let Some(path) = library(allocator) else {
            skip(test, &format!("{allocator} is not installed (tests/packages.txt)"));
            continue;
        };
        let Some(mut job) = job(&motet, &program, &["150", "mcs", "mcs", "8", "300000"]) else { return };
        one_engine(&output(job.env("LD_PRELOAD", path)), "mcs", &["8", "300000"]);
    }
}

fn library(name: &str) -> Option<String> {
    let listed = Command::new("/sbin/ldconfig").arg("-p").output().ok()?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let line = listed.lines().find(|line| line.trim_start().starts_with(&format!("{name} ")))?;
    line.rsplit(" => ").next().map(str::to_owned)
}

/// Two libraries with their own allocator hooks deadlock: libfabric's issues 9003 and 10879.
#[test]
fn libraries_do_not_interpose_the_allocator() {
    let _shared = crate::shared_cpus();
    let Some(built) = engine().and_then(|engine| engine.parent().map(Path::to_owned)) else { return };
    let hooks = ["malloc", "calloc", "realloc", "free", "mmap", "munmap", "mremap", "madvise", "brk", "sbrk"];
    for name in ["libmotet.so", "libmotet_sockets.so", "libmotet_omniorb42.so", "libfabric/libmotet-fi.so"] {
        let listed = Command::new("nm").args(["-D", "--defined-only"]).arg(built.join(name)).output().expect("nm");
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let defined: Vec<_> = listed.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
        assert!(defined.len() > 1 || name.contains("libfabric"), "{name} defines nothing");
        assert!(!defined.iter().any(|symbol| hooks.contains(symbol)), "{name}: {defined:?}");
    }
}

/// MPI does not poll here: beside an MPI that polls on every CPU, waiting streams use the kernel.
#[test]
fn motet_why_shows_all_adapters_on_the_same_memory() {
    let _shared = crate::shared_cpus();
    let test = "motet_why_shows_all_adapters_on_the_same_memory";
    let Some((motet, program)) = program(test) else { return };
    let shown = retry_on_steal(test, || {
        let Some(mut job) = job(&motet, &program, &["10000", "mcs", "cs", "4096"]) else { return Ok(()) };
        // Open gates: shared memory is then used under any load of the CPUs.
        let job = job.env("MOTET_PATIENCE", "300ms");
        exclusively(|| shows_all_adapters(&motet, &program, job))
    });
    shown.unwrap_or_else(|wrong| panic!("{wrong}"));
}

/// Polls `motet why` while the job runs, until it shows all adapters. Returns its last report otherwise; the job must succeed.
fn shows_all_adapters(motet: &Path, program: &Path, job: &mut Command) -> Result<(), String> {
    let mut job = job.stdout(Stdio::piped()).spawn().expect("timeout");
    let mut shown = Err("the job has ended already".to_owned());
    let ended = loop {
        if let Some(ended) = job.try_wait().expect("its status") {
            break ended;
        }
        if shown.is_err() {
            let why = Command::new(motet).args(["why", "--json"]).output().expect("motet");
            // A report of a job that is about to exit does not count.
            if job.try_wait().expect("its status").is_none() {
                shown = all_adapters(program, &serde_json::from_slice(&why.stdout).expect("JSON"));
            }
        }
        sleep(Duration::from_millis(200));
    };
    if ended.success() { shown } else { Err(format!("the job: {ended}")) }
}

/// Checks that both ranks have MPI, CORBA and sockets over shared memory. The error says what is missing.
fn all_adapters(program: &Path, why: &serde_json::Value) -> Result<(), String> {
    let ours = |process: &&serde_json::Value| {
        process["command"].as_str().unwrap_or_default().starts_with(program.to_str().expect("a plain path"))
    };
    let ranks: Vec<_> = why["processes"].as_array().expect("processes").iter().filter(ours).collect();
    let sent = |pair: &serde_json::Value, way: &str| pair["sent"][way].as_u64().unwrap_or(0);
    let holds = |what: &str, holds: bool| if holds { Ok(()) } else { Err(format!("{what}: {why}")) };
    holds("two ranks", ranks.len() == 2)?;
    let mut over_memory = 0;
    for rank in ranks {
        let links = rank["nodes"][0]["links"].as_array().cloned().unwrap_or_default();
        let used = |link: &serde_json::Value| {
            link["drivers"]
                .as_array()
                .is_some_and(|ways| ways.iter().any(|way| way["in_use"] == true && way["driver"] == "shm"))
        };
        holds("MPI", !links.is_empty() && links.iter().all(used))?;
        let moved = |pair: &&serde_json::Value| sent(pair, "fast") + sent(pair, "tcp") > 100_000;
        let pairs = rank["pairs"].as_array().cloned().unwrap_or_default();
        let upgraded: Vec<_> = pairs.iter().filter(moved).collect();
        holds("CORBA and sockets", upgraded.len() >= 2)?;
        holds("over memory", upgraded.iter().all(|pair| pair["reason"] == 0))?;
        over_memory += upgraded.iter().map(|pair| sent(pair, "fast")).sum::<u64>();
    }
    holds("bytes over the memory", over_memory > 0)
}
