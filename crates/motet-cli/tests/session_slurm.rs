//! `srun motet up`: a session of the hosts of a Slurm step, by a cluster of several slurmd on this host. Each node has a folder of sessions of its own.

mod common;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Folder, finish, json, motet};
use motet_tests::slurm::Slurm;

/// Nothing takes so long.
const LIMIT: Duration = Duration::from_secs(90);
const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// A session that a step starts.
struct StepSession {
    slurm: Slurm,
    folder: Folder,
    srun: Child,
}

impl StepSession {
    /// Runs `motet up` with these options as tasks of a step. `None`, with a message, if there is no Slurm here.
    fn start(test: &str, srun: &[&str], up: &[&str]) -> Option<Self> {
        let slurm = Slurm::up_with(test, NODES.len())?;
        let folder = Folder::new(test);
        folder.libraries();
        let mut command = motet([""; 0]);
        let own = env!("CARGO_BIN_EXE_motet");
        let shell = "MOTET_SESSION_DIR=$0/$SLURMD_NODENAME exec \"$@\"";
        let at = folder.path().display().to_string();
        let words = [&["--quiet"], srun, &["sh", "-c", shell, &at, own, "up"], up].concat();
        let output = std::fs::File::create(folder.path().join("srun.out")).unwrap();
        let mut srun = Command::new("srun");
        for (name, value) in command.env("MOTET_LIBDIR", folder.path()).get_envs() {
            match value {
                Some(value) => srun.env(name, value),
                None => srun.env_remove(name),
            };
        }
        srun.args(words).stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
        let srun = slurm.set_environment(&mut srun).spawn().unwrap();
        Some(Self { slurm, folder, srun })
    }

    fn dir(&self, node: &str) -> PathBuf {
        self.folder.path().join(node)
    }

