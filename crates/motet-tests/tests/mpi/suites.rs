//! Whole test suites of others over the libfabric provider: mpi4py's own, each MPI library compared with its own transport; Intel's benchmarks;
//! and what ranks are told when one of them is killed. Which tests are left out, and why, is `tests/mpi/exclusions.txt`; results are in
//! `docs/mpi-suites.md`.
//!
//! A chosen part of it runs by default. `MOTET_MPI_SUITE=all`: every library on two and four ranks, every file.

use motet_programs::find;
use motet_tests::{engine, folder, tool};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What `suite.py` says where something is missing.
const MISSING: i32 = 77;

/// All files of the suite but two that send nothing and take longest.
const MOST: &[&str] = &["^test_(?!datatype|pickle)"];
const MESSAGES: &[&str] = &["^test_p2p", "^test_msg", "^test_cco_(buf|obj|nb_vec)", "^test_comm_topo"];
/// Four ranks on two CPUs that poll take long.
const FEW: &[&str] = &["^test_p2p_buf", "^test_cco_buf"];
const WINDOWS: &[&str] = &["^test_rma", "^test_win"];

/// Library, ranks, files.
const CHOSEN: &[(&str, &str, &[&str])] = &[
    ("mpich5", "2", MOST),
    ("mpich5", "4", FEW),
    ("openmpi4", "2", MESSAGES),
    ("openmpi4-rdma", "2", WINDOWS),
    ("openmpi5", "2", MESSAGES),
    ("openmpi5", "2", WINDOWS),
    ("openmpi5", "4", &["^test_rma_nb"]), // by two domains of libfabric's: neither may sleep on the other's time
    ("intel", "2", MESSAGES),
    ("intel", "2", WINDOWS),
];
const LIBRARIES: &[&str] = &["mpich5", "openmpi4", "openmpi4-rdma", "openmpi5", "intel"];

fn skip(test: &str, why: &str) {
    eprintln!("SKIPPED {test}: {why}");
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/mpi").join(name)
}

