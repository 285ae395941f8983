//! `motet run` before the launchers of MPI: each library takes the provider without a further word where the ranks are on several hosts, and
//! within one where its user says so.
//!
//! The programs are those of `tests/mpi`; `carried` and `spawned` say themselves in how many ranks there is a node of Motet's, which
//! an MPI has only where it chose the provider.

use motet_tests::mpi::{INTEL, MPICH, MPICH_BY_UCX, Mpi, OPEN_MPI_4, OPEN_MPI_5};
use motet_tests::mpi::{alone, installed, output, printed, root, skip};
use motet_tests::slurm::Slurm;
use motet_tests::{engine, folder};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const ALL: [&str; 4] = [OPEN_MPI_4, OPEN_MPI_5, MPICH, INTEL];

/// Within one host, where the default is the library's own transport.
const ON: &[&str] = &["--set", "mpi=on"];

/// The command, beside whose libraries the provider is; `None`, loudly, where that is not built.
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
fn every_mpi_takes_the_provider_by_itself() {
    let _shared = crate::beside_others();
    let test = "every_mpi_takes_the_provider_by_itself";
    let Some(motet) = motet(test) else { return };
    for mpi in installed(test, &ALL) {
        let program = mpi.compile("carried");
        let said = output(&mut mpi.run(&motet, ON, &words(mpi.launcher(2, &[]), &program, &[])));
        assert_eq!(said, "ok 2, carried by 2\n", "{}", mpi.name);
    }
}

#[test]
fn within_a_host_every_mpi_keeps_its_own_transport() {
    let _shared = crate::beside_others();
    let test = "within_a_host_every_mpi_keeps_its_own_transport";
    let Some(motet) = motet(test) else { return };
    for mpi in installed(test, &ALL) {
        let program = mpi.compile("carried");
        let run = |options: &[&str]| mpi.run(&motet, options, &words(mpi.launcher(2, &[]), &program, &[]));
        assert_eq!(output(&mut run(&[])), "ok 2, carried by 0\n", "{}", mpi.name);
        assert_eq!(output(run(&[]).env("MOTET_MPI", "on")), "ok 2, carried by 2\n", "{}: MOTET_MPI", mpi.name);
        // An outer `motet run` has told it otherwise.
        let inner = [motet.display().to_string(), "run".into(), "--set".into(), "mpi=auto".into(), "--".into()];
        let inner: Vec<String> = inner.into_iter().chain(words(mpi.launcher(2, &[]), &program, &[])).collect();
        assert_eq!(output(&mut mpi.run(&motet, ON, &inner)), "ok 2, carried by 0\n", "{}: inside", mpi.name);
    }
}

#[test]
fn a_rank_that_is_elsewhere_holds_up_nobody() {
    let _shared = crate::beside_others();
    let test = "a_rank_that_is_elsewhere_holds_up_nobody";
    let Some(motet) = motet(test) else { return };
    let back = folder("mpi-elsewhere").join("back");
    for mpi in installed(test, &ALL) {
        let _ = std::fs::remove_file(&back);
        let program = mpi.compile("elsewhere");
        let words = words(mpi.launcher(2, &[]), &program, &[back.to_str().expect("a plain path")]);
        assert_eq!(output(&mut mpi.run(&motet, ON, &words)), "ok\n", "{}", mpi.name);
    }
}

/// MPICH by itself gets this wrong over libfabric's tcp (docs/mpi.md, *Looks at messages from anybody*).
#[test]
fn what_a_library_finds_is_what_it_receives() {
    let _shared = crate::beside_others();
    let test = "what_a_library_finds_is_what_it_receives";
    let Some(motet) = motet(test) else { return };
    for mpi in installed(test, &ALL) {
        let program = mpi.compile("graphs");
        let said = output(&mut mpi.run(&motet, ON, &words(mpi.launcher(2, &[]), &program, &[])));
        assert_eq!(said, "ok\n", "{}", mpi.name);
    }
}

