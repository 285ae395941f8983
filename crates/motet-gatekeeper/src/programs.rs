//! The programs that `motet run` has started in the session: each is in the directory until its process ends, and ends with the session.

use crate::directory::{Directory, DirectoryError};
use crate::liveness;
use crate::members::{Members, belongs_to_user, with_variable};
use motet_session::MODULE_NODE_VARIABLE;
use motet_session::api::Program;
use motet_session::process::Process;
use motet_session::registration::shorten;
use rustix::process::Signal;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Programs have so long to end after SIGTERM; then they get SIGKILL.
const TERM_LIMIT: Duration = Duration::from_secs(3);
/// Wait for the end of processes after SIGKILL. One in an uninterruptible sleep of the kernel ends later.
const KILL_LIMIT: Duration = Duration::from_secs(2);
/// The wait for the list of programs.
const LIST_LIMIT: Duration = Duration::from_millis(500);
/// Interval between two searches for processes that are left.
const SEARCH_INTERVAL: Duration = Duration::from_millis(20);
/// A removal from the directory that fails is tried again after this time.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Adds a program of this host and removes it when its process ends.
pub async fn add(directory: &Directory, host: &str, mut program: Program) -> Result<Program, DirectoryError> {
    if !belongs_to_user(program.process.pid) || !program.process.is_running() {
        return Err(DirectoryError::Invalid(format!(
            "process {} does not run, or is another user's",
            program.process.pid
        )));
    }
    host.clone_into(&mut program.host);
    shorten(&mut program.command);
    directory.add_program(&program).await?;
    watch(directory.clone(), program.clone());
    Ok(program)
}

/// Watches the programs of this host that the directory has from before.
pub async fn take_over(directory: &Directory, host: &str) -> Result<(), DirectoryError> {
    for program in directory.programs().await?.into_iter().filter(|program| program.host == host) {
        watch(directory.clone(), program);
    }
    Ok(())
}

fn watch(directory: Directory, program: Program) {
    tokio::spawn(async move {
        liveness::ended(program.process).await;
        while directory.remove_program(&program).await.is_err() {
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    });
}

/// Ends all processes of the session on this host; `spared` is left alone. Returns how many there were.
pub async fn end_all(directory: &Directory, host: &str, members: &Members, spared: Option<Process>) -> usize {
    let mut ended = HashSet::new();
    for (signal, limit) in [(Signal::TERM, TERM_LIMIT), (Signal::KILL, KILL_LIMIT)] {
        let until = Instant::now() + limit;
        let mut signalled = HashSet::new();
        let mut empty = 0;
        // Two searches in a row: a process may start another one and end between the first search's look at the two.
        while empty < 2 && Instant::now() < until {
            let mut found = members.find(registered(directory, host).await);
            found.retain(|process| Some(*process) != spared && process.is_running());
            empty = if found.is_empty() { empty + 1 } else { 0 };
            for process in found {
                if signalled.insert(process) {
                    liveness::signal(process, signal);
                }
            }
            tokio::time::sleep(SEARCH_INTERVAL).await;
        }
        ended.extend(signalled);
    }
    ended.len()
}

/// The programs of this host that the directory has. It may be on a host that does not answer: then there are none.
pub async fn registered(directory: &Directory, host: &str) -> Vec<Process> {
    let programs = tokio::time::timeout(LIST_LIMIT, directory.programs()).await;
    let programs = programs.ok().and_then(Result::ok).unwrap_or_default();
    programs.into_iter().filter(|program| program.host == host).map(|program| program.process).collect()
}

/// Kills what the programs of a module node have left, once the node has died.
pub fn kill_orphans(node: &str) {
    for process in with_variable(MODULE_NODE_VARIABLE, node) {
        liveness::signal(process, Signal::KILL);
    }
}