    fn motet(&self, node: &str, arguments: &[&str]) -> Command {
        let mut command = motet(arguments);
        command.env("MOTET_SESSION_DIR", self.dir(node)).env("MOTET_LIBDIR", self.folder.path());
        command
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("srun.out")).unwrap_or_default()
    }

    #[track_caller]
    fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let began = Instant::now();
        while !condition() {
            assert!(began.elapsed() < LIMIT, "never happens: {what}; srun: {}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The hosts that are up, as a node knows them, with their gatekeepers.
    fn hosts(&self, node: &str) -> Vec<(String, u64)> {
        let (code, out, _) = finish(&mut self.motet(node, &["--json", "hosts"]));
        let list = if code == 0 { json(&out) } else { serde_json::Value::Null };
        let up = list.as_array().into_iter().flatten().filter(|host| host["up"] == true);
        up.map(|host| (host["name"].as_str().unwrap().to_owned(), host["gatekeeper"]["pid"].as_u64().unwrap()))
            .collect()
    }

    #[track_caller]
    fn until_up(&self) {
        let names = |node: &&str| self.hosts(node).into_iter().map(|host| host.0).collect::<Vec<_>>();
        self.until("all nodes know all hosts", || {
            NODES.iter().all(|node| self.dir(node).join("default/gatekeeper.sock").exists() && names(node) == NODES)
        });
    }

    /// Whether srun has ended well; waits for it.
    #[track_caller]
    fn srun_ends(&mut self) -> bool {
        let began = Instant::now();
        loop {
            match self.srun.try_wait().unwrap() {
                Some(status) => return status.success(),
                None => assert!(began.elapsed() < LIMIT, "srun does not end: {}", self.said()),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    fn until_nothing_is_left(&self) {
        self.until("no folder is left", || NODES.iter().all(|node| !self.dir(node).join("default").exists()));
        let mark = self.folder.path().display().to_string();
        self.until("no process is left", || {
            let processes = std::fs::read_dir("/proc").unwrap().flatten();
            !processes.map(|entry| std::fs::read(entry.path().join("environ")).unwrap_or_default()).any(|environment| {
                let environment = String::from_utf8_lossy(&environment).into_owned();
                environment.contains(&mark) && environment.contains("SLURM_STEP_ID=")
            })
        });
    }
}

impl Drop for StepSession {
    fn drop(&mut self) {
        for node in NODES.iter().filter(|node| self.dir(node).join("default").exists()) {
            let _ = self.motet(node, &["down"]).output();
        }
        let _ = self.srun.kill();
        let _ = self.srun.wait();
    }
}

#[test]
fn tasks_of_a_step_are_a_session_that_down_ends() {
    let srun = ["--mpi=pmi2", "-N", "3", "--ntasks-per-node=2"];
    let test = "tasks_of_a_step_are_a_session_that_down_ends";
    let Some(mut session) = StepSession::start(test, &srun, &["--listen", "127.0.0.1:0"]) else { return };
    session.until_up();
    let said = session.said();
    assert!(said.contains("stays in front (a task of Slurm step 1.0)"), "{said}");
    assert!(said.contains("host n2 is up\n") && said.contains("host n3 is up\n"), "{said}");
    assert_eq!(said.matches("is up").count(), 3, "a gatekeeper for each host, not for each task: {said}");
    // A gatekeeper that was killed is started again by its task.
    let of = |hosts: &[(String, u64)], name: &str| hosts.iter().find(|host| host.0 == name).map(|host| host.1);
    let killed = of(&session.hosts("n1"), "n2").unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(killed as i32).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    session.until("n2 has another gatekeeper", || of(&session.hosts("n1"), "n2").is_some_and(|pid| pid != killed));
    let mut program = session.motet("n2", &["run", "--group", "fluid", "--", "sleep", "1000"]).spawn().unwrap();
    session.until("n3 knows the program of n2", || {
        let (code, out, _) = finish(&mut session.motet("n3", &["--json", "groups"]));
        code == 0 && json(&out)[0]["programs"].as_array().is_some_and(|programs| programs.len() == 1)
    });
    let (code, out, err) = finish(&mut session.motet("n3", &["down"]));
    assert_eq!((code, out.as_str()), (0, "session default has ended: 1 program, 0 groups\n"), "{err}");
    assert!(!program.wait().unwrap().success());
    assert!(session.srun_ends(), "{}", session.said());
    session.until_nothing_is_left();
}

#[test]
fn cancelled_job_leaves_nothing_behind() {
    let test = "cancelled_job_leaves_nothing_behind";
    let shared = Folder::new("shared");
    let up = ["--listen", "127.0.0.1:0", "--shared", &shared.path().display().to_string()];
    let srun = ["-N", "3", "--ntasks-per-node=1"];
    let Some(mut session) = StepSession::start(test, &srun, &up) else { return };
    session.until_up();
    let files: Vec<_> = std::fs::read_dir(shared.path()).unwrap().flatten().collect();
    assert_eq!(files.len(), 1, "the join configuration");
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&files[0].metadata().unwrap()) & 0o777, 0o600);
    let mut program = session.motet("n2", &["run", "--", "sleep", "1000"]).spawn().unwrap();
    session.until("the program is registered", || {
        let (code, out, _) = finish(Command::new("curl").args(["-s", "--unix-socket"]).args([
            &session.dir("n2").join("default/gatekeeper.sock").display().to_string()[..],
            "http://motet/v1/programs",
        ]));
        code == 0 && out.contains("sleep")
    });
    let cancelled = session.slurm.set_environment(Command::new("scancel").arg("1")).status().unwrap();
    assert!(cancelled.success());
    assert!(session.srun_ends(), "the tasks end in order: {}", session.said());
    session.until_nothing_is_left();
    session.until("the program has ended", || program.try_wait().unwrap().is_some());
    assert_eq!(std::fs::read_dir(shared.path()).unwrap().count(), 0, "the key is not left");
}

#[test]
fn hosts_of_a_step_without_a_way_to_each_other_are_refused() {
    let test = "hosts_of_a_step_without_a_way_to_each_other_are_refused";
    let Some(mut session) = StepSession::start(test, &["-N", "2", "--ntasks-per-node=1"], &[]) else { return };
    assert!(!session.srun_ends());
    let said = session.said();
    assert!(said.contains("srun --mpi=pmi2") && said.contains("--shared"), "{said}");
    session.until_nothing_is_left();
}
