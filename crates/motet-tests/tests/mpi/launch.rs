//! `motet run` with MPI launchers: each MPI library selects the provider without further settings if the ranks are on several hosts, and on one host
//! if the user says so.
//!
//! The programs are those of `tests/mpi`. `carried` and `spawned` print how many ranks have a Motet node, which an MPI library opens only if it
//! selected the provider.

use motet_tests::mpi::{INTEL, MPICH, MPICH_BY_UCX, Mpi, OPEN_MPI_4, OPEN_MPI_5};
use motet_tests::mpi::{exclusively, installed, output, printed, root, skip};
use motet_tests::slurm::Slurm;
use motet_tests::{engine, folder};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const ALL: [&str; 4] = [OPEN_MPI_4, OPEN_MPI_5, MPICH, INTEL];

/// Selects the provider on one host, where the default is the library's own transport.
const ON: &[&str] = &["--set", "mpi=on"];

/// The command `motet`, beside the provider's folder. `None`, with a message, if either is not built.
fn motet(test: &str) -> Option<PathBuf> {
    let folder = engine()?.parent()?;
    let built = folder.join("libfabric/libmotet-fi.so").exists() && folder.join("motet").exists();
    if !built {
        skip(test, "motet or libfabric/libmotet-fi.so is not built (make build, libfabric-dev)");
    }
    built.then(|| folder.join("motet"))
}

fn words(launcher: Vec<String>, program: &Path, arguments: &[&str]) -> Vec<String> {
    let program = [program.display().to_string()];
    launcher.into_iter().chain(program).chain(arguments.iter().map(|word| (*word).to_owned())).collect()
}

#[test]
fn every_mpi_selects_the_provider_by_itself() {
    let _shared = crate::shared_cpus();
    let test = "every_mpi_selects_the_provider_by_itself";
    let Some(motet) = motet(test) else { return };
    for mpi in installed(test, &ALL) {
        let program = mpi.compile("carried");
        let said = output(&mut mpi.run(&motet, ON, &words(mpi.launcher(2, &[]), &program, &[])));
        assert_eq!(said, "ok 2, carried by 2\n", "{}", mpi.name);
    }
}

#[test]
fn every_mpi_within_one_host_keeps_its_own_transport() {
    let _shared = crate::shared_cpus();
    let test = "every_mpi_within_one_host_keeps_its_own_transport";
    let Some(motet) = motet(test) else { return };
    for mpi in installed(test, &ALL) {
        let program = mpi.compile("carried");
        let run = |options: &[&str]| mpi.run(&motet, options, &words(mpi.launcher(2, &[]), &program, &[]));
        assert_eq!(output(&mut run(&[])), "ok 2, carried by 0\n", "{}", mpi.name);
        assert_eq!(output(run(&[]).env("MOTET_MPI", "on")), "ok 2, carried by 2\n", "{}: MOTET_MPI", mpi.name);
        // The inner `motet run` overrides the outer one.
        let inner = [motet.display().to_string(), "run".into(), "--set".into(), "mpi=auto".into(), "--".into()];
        let inner: Vec<String> = inner.into_iter().chain(words(mpi.launcher(2, &[]), &program, &[])).collect();
        assert_eq!(output(&mut mpi.run(&motet, ON, &inner)), "ok 2, carried by 0\n", "{}: inside", mpi.name);
    }
}

#[test]
fn rank_outside_mpi_delays_no_other_rank() {
    let _shared = crate::shared_cpus();
    let test = "rank_outside_mpi_delays_no_other_rank";
    let Some(motet) = motet(test) else { return };
    let back = folder("mpi-absent-rank").join("back");
    for mpi in installed(test, &ALL) {
        let _ = std::fs::remove_file(&back);
        let program = mpi.compile("absent_rank");
        let words = words(mpi.launcher(2, &[]), &program, &[back.to_str().expect("a plain path")]);
        assert_eq!(output(&mut mpi.run(&motet, ON, &words)), "ok\n", "{}", mpi.name);
    }
}

/// MPICH alone gets this wrong over libfabric's tcp provider (docs/mpi.md).
#[test]
fn probed_messages_are_the_ones_received() {
    let _shared = crate::shared_cpus();
    let test = "probed_messages_are_the_ones_received";
    let Some(motet) = motet(test) else { return };
    for mpi in installed(test, &ALL) {
        let program = mpi.compile("graphs");
        let said = output(&mut mpi.run(&motet, ON, &words(mpi.launcher(2, &[]), &program, &[])));
        assert_eq!(said, "ok\n", "{}", mpi.name);
    }
}

