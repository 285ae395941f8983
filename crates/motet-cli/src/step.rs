//! `motet up` as a task of a Slurm step: which tasks start a gatekeeper, and how the others' hosts learn how to join.
//!
//! The first task of each host starts its gatekeeper. Task 0 is on the primary host, and publishes the join configuration: through the key-value space of
//! the step's PMI, or through a file of mode 600 in a folder that all hosts see.

use motet_session::hosts::JoinConfig;
use motet_session::private_file::write_private;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::exit_error::{FAILED, Failure, Outcome, USAGE};
use crate::pmi::Pmi;

/// The longest wait for task 0, and for the gatekeeper of this host.
pub const LIMIT: Duration = Duration::from_secs(60);
/// The pause between two looks.
pub const PAUSE: Duration = Duration::from_millis(20);
/// The longest text that task 0 publishes, bytes.
const MAX_BYTES: u64 = 64 << 10;
/// From here on the numbers of steps have other meanings: batch scripts, interactive shells.
const FIRST_SPECIAL_STEP: u32 = 0xffff_fff0;

/// A task of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The step, `JOB.STEP`.
    pub name: String,
    /// The number of this task in the step.
    pub rank: u32,
    /// The number of this task on its host.
    rank_here: u32,
    /// The hosts of the step.
    hosts: u32,
    /// The name of this host in Slurm.
    pub host: Option<String>,
}

/// What a task has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It starts the only gatekeeper, or the primary one.
    First,
    /// It starts the gatekeeper of another host.
    OfHost,
    /// Another task starts the gatekeeper of this host.
    Waits,
}

/// What task 0 publishes.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Published {
    /// How to join.
    Join(JoinConfig),
    /// Why the session is not up.
    Failed(String),
}

impl Step {
    /// The step that this process is a task of. `None`: it is none, or it is in a batch script or an interactive shell.
    pub fn of_process() -> Option<Self> {
        Self::of(&|name| std::env::var(name).ok())
    }

    fn of(variable: &dyn Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name: &str| variable(name)?.trim().parse::<u32>().ok();
        // A batch script has the number of a task, too.
        let step = number("SLURM_STEP_ID").filter(|step| *step < FIRST_SPECIAL_STEP)?;
        let rank = number("SLURM_PROCID").filter(|_| number("SLURM_STEP_NUM_TASKS").is_some())?;
        let job = number("SLURM_JOB_ID").unwrap_or(0);
        Some(Self {
            name: format!("{job}.{step}"),
            rank,
            rank_here: number("SLURM_LOCALID").unwrap_or(0),
            hosts: number("SLURM_STEP_NUM_NODES").unwrap_or(1),
            host: variable("SLURMD_NODENAME").filter(|name| !name.is_empty()),
        })
    }

    /// Why the command stays in front.
    pub fn reason(&self) -> String {
        format!("a task of Slurm step {}", self.name)
    }

    /// The role of this task.
    pub fn role(&self) -> Role {
        match (self.rank, self.rank_here) {
            (0, _) => Role::First,
            (_, 0) if self.has_others() => Role::OfHost,
            _ => Role::Waits,
        }
    }

    /// Whether the step has other hosts.
    pub fn has_others(&self) -> bool {
        self.hosts > 1
    }

    /// The way to the other hosts' tasks, if there are any. `shared`: a folder that all of them see.
    pub fn exchange(&self, shared: Option<&Path>) -> Outcome<Option<Exchange>> {
        if !self.has_others() {
            return Ok(None);
        }
        if let Some(folder) = shared {
            return Ok(Some(Exchange::File(folder.join(format!("motet-join-{}", self.name)))));
        }
        match Pmi::of_process() {
            Some(Ok(pmi)) => Ok(Some(Exchange::Pmi(pmi))),
            Some(Err(error)) => Err(Failure::new(FAILED, format!("PMI: {error}"))),
            None => {
                let why = "the tasks of the other hosts cannot learn how to join: start this with srun --mpi=pmi2, or name a \
                           folder that all hosts see with --shared";
                Err(Failure::new(USAGE, why))
            }
        }
    }
}

/// A way from task 0 to the others.
#[derive(Debug)]
pub enum Exchange {
    /// The key-value space of the step.
    Pmi(Pmi),
    /// A file.
    File(PathBuf),
}

/// The published file, which is removed when this is dropped.
#[derive(Debug)]
pub struct PublishedFile(PathBuf);