#[test]
fn windows_work_in_every_mpi() {
    let _shared = crate::beside_others();
    let test = "windows_work_in_every_mpi";
    let Some(motet) = motet(test) else { return };
    // Open MPI 4 crashes in its own osc/rdma, with Motet or without, where a window is compared and swapped.
    for (name, arguments) in [(OPEN_MPI_4, &["no-compare"][..]), (OPEN_MPI_5, &[]), (MPICH, &[]), (INTEL, &[])] {
        for mpi in installed(test, &[name]) {
            let program = mpi.compile("windows");
            let said = output(&mut mpi.run(&motet, ON, &words(mpi.launcher(2, &[]), &program, arguments)));
            assert_eq!(said, "ok 2\n", "{name}");
        }
    }
}

#[test]
fn an_mpi_without_libfabric_runs_unharmed() {
    let _shared = crate::beside_others();
    let test = "an_mpi_without_libfabric_runs_unharmed";
    let Some(motet) = motet(test) else { return };
    for mpi in installed(test, &[MPICH_BY_UCX]) {
        let program = mpi.compile("carried");
        let said = output(&mut mpi.run(&motet, ON, &words(mpi.launcher(2, &[]), &program, &[])));
        assert_eq!(said, "ok 2, carried by 0\n");
    }
}

#[test]
fn what_the_user_has_set_wins() {
    let _shared = crate::beside_others();
    let test = "what_the_user_has_set_wins";
    let Some(motet) = motet(test) else { return };
    let plain = "ok 2, carried by 0\n";
    for mpi in installed(test, &ALL) {
        let (name, program) = (mpi.name, mpi.compile("carried"));
        let run =
            |options: &[&str], more: &[&str]| mpi.run(&motet, options, &words(mpi.launcher(2, more), &program, &[]));
        assert_eq!(output(run(ON, &[]).env("FI_PROVIDER", "tcp")), plain, "{name}: FI_PROVIDER");
        assert_eq!(output(&mut run(&["--set", "mpi=off"], &[])), plain, "{name}: --set mpi=off");
        // Open MPI 5 opens a domain for btl/ofi under ob1, too.
        let (flag, settings): (&str, &[[&str; 2]]) = match name {
            OPEN_MPI_4 | OPEN_MPI_5 => ("--mca", &[["pml", "ob1"], ["btl", "^ofi"]]),
            MPICH => ("-genv", &[["MPIR_CVAR_CH4_NETMOD", "ucx"]]),
            _ => ("-genv", &[["I_MPI_FABRICS", "shm"]]),
        };
        let flags: Vec<&str> = settings.iter().flat_map(|[key, value]| [flag, key, value]).collect();
        assert_eq!(output(&mut run(ON, &flags)), plain, "{name}: {flags:?}");
        let mut job = run(ON, &[]);
        for [key, value] in settings {
            job.env(if flag == "--mca" { format!("OMPI_MCA_{key}") } else { (*key).to_owned() }, value);
        }
        assert_eq!(output(&mut job), plain, "{name}: {settings:?}");
    }
}

#[test]
fn ranks_that_others_spawn_meet_them() {
    let _shared = crate::beside_others();
    let test = "ranks_that_others_spawn_meet_them";
    let Some(motet) = motet(test) else { return };
    for mpi in installed(test, &[OPEN_MPI_4, OPEN_MPI_5, MPICH]) {
        let program = mpi.compile("spawned");
        let said = output(&mut mpi.run(&motet, ON, &words(mpi.launcher(2, &[]), &program, &["spawn"])));
        assert_eq!(said, "ok spawn 4, carried by 4\n", "{}", mpi.name);
    }
}

/// CompletionRef with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        // Not killed: `timeout` and the like pass this on to what they started.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

/// A job that serves and one that calls it, started apart.
fn meet(mpi: &Mpi, motet: &Path, program: &Path, port: &Path, more: &[&str]) {
    let _ = std::fs::remove_file(port);
    let at = port.to_str().expect("a plain path");
    let job = |what: &str| mpi.run(motet, ON, &words(mpi.launcher(2, more), program, &[what, at]));
    let serves = job("serve").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("timeout");
    let calls = job("call").output().expect("timeout");
    let serves = serves.wait_with_output().expect("its end");
    // Which of the two groups comes first is the library's to say.
    assert_eq!(printed(&serves) + &printed(&calls), "ok connect 4, carried by 4\n", "{}", mpi.name);
}

