//! Test suites of other projects over the libfabric provider: mpi4py's, compared with each MPI library's own transport; Intel's benchmarks; and
//! errors in ranks when one of them is killed. `tests/mpi/exclusions.txt` lists excluded tests with reasons; results are in `docs/mpi-suites.md`.
//!
//! A selection runs by default. `MOTET_MPI_SUITE=all` runs every library on two and four ranks, with every file.

use motet_programs::find;
use motet_tests::mpi::{provider, root, skip};
use motet_tests::{folder, tool};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Exit status of `suite.py` if something is missing.
const MISSING_STATUS: i32 = 77;

/// All files of the suite but two that send nothing and take longest.
const MOST: &[&str] = &["^test_(?!datatype|pickle)"];
const MESSAGES: &[&str] = &["^test_p2p", "^test_msg", "^test_cco_(buf|obj|nb_vec)", "^test_comm_topo"];
/// Four polling ranks on two CPUs are slow.
const FOUR_RANK_FILES: &[&str] = &["^test_p2p_buf", "^test_cco_buf"];
const WINDOWS: &[&str] = &["^test_rma", "^test_win"];

/// Library, ranks, files.
const CHOSEN: &[(&str, &str, &[&str])] = &[
    ("mpich5", "2", MOST),
    ("mpich5", "4", FOUR_RANK_FILES),
    ("openmpi4", "2", MESSAGES),
    ("openmpi4-rdma", "2", WINDOWS),
    ("openmpi5", "2", MESSAGES),
    ("openmpi5", "2", WINDOWS),
    ("openmpi5", "4", &["^test_rma_nb"]), // by two domains of libfabric: neither may sleep on the other's time
    ("intel", "2", MESSAGES),
    ("intel", "2", WINDOWS),
];
const LIBRARIES: &[&str] = &["mpich5", "openmpi4", "openmpi4-rdma", "openmpi5", "intel"];

fn source(name: &str) -> PathBuf {
    root().join("tests/mpi").join(name)
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn mpi4py_passes_the_same_tests_with_motet() {
    let test = "mpi4py_passes_the_same_tests_with_motet";
    let Some(provider) = provider(test) else { return };
    let Some(target) = provider.ancestors().nth(2) else { return };
    let all = std::env::var("MOTET_MPI_SUITE").is_ok_and(|which| which == "all");
    let every = LIBRARIES.iter().flat_map(|&library| ["2", "4"].map(|ranks| (library, ranks, &[][..]))).collect();
    let runs: Vec<_> = if all { every } else { CHOSEN.to_vec() };
    let mut lost = Vec::new();
    for (library, ranks, files) in runs {
        let _exclusive = crate::exclusive_cpus();
        let mut command = Command::new("timeout");
        command.args(["2000", "python3"]).arg(source("suite.py"));
        // A test that passes over Motet is not lost; its result on the library's own transport matters only for the documents.
        command.args((!all).then_some("--rest"));
        let ran = command.arg(target).args([library, ranks]).args(files).output().expect("timeout");
        if ran.status.code() == Some(MISSING_STATUS) {
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

/// Counts the processes of a program.
fn running(program: &Path) -> usize {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    processes.filter(|entry| std::fs::read_link(entry.path().join("exe")).is_ok_and(|path| path == program)).count()
}

/// Counts the processes of a program that are still there 30 s after their launcher's end.
fn left_running(program: &Path) -> usize {
    let began = Instant::now();
    while running(program) > 0 && began.elapsed() < Duration::from_secs(30) {
        sleep(Duration::from_millis(20));
    }
    running(program)
}

/// The time in microseconds behind `words` in a line of a rank's output.
fn time_after(printed: &str, words: &str) -> Option<u128> {
    printed.lines().find_map(|line| line.strip_prefix(words)?.trim().parse().ok())
}

/// Kills rank 1. With recovery, the launcher lets the others continue, and all of them get an MPI error, whether they wait for a short or a long
/// message. By default, the launcher ends the job. Either way no rank is left. The delays are printed and not checked.
#[test]
fn ranks_get_an_error_when_one_is_killed() {
    let test = "ranks_get_an_error_when_one_is_killed";
    let Some(provider) = provider(test) else { return };
    if find("mpicc.openmpi").is_none() || find("mpirun.openmpi").is_none() {
        skip(test, "Open MPI is not installed (tests/programs/packages.txt)");
        return;
    }
    let _exclusive = crate::exclusive_cpus();
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
        let noticed = [0, 2, 3].map(|rank| {
            let noticed = time_after(&printed, &format!("rank {rank}: got an error at "));
            noticed.unwrap_or_else(|| panic!("{length} bytes, rank {rank}: {}", said(&ran))).saturating_sub(killed)
        });
        println!("{length} bytes: ranks 0, 2 and 3 were noticed {noticed:?} microseconds after rank 1 was killed");
        assert_eq!(left_running(&program), 0, "{length} bytes: ranks are left");
        let ran = run(&[], length);
        let ended = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_micros();
        assert!(!ran.status.success() && ran.status.code() != Some(124), "{length} bytes: {}", said(&ran));
        let killed = time_after(&String::from_utf8_lossy(&ran.stdout), "killed at ").expect("the time of rank 1");
        println!("{length} bytes: the job had ended {} microseconds after that", ended.saturating_sub(killed));
        assert_eq!(left_running(&program), 0, "{length} bytes: ranks are left");
    }
}

/// Intel's own benchmarks with Intel MPI: each completes, with a line for each size. The measured values are not checked.
#[test]
fn intel_mpi_benchmarks_complete() {
    let test = "intel_mpi_benchmarks_complete";
    let Some(provider) = provider(test) else { return };
    let Some(home) = tool("mpi/impi-rt") else {
        skip(test, "Intel MPI is not there (scripts/setup --tests)");
        return;
    };
    let home = home.canonicalize().expect("the folder of Intel MPI");
    let _exclusive = crate::exclusive_cpus();
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
