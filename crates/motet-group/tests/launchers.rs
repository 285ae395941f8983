//! Ranks that a launcher has started form a group in the launcher's order: Open MPI's mpirun (PMIx), Hydra (PMI) and srun.
#![forbid(unsafe_code)]

use motet::node::Node;
use motet_gatekeeper::server::{Gatekeeper, Options};
use motet_group::{Membership, op};
use motet_session::paths::{DIR_VARIABLE, NAME_VARIABLE, SessionPaths};
use motet_session::{GROUP_VARIABLE, RANK_VARIABLE, SIZE_VARIABLE};
use motet_tests::mpi::{INTEL, MPICH, MPICH_BY_UCX, OPEN_MPI_4, OPEN_MPI_5, installed, output};
use motet_tests::slurm::Slurm;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Nothing takes so long.
const LIMIT: Duration = Duration::from_secs(120);
/// The ranks of a job.
const RANKS: usize = 4;

/// A gatekeeper in a thread of this process.
struct Session {
    paths: SessionPaths,
    _runtime: tokio::runtime::Runtime,
    _dir: tempfile::TempDir,
}

impl Session {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let paths = SessionPaths::within(&dir.path().join("sessions"), "test").unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let options = Options {
            paths: paths.clone(),
            host: Some("here".to_owned()),
            listen: None,
            directory: None,
            containers: None,
        };
        let gatekeeper = runtime.block_on(Gatekeeper::start(options)).unwrap();
        runtime.spawn(async move { gatekeeper.run(std::future::pending()).await.unwrap() });
        Self { paths, _runtime: runtime, _dir: dir }
    }

    /// A command as `motet run --group NAME -- WORDS` starts it: one process, which is a launcher.
    fn in_group(&self, words: &[String], environment: impl Fn(&mut Command)) -> Command {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        environment(&mut command);
        command
            .env(DIR_VARIABLE, self.paths.dir().parent().unwrap())
            .env(NAME_VARIABLE, "test")
            .env(GROUP_VARIABLE, "fluid")
            .env(RANK_VARIABLE, "0")
            .env(SIZE_VARIABLE, "1");
        command
    }
}

/// The words of a launcher, then of this test binary as a rank. `more`: words between.
fn words(launcher: Vec<String>, more: &[&str]) -> Vec<String> {
    let own = std::env::current_exe().unwrap().display().to_string();
    let rank = [&own[..], "--exact", "rank", "--ignored", "--nocapture"];
    launcher.into_iter().chain(more.iter().chain(&rank).map(|word| (*word).to_owned())).collect()
}

/// Runs the job, and checks that all ranks have been members in the launcher's order.
fn check(name: &str, command: &mut Command) {
    let said = output(command);
    // The harness of the rank's own process may write at the beginning of the line.
    let mut ranks: Vec<_> = said.lines().filter_map(|line| Some(line.split_once("member ")?.1)).collect();
    ranks.sort_unstable();
    let expected: Vec<_> = (0..RANKS).map(|rank| format!("{rank} of {RANKS}: rank {rank}, sum 6")).collect();
    assert_eq!(ranks, expected, "{name}: {said}");
}

#[test]
fn ranks_of_mpi_are_a_group_in_order() {
    let test = "ranks_of_mpi_are_a_group_in_order";
    for mpi in installed(test, &[OPEN_MPI_4, OPEN_MPI_5, MPICH, MPICH_BY_UCX, INTEL]) {
        let session = Session::start();
        let words = words(mpi.launcher(RANKS, &[]), &[]);
        check(
            mpi.name,
            &mut session.in_group(&words, |command| {
                mpi.set_environment(command);
            }),
        );
    }
}

#[test]
fn size_of_a_job_comes_from_its_pmix_server() {
    for mpi in installed("size_of_a_job_comes_from_its_pmix_server", &[OPEN_MPI_4]) {
        let session = Session::start();
        let without = ["env", "-u", "OMPI_COMM_WORLD_SIZE"];
        let words = words(mpi.launcher(RANKS, &[]), &without);
        check(
            mpi.name,
            &mut session.in_group(&words, |command| {
                mpi.set_environment(command);
            }),
        );
    }
}

#[test]
fn tasks_of_slurm_are_a_group_in_order() {
    let test = "tasks_of_slurm_are_a_group_in_order";
    let Some(slurm) = Slurm::up(test) else { return };
    for interface in ["none", "pmi2", "pmix"] {
        let session = Session::start();
        let srun = ["srun", &format!("--mpi={interface}"), "-n", &RANKS.to_string(), "--overcommit"].map(str::to_owned);
        let words = words(srun.into(), &[]);
        check(
            interface,
            &mut session.in_group(&words, |command| {
                slurm.set_environment(command);
            }),
        );
    }
}

/// The role of the ranks: this test binary itself.
#[test]
#[ignore = "a role of the other tests"]
fn rank() {
    let node = Arc::new(Node::open("").unwrap());
    let membership = Membership::attach(&node).unwrap();
    let group = membership.join_own(Some(LIMIT)).unwrap();
    let circuit = group.open("all", Some(LIMIT)).unwrap();
    let mut sum = [circuit.rank() as u64];
    circuit.all_reduce(&mut sum, op::sum).unwrap();
    let told = ["PMIX_RANK", "PMI_RANK", "SLURM_PROCID"].iter().find_map(|name| std::env::var(name).ok()).unwrap();
    println!("member {} of {}: rank {told}, sum {}", circuit.rank(), circuit.size(), sum[0]);
    circuit.barrier().unwrap();
}