#[test]
fn jobs_that_were_started_apart_connect() {
    let _shared = crate::beside_others();
    let test = "jobs_that_were_started_apart_connect";
    let Some(motet) = motet(test) else { return };
    for mpi in installed(test, &[MPICH]) {
        alone(|| meet(&mpi, &motet, &mpi.compile("spawned"), &folder("mpi-connect").join("mpich"), &[]));
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
        let _server = Ends(server);
        let known = (0..400).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            std::fs::read_to_string(&uri).is_ok_and(|text| text.ends_with('\n'))
        });
        assert!(known, "ompi-server does not write its address");
        let server = format!("file:{}", uri.display());
        let port = folder("mpi-connect").join("open-mpi");
        alone(|| meet(&mpi, &motet, &mpi.compile("spawned"), &port, &["--ompi-server", &server]));
    }
}

/// Two hosts of the test's own, each with a shell that a launch agent reaches.
struct Hosts {
    set: String,
    _shells: Vec<Ends>,
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
            Ends(shell)
        });
        Some(Self { set, _shells: shells.into() })
    }

    /// The same command, on a host.
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
    let _shared = crate::beside_others();
    let test = "ranks_of_two_hosts_exchange_messages_and_windows";
    let Some(motet) = motet(test) else { return };
    let Some(hosts) = Hosts::up(test) else { return };
    for mpi in installed(test, &ALL) {
        let more = mpi.across(agent().to_str().expect("a plain path"), "alpha,beta");
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        // Open MPI keeps its own transport there, too, unless its user says otherwise: over libfabric it loses what `mrecv` receives.
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
fn ranks_of_srun_take_the_provider() {
    let _shared = crate::beside_others();
    let test = "ranks_of_srun_take_the_provider";
    let Some(motet) = motet(test) else { return };
    let Some(slurm) = Slurm::up(test) else { return };
    for (name, interface, carried) in [(OPEN_MPI_4, "pmix", 2), (MPICH, "pmi2", 2), (MPICH_BY_UCX, "pmi2", 0)] {
        for mpi in installed(test, &[name]) {
            let srun = ["srun", &format!("--mpi={interface}"), "-n", "2", "--overcommit"].map(str::to_owned);
            let mut job = mpi.run(&motet, ON, &words(srun.into(), &mpi.compile("carried"), &[]));
            assert_eq!(output(slurm.equip(&mut job)), format!("ok 2, carried by {carried}\n"), "{name}");
        }
    }
    for mpi in installed(test, &[MPICH, INTEL]) {
        let srun = ["srun", "--mpi=pmi2", "-n", "2", "--overcommit"].map(str::to_owned);
        let mut job = mpi.run(&motet, ON, &words(srun.into(), &mpi.compile("windows"), &[]));
        assert_eq!(output(slurm.equip(&mut job)), "ok 2\n", "{}", mpi.name);
    }
}

#[test]
fn why_tells_the_way_of_a_rank_and_shows_its_link() {
    let _shared = crate::beside_others();
    let test = "why_tells_the_way_of_a_rank_and_shows_its_link";
    let Some(motet) = motet(test) else { return };
    let ours = "use Motet's libfabric provider";
    // In ranks of Open MPI the sockets adapter carries connections, too.
    for (name, options, way) in [
        (OPEN_MPI_4, ON, ours),
        (MPICH, ON, ours),
        (MPICH_BY_UCX, ON, "it has loaded no libfabric"),
        (OPEN_MPI_4, &[], "its own transport: the job is not known to use several hosts"),
    ] {
        for mpi in installed(test, &[name]) {
            let program = mpi.compile("carried");
            // They stay until this test has looked, and are ended by the launcher's end. Alone: others run the same program.
            let why = alone(|| {
                let mut job = mpi.run(&motet, options, &words(mpi.launcher(2, &[]), &program, &["200"]));
                let mut job = Ends(job.stdout(Stdio::piped()).spawn().expect("timeout"));
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
                assert_eq!(links.is_empty(), way != ours, "{name}: {rank}"); // two where both have called
                // Within a host through shared memory, and by nothing that is slower.
                for link in links {
                    assert_eq!(link["drivers"][0]["driver"], "shm", "{name}: {link}");
                    assert_eq!(link["drivers"][0]["in_use"], true, "{name}: {link}");
                }
            }
        }
    }
}