/// The folder of the provider; `None`, loudly, where it is not built.
fn provider(test: &str) -> Option<PathBuf> {
    let folder = engine()?.parent()?.join("libfabric");
    if !folder.join("libmotet-fi.so").exists() {
        skip(test, "libfabric/libmotet-fi.so is not built (make build, libfabric-dev)");
        return None;
    }
    Some(folder)
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn mpi4py_passes_what_it_passes_without_motet() {
    let test = "mpi4py_passes_what_it_passes_without_motet";
    let Some(provider) = provider(test) else { return };
    let Some(target) = provider.ancestors().nth(2) else { return };
    let all = std::env::var("MOTET_MPI_SUITE").is_ok_and(|which| which == "all");
    let every = LIBRARIES.iter().flat_map(|&library| ["2", "4"].map(|ranks| (library, ranks, &[][..]))).collect();
    let runs: Vec<_> = if all { every } else { CHOSEN.to_vec() };
    let mut lost = Vec::new();
    for (library, ranks, files) in runs {
        let _alone = crate::alone();
        let mut command = Command::new("timeout");
        command.args(["2000", "python3"]).arg(source("suite.py"));
        // Of what passes over Motet nothing can be lost: what the library's own transport makes of it is for the figures of the documents.
        command.args((!all).then_some("--rest"));
        let ran = command.arg(target).args([library, ranks]).args(files).output().expect("timeout");
        if ran.status.code() == Some(MISSING) {
            skip(test, &said(&ran));
            continue;
        }
        print!("{}", said(&ran));
        if !ran.status.success() {
            lost.push(said(&ran));
        }
    }
    assert!(lost.is_empty(), "{}", lost.join("\n"));
}

/// Processes whose program this is.
fn running(program: &Path) -> usize {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    processes.filter(|entry| std::fs::read_link(entry.path().join("exe")).is_ok_and(|path| path == program)).count()
}

/// The same, of those that do not end in the time that a machine may take for it once their launcher has.
fn left_running(program: &Path) -> usize {
    let began = Instant::now();
    while running(program) > 0 && began.elapsed() < Duration::from_secs(30) {
        sleep(Duration::from_millis(20));
    }
    running(program)
}

/// What follows these words in a line of what a rank printed: a time of the host's clock, in microseconds.
fn time_after(printed: &str, words: &str) -> Option<u128> {
    printed.lines().find_map(|line| line.strip_prefix(words)?.trim().parse().ok())
}

/// Rank 1 is killed. The launcher lets the others go on, who all get an error of MPI's, whether they wait for a short message or a long one;
/// or ends the job itself, as it does when it is not told otherwise. Either way nobody is left. How long it takes
/// is printed, and is no matter of pass or fail.
#[test]
fn ranks_are_told_when_one_is_killed() {
    let test = "ranks_are_told_when_one_is_killed";
    let Some(provider) = provider(test) else { return };
    if find("mpicc.openmpi").is_none() || find("mpirun.openmpi").is_none() {
        skip(test, "Open MPI is not installed (tests/programs/packages.txt)");
        return;
    }
    let _alone = crate::alone();
    let program = folder("mpi-killed").join("killed");
    let mut compiler = Command::new("mpicc.openmpi");
    let compiled = compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source("killed.c"));
    let compiled = compiled.output().expect("a compiler");
    assert!(compiled.status.success(), "{}", said(&compiled));
    let program = program.canonicalize().expect("the program");
    let run = |more: &[&str], length: &str| {
        Command::new("timeout")
            .args(["120", "mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "4"])
            .args(["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "btl", "self"])
            .args(more)
            .arg(&program)
            .arg(length)
            .env("FI_PROVIDER_PATH", &provider)
            .env("FI_PROVIDER", "motet")
            .output()
            .expect("timeout")
    };
    for length in ["8", "5000", "1000000"] {
        let ran = run(&["--enable-recovery"], length);
        let printed = String::from_utf8_lossy(&ran.stdout);
        let killed = time_after(&printed, "killed at ").expect("the time of rank 1");
        let told = [0, 2, 3].map(|rank| {
            let told = time_after(&printed, &format!("rank {rank}: told at "));
            told.unwrap_or_else(|| panic!("{length} bytes, rank {rank}: {}", said(&ran))).saturating_sub(killed)
        });
        println!("{length} bytes: ranks 0, 2 and 3 were told {told:?} microseconds after rank 1 was killed");
        assert_eq!(left_running(&program), 0, "{length} bytes: ranks are left");
        let ran = run(&[], length);
        let ended = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_micros();
        assert!(!ran.status.success() && ran.status.code() != Some(124), "{length} bytes: {}", said(&ran));
        let killed = time_after(&String::from_utf8_lossy(&ran.stdout), "killed at ").expect("the time of rank 1");
        println!("{length} bytes: the job had ended {} microseconds after that", ended.saturating_sub(killed));
        assert_eq!(left_running(&program), 0, "{length} bytes: ranks are left");
    }
}

/// Intel's own benchmarks with Intel MPI: that each ends, with a line for each size. What they measure is not looked at.
#[test]
fn intels_benchmarks_end() {
    let test = "intels_benchmarks_end";
    let Some(provider) = provider(test) else { return };
    let Some(home) = tool("mpi/impi-rt") else {
        skip(test, "Intel MPI is not there (scripts/setup --tests)");
        return;
    };
    let home = home.canonicalize().expect("the folder of Intel MPI");
    let _alone = crate::alone();
    for (binary, benchmarks) in [
        ("IMB-MPI1", &["PingPong", "Sendrecv", "Allreduce", "Alltoall", "Bcast"][..]),
        ("IMB-RMA", &["Unidir_put", "Unidir_get", "Accumulate", "Fetch_and_op", "Compare_and_swap"]),
        ("IMB-NBC", &["Ibcast", "Iallreduce"]),
    ] {
        let ran = Command::new("timeout")
            .arg("300")
            .arg(home.join("bin/mpiexec.hydra"))
            .args(["-n", "2"])
            .arg(home.join("bin").join(binary))
            .args(["-npmin", "2", "-msglog", "0:16", "-iter", "50"])
            .args(benchmarks)
            .env("I_MPI_ROOT", &home)
            .env("LD_LIBRARY_PATH", home.join("lib"))
            .env("I_MPI_FABRICS", "ofi")
            .env("FI_PROVIDER", "motet")
            .env("FI_PROVIDER_PATH", &provider)
            .output()
            .expect("timeout");
        let printed = said(&ran);
        assert!(
            ran.status.success() && printed.contains("# All processes entering MPI_Finalize"),
            "{binary}: {printed}"
        );
        for benchmark in benchmarks {
            assert!(printed.contains(&format!("# Benchmarking {benchmark}")), "{binary} {benchmark}: {printed}");
        }
    }
}