impl Drop for PublishedFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Exchange {
    /// Publishes.
    pub fn publish(self, what: &Published) -> Outcome<Option<PublishedFile>> {
        let text = serde_json::to_string(what).map_err(|error| Failure::new(FAILED, error.to_string()))?;
        match self {
            Self::Pmi(pmi) => {
                pmi.exchange(Some(&text)).map_err(|error| Failure::new(FAILED, format!("PMI: {error}")))?
            }
            Self::File(path) => {
                let failed = |error| Failure::new(FAILED, format!("{}: {error}", path.display()));
                write_private(&path, text.as_bytes()).map_err(failed)?;
                return Ok(Some(PublishedFile(path)));
            }
        };
        Ok(None)
    }

    /// What task 0 has published; waits for it.
    pub fn published(self) -> Outcome<JoinConfig> {
        let failed = |what: String| Failure::new(FAILED, what);
        let text = match self {
            Self::Pmi(pmi) => pmi.exchange(None).map_err(|error| failed(format!("PMI: {error}")))?.into_bytes(),
            Self::File(path) => read_own(&path).map_err(|error| failed(format!("{}: {error}", path.display())))?,
        };
        match serde_json::from_slice(&text) {
            Ok(Published::Join(config)) => Ok(config),
            Ok(Published::Failed(why)) => Err(failed(format!("task 0 has not started the session: {why}"))),
            Err(error) => Err(failed(format!("task 0 has published something else: {error}"))),
        }
    }

    /// Takes part in the exchange, for a task that needs nothing of it but whether task 0 has started the session.
    pub fn take_part(self) -> Outcome<()> {
        match self {
            Self::Pmi(_) => self.published().map(drop),
            Self::File(_) => Ok(()),
        }
    }
}

/// Waits for a file of this user that no other user can read or write, and reads it.
fn read_own(path: &Path) -> Result<Vec<u8>, String> {
    let began = Instant::now();
    let file = loop {
        match rustix::fs::open(path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => break file,
            Err(rustix::io::Errno::NOENT) if began.elapsed() < LIMIT => std::thread::sleep(PAUSE),
            Err(rustix::io::Errno::NOENT) => {
                return Err(format!("task 0 has not written it within {} s", LIMIT.as_secs()));
            }
            Err(error) => return Err(error.to_string()),
        }
    };
    let stat = rustix::fs::fstat(&file).map_err(|error| error.to_string())?;
    if stat.st_uid != rustix::process::getuid().as_raw() || stat.st_mode & 0o077 != 0 {
        return Err("another user has written it, or may read it".to_owned());
    }
    let mut text = Vec::new();
    File::from(file).take(MAX_BYTES).read_to_end(&mut text).map_err(|error| error.to_string())?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(variables: &[&str]) -> Option<Step> {
        let variables: Vec<_> = variables.iter().filter_map(|variable| variable.split_once('=')).collect();
        Step::of(&|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    fn config() -> JoinConfig {
        let text = br#"{"session":"s","key":"0123","authority":"pem","addresses":["a:1"]}"#;
        JoinConfig::parse(text).unwrap()
    }

    #[test]
    fn roles_follow_from_the_places_of_tasks() {
        let role = |rank: u32, here: u32, hosts: u32| {
            let [rank, here, hosts] = [("PROCID", rank), ("LOCALID", here), ("STEP_NUM_NODES", hosts)]
                .map(|(name, value)| format!("SLURM_{name}={value}"));
            step(&["SLURM_STEP_ID=0", "SLURM_JOB_ID=7", "SLURM_STEP_NUM_TASKS=9", &rank, &here, &hosts]).unwrap().role()
        };
        assert_eq!([role(0, 0, 1), role(1, 1, 1)], [Role::First, Role::Waits]);
        assert_eq!([role(0, 0, 3), role(1, 0, 3), role(2, 1, 3)], [Role::First, Role::OfHost, Role::Waits]);
    }

    #[test]
    fn only_tasks_are_in_a_step() {
        let task = ["SLURM_STEP_ID=3", "SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1", "SLURM_JOB_ID=7"];
        assert_eq!(step(&task).unwrap().name, "7.3");
        for without in 0..3 {
            let some: Vec<_> = (0..4).filter(|at| *at != without).map(|at| task[at]).collect();
            assert_eq!(step(&some), None, "{some:?}");
        }
        let interactive = ["SLURM_STEP_ID=4294967290", task[1], task[2]];
        assert_eq!(step(&interactive), None, "a shell of salloc");
    }

    #[test]
    fn file_carries_the_configuration_and_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("join");
        let kept = Exchange::File(path.clone()).publish(&Published::Join(config())).unwrap();
        assert_eq!(Exchange::File(path.clone()).published().unwrap(), config());
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        assert!(Exchange::File(path.clone()).published().unwrap_err().message.contains("may read it"));
        drop(kept);
        assert!(!path.exists());
        let kept = Exchange::File(path.clone()).publish(&Published::Failed("no room".to_owned())).unwrap();
        assert!(Exchange::File(path).published().unwrap_err().message.contains("no room"));
        drop(kept);
    }
}
