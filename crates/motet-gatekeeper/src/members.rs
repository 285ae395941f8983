//! The processes of the session on this host: those that `motet run` has registered, those that carry the session's identity in their environment, and the
//! children of either.
//!
//! A program may overwrite its environment, with a title for example. It is known by its registration or its parent then, and stays so when its parent ends.

use motet_session::SESSION_ID_VARIABLE;
use motet_session::process::Process;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// What is known of the processes. A clone is another handle.
#[derive(Debug, Clone)]
pub struct Members {
    session_id: String,
    /// Those that were found before.
    known: Arc<Mutex<HashSet<Process>>>,
}

/// A process of this user.
struct Found {
    process: Process,
    parent: u32,
    /// The identity of a session in its environment.
    session_id: Option<Vec<u8>>,
}

impl Members {
    /// Those of the session with this identity.
    pub fn new(session_id: &str) -> Self {
        Self { session_id: session_id.to_owned(), known: Arc::default() }
    }

    /// The processes that run now. `registered`: those of the directory.
    pub fn find(&self, registered: impl IntoIterator<Item = Process>) -> HashSet<Process> {
        let all: HashMap<u32, Found> = of_user().into_iter().map(|found| (found.process.pid, found)).collect();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.extend(registered);
        // A registered program may have become another user's.
        known.retain(|process| {
            all.get(&process.pid).map_or_else(|| process.is_running(), |found| found.process == *process)
        });
        let own = self.session_id.as_bytes();
        let marked = all.values().filter(|found| found.session_id.as_deref() == Some(own));
        known.extend(marked.map(|found| found.process));
        let mut members: HashSet<u32> = known.iter().map(|process| process.pid).collect();
        // Generation by generation. What another session has started there is that session's.
        loop {
            let is_child = |found: &&Found| {
                !members.contains(&found.process.pid)
                    && members.contains(&found.parent)
                    && found.session_id.as_deref().is_none_or(|id| id == own)
            };
            let children: Vec<Process> = all.values().filter(is_child).map(|found| found.process).collect();
            if children.is_empty() {
                return known.clone();
            }
            members.extend(children.iter().map(|child| child.pid));
            known.extend(children);
        }
    }
}

/// The processes of this user, but for this one.
fn of_user() -> Vec<Found> {
    let find = |pid: &u32| {
        let (process, parent) = Process::with_parent(*pid)?;
        Some(Found { process, parent, session_id: variable(*pid, SESSION_ID_VARIABLE) })
    };
    pids().iter().filter_map(find).collect()
}

/// The ids of this user's processes, but for this one.
fn pids() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|&pid| pid != std::process::id() && belongs_to_user(pid)).collect()
}

/// The processes of this user that have a variable with this value in their environment.
pub fn with_variable(name: &str, value: &str) -> Vec<Process> {
    let has = |pid: &u32| variable(*pid, name).as_deref() == Some(value.as_bytes());
    pids().into_iter().filter(has).filter_map(Process::of).collect()
}

/// A variable of the environment with which a process was started.
fn variable(pid: u32, name: &str) -> Option<Vec<u8>> {
    let folder = Path::new("/proc").join(pid.to_string());
    let mut environ = std::fs::read(folder.join("environ")).unwrap_or_default();
    if environ.is_empty() {
        // The first thread may have ended, and has no memory then. The others have.
        let threads = std::fs::read_dir(folder.join("task")).ok()?.flatten();
        let mut of_threads = threads.filter_map(|thread| std::fs::read(thread.path().join("environ")).ok());
        environ = of_threads.find(|environ| !environ.is_empty())?;
    }
    let value = |entry: &[u8]| Some(entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?.to_vec());
    environ.split(|byte| *byte == 0).find_map(value)
}

/// Whether a process belongs to this user.
pub fn belongs_to_user(pid: u32) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|meta| meta.uid() == rustix::process::getuid().as_raw())
}
