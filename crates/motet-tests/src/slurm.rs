//! A Slurm cluster for the time of a test: munged, slurmctld and a slurmd for each node, as root, with their own ports, keys and folders. All nodes are on
//! this host.

use crate::mpi::skip;
use motet_programs::{find, free_port, is_root};
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time limit for a daemon to become ready.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Dropping it ends the daemons.
#[derive(Debug)]
pub struct Slurm {
    daemons: Vec<Child>,
    configuration: PathBuf,
}

impl Slurm {
    /// Starts a cluster of one node. `None`, with a message, if a program is missing or this process is not root.
    pub fn up(test: &str) -> Option<Self> {
        Self::start_nodes(test, &[host()])
    }

    /// Starts a cluster of `nodes` nodes, n1 and so on. `None`, with a message, as above.
    pub fn up_with(test: &str, nodes: usize) -> Option<Self> {
        let names: Vec<String> = (1..=nodes).map(|node| format!("n{node}")).collect();
        Self::start_nodes(test, &names)
    }

    fn start_nodes(test: &str, nodes: &[String]) -> Option<Self> {
        let programs = ["munged", "slurmctld", "slurmd", "srun", "sinfo", "scontrol"];
        // Debian installs daemons in /usr/sbin, which may not be in PATH.
        let path =
            |name: &str| find(name).or_else(|| Some(Path::new("/usr/sbin").join(name)).filter(|path| path.exists()));
        if let Some(missing) = programs.iter().find(|name| path(name).is_none()) {
            skip(test, &format!("{missing} is not installed (tests/packages.txt)"));
            return None;
        }
        if !is_root() {
            skip(test, "Slurm's daemons want to be root");
            return None;
        }
        // Socket paths must be short, and slurmd requires folders that only root can write.
        static CLUSTERS: AtomicUsize = AtomicUsize::new(0);
        let number = CLUSTERS.fetch_add(1, Ordering::Relaxed);
        let folder = PathBuf::from(format!("/run/motet-slurm-{}-{number}", std::process::id()));
        for part in ["state", "spool"] {
            fs::create_dir_all(folder.join(part)).expect("a folder in /run");
        }
        let key = folder.join("munge.key");
        fs::write(&key, format!("{:0>64}", std::process::id())).expect("a key"); // of a cluster without other users
        fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("rights");
        let configuration = folder.join("slurm.conf");
        fs::write(&configuration, text(&folder, nodes)).expect("a configuration");
        let mut this = Self { daemons: Vec::new(), configuration };
        let munge = [
            "--foreground",
            "--force",
            "--key-file=KEY",
            "--socket=SOCKET",
            "--pid-file=PID",
            "--seed-file=SEED",
            "--log-file=LOG",
        ];
        let munge = munge.map(|word| {
            let (option, file) = word.split_once('=').unwrap_or((word, ""));
            let name = match file {
                "" => return word.to_owned(),
                "KEY" => "munge.key".to_owned(),
                "SOCKET" => "munge.socket".to_owned(),
                other => format!("munge.{}", other.to_lowercase()),
            };
            format!("{option}={}", folder.join(name).display())
        });
        this.start(path("munged")?, &munge);
        let socket = folder.join("munge.socket");
        this.until("munged listens", |_| UnixStream::connect(&socket).is_ok());
        let at = this.configuration.display().to_string();
        this.start(path("slurmctld")?, &["-D".into(), "-f".into(), at.clone()]);
        let says = |this: &Self, words: &[&str]| {
            let said = this.set_environment(Command::new(words[0]).args(&words[1..])).output();
            said.map(|said| String::from_utf8_lossy(&said.stdout).trim().to_owned()).unwrap_or_default()
        };
        this.until("slurmctld is up", |this| says(this, &["scontrol", "ping"]).contains(" is UP"));
        for node in nodes {
            this.start(path("slurmd")?, &["-D".into(), "-f".into(), at.clone(), "-N".into(), node.clone()]);
        }
        let idle = format!("{}/idle", nodes.len());
        this.until("all nodes are idle", |this| says(this, &["sinfo", "--noheader", "--format=%D/%T"]) == idle);
        Some(this)
    }

    /// Points a command's srun at this cluster.
    pub fn set_environment<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("SLURM_CONF", &self.configuration)
    }

    fn start(&mut self, program: PathBuf, words: &[String]) {
        let log = fs::File::create(self.log(self.daemons.len())).expect("a log");
        let mut daemon = Command::new(program);
        let copy = log.try_clone().expect("a descriptor");
        daemon.args(words).stdin(Stdio::null()).stdout(log).stderr(copy).env("SLURM_CONF", &self.configuration);
        self.daemons.push(daemon.spawn().expect("a daemon of Slurm"));
    }

    /// The output file of a daemon, by its number.
    fn log(&self, number: usize) -> PathBuf {
        self.configuration.with_file_name(format!("{number}.out"))
    }

    /// Waits for a condition while all started daemons run.
    #[track_caller]
    fn until(&mut self, what: &str, reached: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !reached(self) {
            let ended = self
                .daemons
                .iter_mut()
                .map(|daemon| daemon.try_wait().expect("its status"))
                .position(|end| end.is_some());
            let said = |number: usize| fs::read_to_string(self.log(number)).unwrap_or_default();
            assert!(ended.is_none(), "a daemon of Slurm ended before {what}: {}", said(ended.unwrap_or(0)));
            let all: String = (0..self.daemons.len()).map(said).collect();
            assert!(began.elapsed() < TIMEOUT, "not after {TIMEOUT:?}: {what}; {all}");
            sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            // SIGTERM, because slurmd waits for the processes that it started.
            let _ = Command::new("kill").arg(daemon.id().to_string()).status();
            let gone = (0..100).any(|_| {
                sleep(Duration::from_millis(50));
                matches!(daemon.try_wait(), Ok(Some(_)))
            });
            if !gone {
                let _ = daemon.kill();
                let _ = daemon.wait();
            }
        }
        let _ = fs::remove_dir_all(self.configuration.with_file_name(""));
    }
}

fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().split('.').next().unwrap_or_default().to_owned()
}

fn text(folder: &Path, nodes: &[String]) -> String {
    let (host, at) = (host(), folder.display());
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut text = format!(
        "ClusterName=motet\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\n\
         AuthInfo=socket={at}/munge.socket\nCredType=cred/munge\nSlurmctldPort={}\nStateSaveLocation={at}/state\n\
         SlurmdSpoolDir={at}/spool/%n\nSlurmctldPidFile={at}/slurmctld.pid\nSlurmdPidFile={at}/slurmd.%n.pid\n\
         SlurmctldLogFile={at}/slurmctld.log\nSlurmdLogFile={at}/slurmd.%n.log\nKillWait=20\n\
         ProctrackType=proctrack/pgid\nTaskPlugin=task/none\nMpiDefault=none\nReturnToService=2\nSwitchType=switch/none\n\
         SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nJobAcctGatherType=jobacct_gather/none\n\
         AccountingStorageType=accounting_storage/none\n\
         PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8\n",
        port()
    );
    for node in nodes {
        text += &format!(
            "NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={} CPUs={cpus} State=UNKNOWN\n",
            port()
        );
    }
    text
}

fn port() -> u16 {
    free_port().expect("a port")
}