#[test]
fn windows_work_in_every_mpi() {
    let _shared = crate::shared_cpus();
    let test = "windows_work_in_every_mpi";
    let Some(motet) = motet(test) else { return };
    // Open MPI 4 crashes in its osc/rdma, with and without Motet, on MPI_Compare_and_swap.
    for (name, arguments) in [(OPEN_MPI_4, &["no-compare"][..]), (OPEN_MPI_5, &[]), (MPICH, &[]), (INTEL, &[])] {
        for mpi in installed(test, &[name]) {
            let program = mpi.compile("windows");
            let said = output(&mut mpi.run(&motet, ON, &words(mpi.launcher(2, &[]), &program, arguments)));
            assert_eq!(said, "ok 2\n", "{name}");
        }
    }
}

#[test]
fn mpi_without_libfabric_runs_unharmed() {
    let _shared = crate::shared_cpus();
    let test = "mpi_without_libfabric_runs_unharmed";
    let Some(motet) = motet(test) else { return };
    for mpi in installed(test, &[MPICH_BY_UCX]) {
        let program = mpi.compile("carried");
        let said = output(&mut mpi.run(&motet, ON, &words(mpi.launcher(2, &[]), &program, &[])));
        assert_eq!(said, "ok 2, carried by 0\n");
    }
}

#[test]
fn user_settings_win_over_the_defaults() {
    let _shared = crate::shared_cpus();
    let test = "user_settings_win_over_the_defaults";
    let Some(motet) = motet(test) else { return };
    let own_transport = "ok 2, carried by 0\n";
    for mpi in installed(test, &ALL) {
        let (name, program) = (mpi.name, mpi.compile("carried"));
        let run =
            |options: &[&str], more: &[&str]| mpi.run(&motet, options, &words(mpi.launcher(2, more), &program, &[]));
        assert_eq!(output(run(ON, &[]).env("FI_PROVIDER", "tcp")), own_transport, "{name}: FI_PROVIDER");
        assert_eq!(output(&mut run(&["--set", "mpi=off"], &[])), own_transport, "{name}: --set mpi=off");
        // Open MPI 5 opens a domain for btl/ofi under ob1 as well.
        let (flag, settings): (&str, &[[&str; 2]]) = match name {
            OPEN_MPI_4 | OPEN_MPI_5 => ("--mca", &[["pml", "ob1"], ["btl", "^ofi"]]),
            MPICH => ("-genv", &[["MPIR_CVAR_CH4_NETMOD", "ucx"]]),
            _ => ("-genv", &[["I_MPI_FABRICS", "shm"]]),
        };
        let flags: Vec<&str> = settings.iter().flat_map(|[key, value]| [flag, key, value]).collect();
        assert_eq!(output(&mut run(ON, &flags)), own_transport, "{name}: {flags:?}");
        let mut job = run(ON, &[]);
        for [key, value] in settings {
            job.env(if flag == "--mca" { format!("OMPI_MCA_{key}") } else { (*key).to_owned() }, value);
        }
        assert_eq!(output(&mut job), own_transport, "{name}: {settings:?}");
    }
}

#[test]
fn spawned_ranks_connect_to_their_parents() {
    let _shared = crate::shared_cpus();
    let test = "spawned_ranks_connect_to_their_parents";
    let Some(motet) = motet(test) else { return };
    for mpi in installed(test, &[OPEN_MPI_4, OPEN_MPI_5, MPICH]) {
        let program = mpi.compile("spawned");
        let said = output(&mut mpi.run(&motet, ON, &words(mpi.launcher(2, &[]), &program, &["spawn"])));
        assert_eq!(said, "ok spawn 4, carried by 4\n", "{}", mpi.name);
    }
}

/// A child that gets SIGTERM when dropped.
struct TerminateOnDrop(Child);

impl Drop for TerminateOnDrop {
    fn drop(&mut self) {
        // Not SIGKILL: `timeout` and launchers pass SIGTERM on to the processes that they started.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

/// Runs a job that serves and one that connects to it, started separately.
fn meet(mpi: &Mpi, motet: &Path, program: &Path, port: &Path, more: &[&str]) {
    let _ = std::fs::remove_file(port);
    let at = port.to_str().expect("a plain path");
    let job = |what: &str| mpi.run(motet, ON, &words(mpi.launcher(2, more), program, &[what, at]));
    let serves = job("serve").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("timeout");
    let calls = job("call").output().expect("timeout");
    let serves = serves.wait_with_output().expect("its end");
    // The library decides which of the two groups has the lower ranks.
    assert_eq!(printed(&serves) + &printed(&calls), "ok connect 4, carried by 4\n", "{}", mpi.name);
}

#[test]
fn separately_started_jobs_connect() {
    let _shared = crate::shared_cpus();
    let test = "separately_started_jobs_connect";
    let Some(motet) = motet(test) else { return };
    for mpi in installed(test, &[MPICH]) {
        exclusively(|| meet(&mpi, &motet, &mpi.compile("spawned"), &folder("mpi-connect").join("mpich"), &[]));
    }
    for mpi in installed(test, &[OPEN_MPI_4]) {
        let uri = folder("mpi-connect").join("uri");
        let _ = std::fs::remove_file(&uri);
        let mut server = Command::new("timeout");
        server
            .args(["240", "ompi-server", "--no-daemonize", "-r"])
            .arg(&uri)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let Ok(server) = server.spawn() else { return skip(test, "no ompi-server") };
        let _server = TerminateOnDrop(server);
        let known = (0..400).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            std::fs::read_to_string(&uri).is_ok_and(|text| text.ends_with('\n'))
        });
        assert!(known, "ompi-server does not write its address");
        let server = format!("file:{}", uri.display());
        let port = folder("mpi-connect").join("open-mpi");
        exclusively(|| meet(&mpi, &motet, &mpi.compile("spawned"), &port, &["--ompi-server", &server]));
    }
}

/// Two test hosts, each with a shell server for the launch agent.
struct Hosts {
    set: String,
    _shells: Vec<TerminateOnDrop>,
}

impl Hosts {
    fn script(set: &str) -> Command {
        let mut command = Command::new(root().join("scripts/hosts"));
        command.args(["--set", set]);
        command
    }

    fn up(test: &str) -> Option<Self> {
        let set = format!("m{}", std::process::id());
        let made = Self::script(&set).args(["up", "alpha", "beta"]).output().expect("python3");
        if made.status.code() == Some(3) {
            skip(test, String::from_utf8_lossy(&made.stderr).trim());
            return None;
        }
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let shells = ["alpha", "beta"].map(|host| {
            let mut shell = Self::script(&set);
            shell.args(["exec", host, "--"]).arg(agent()).arg("--serve").stdout(Stdio::piped());
            let mut shell = shell.spawn().expect("python3");
            let mut ready = [0; 6];
            std::io::Read::read_exact(shell.stdout.as_mut().expect("a pipe"), &mut ready)
                .expect("a shell that listens");
            TerminateOnDrop(shell)
        });
        Some(Self { set, _shells: shells.into() })
    }

    /// Wraps a command so that it runs on a host.
    fn on(&self, host: &str, command: &Command) -> Command {
        let mut there = Self::script(&self.set);
        there.args(["exec", host, "--"]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => there.env(name, value),
                None => there.env_remove(name),
            };
        }
        there
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = Self::script(&self.set).arg("down").status();
    }
}

fn agent() -> PathBuf {
    root().join("tests/mpi/agent.py")
}

#[test]
fn ranks_of_two_hosts_exchange_messages_and_windows() {
    let _shared = crate::shared_cpus();
    let test = "ranks_of_two_hosts_exchange_messages_and_windows";
    let Some(motet) = motet(test) else { return };
    let Some(hosts) = Hosts::up(test) else { return };
    for mpi in installed(test, &ALL) {
        let more = mpi.across(agent().to_str().expect("a plain path"), "alpha,beta");
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        // Open MPI keeps its own transport there too, unless its user says otherwise: over libfabric it loses messages that `mrecv` receives.
        let is_open = [OPEN_MPI_4, OPEN_MPI_5].contains(&mpi.name);
        let (options, by_itself) = if is_open { (ON, 0) } else { (&[][..], 2) };
        let run = |options: &[&str], name: &str| {
            let job = mpi.run(&motet, options, &words(mpi.launcher(2, &more), &mpi.compile(name), &[]));
            output(&mut hosts.on("alpha", &job))
        };
        assert_eq!(run(&[], "carried"), format!("ok 2, carried by {by_itself}\n"), "{}", mpi.name);
        assert_eq!(run(&[], "mrecv"), "ok\n", "{}: mrecv", mpi.name);
        assert_eq!(run(options, "windows"), "ok 2\n", "{}: windows", mpi.name);
        if options == ON {
            assert_eq!(run(ON, "carried"), "ok 2, carried by 2\n", "{}: on", mpi.name);
        }
    }
}

#[test]
fn ranks_of_srun_select_the_provider() {
    let _shared = crate::shared_cpus();
    let test = "ranks_of_srun_select_the_provider";
    let Some(motet) = motet(test) else { return };
    let Some(slurm) = Slurm::up(test) else { return };
    for (name, interface, carried) in [(OPEN_MPI_4, "pmix", 2), (MPICH, "pmi2", 2), (MPICH_BY_UCX, "pmi2", 0)] {
        for mpi in installed(test, &[name]) {
            let srun = ["srun", &format!("--mpi={interface}"), "-n", "2", "--overcommit"].map(str::to_owned);
            let mut job = mpi.run(&motet, ON, &words(srun.into(), &mpi.compile("carried"), &[]));
            assert_eq!(output(slurm.set_environment(&mut job)), format!("ok 2, carried by {carried}\n"), "{name}");
        }
    }
    for mpi in installed(test, &[MPICH, INTEL]) {
        let srun = ["srun", "--mpi=pmi2", "-n", "2", "--overcommit"].map(str::to_owned);
        let mut job = mpi.run(&motet, ON, &words(srun.into(), &mpi.compile("windows"), &[]));
        assert_eq!(output(slurm.set_environment(&mut job)), "ok 2\n", "{}", mpi.name);
    }
}

#[test]
fn motet_why_shows_transport_and_links_of_ranks() {
    let _shared = crate::shared_cpus();
    let test = "motet_why_shows_transport_and_links_of_ranks";
    let Some(motet) = motet(test) else { return };
    let ours = "use Motet's libfabric provider";
    // In ranks of Open MPI the sockets adapter carries connections too.
    for (name, options, way) in [
        (OPEN_MPI_4, ON, ours),
        (MPICH, ON, ours),
        (MPICH_BY_UCX, ON, "it has loaded no libfabric"),
        (OPEN_MPI_4, &[], "its own transport: the job is not known to use several hosts"),
    ] {
        for mpi in installed(test, &[name]) {
            let program = mpi.compile("carried");
            // The ranks stay until this test has run `motet why`, and the launcher's end ends them. Exclusive, because other tests run the same
            // program.
            let why = exclusively(|| {
                let mut job = mpi.run(&motet, options, &words(mpi.launcher(2, &[]), &program, &["200"]));
                let mut job = TerminateOnDrop(job.stdout(Stdio::piped()).spawn().expect("timeout"));
                let mut said = [0; 5];
                std::io::Read::read_exact(job.0.stdout.as_mut().expect("a pipe"), &mut said).expect("what rank 0 says");
                Command::new(&motet).args(["why", "--json"]).output().expect("motet")
            });
            let why: serde_json::Value = serde_json::from_slice(&why.stdout).expect("JSON");
            let started = |process: &&serde_json::Value| {
                let command = process["command"].as_str().unwrap_or_default();
                command.starts_with(program.to_str().expect("a plain path"))
            };
            let ranks: Vec<_> = why["processes"].as_array().expect("processes").iter().filter(started).collect();
            assert_eq!(ranks.len(), 2, "{name}: {why}");
            for rank in ranks {
                assert!(rank["mpi"].as_str().unwrap_or_default().contains(way), "{name}: {rank}");
                let links = rank["nodes"][0]["links"].as_array().cloned().unwrap_or_default();
                assert_eq!(links.is_empty(), way != ours, "{name}: {rank}"); // two if both ends connected
                // Within a host over shared memory, and over no slower driver.
                for link in links {
                    assert_eq!(link["drivers"][0]["driver"], "shm", "{name}: {link}");
                    assert_eq!(link["drivers"][0]["in_use"], true, "{name}: {link}");
                }
            }
        }
    }
}
