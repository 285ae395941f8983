//! The part of `motet run` that concerns a session: programs are registered, and started as members of a group.
//!
//! A program without a group does not wait for the gatekeeper. In another PID namespace it waits for the answer, for at most [`REGISTER_LIMIT`].

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use motet_session::api::{Program, Session};
use motet_session::client::{Client, ClientError};
use motet_session::launcher::Place;
use motet_session::notes::note;
use motet_session::paths::NAME_VARIABLE;
use motet_session::process::Process;
use motet_session::registration::{Announcement, own_pid_namespace, send_without_answer, shorten};
use motet_session::{GROUP_LAUNCHER_VARIABLE, GROUP_VARIABLE, RANK_VARIABLE, SESSION_ID_VARIABLE, SIZE_VARIABLE};

use crate::children::{self, cannot_start};
use crate::exit_error::Outcome;
use crate::names;
use crate::session;

/// The longest wait for an answer to a program that starts without a group.
const REGISTER_LIMIT: Duration = Duration::from_millis(500);
/// The most programs that one command starts.
pub const MAX_PROGRAMS: u32 = 1024;

/// The session that a program starts in.
#[derive(Debug)]
pub struct Launch {
    client: Client,
    about: Session,
}

impl Launch {
    /// The session that is up, if any.
    pub fn of_session() -> Option<Self> {
        let paths = session::paths().ok()?;
        if !paths.socket().exists() {
            return None;
        }
        let client = Client::of(&paths).ok()?.within(REGISTER_LIMIT);
        match client.get::<Session>("/v1/session") {
            Ok(about) => Some(Self { client, about }),
            Err(ClientError::NotUp) => None,
            Err(error) => {
                note(format_args!("the program is not in session {}: {error}", paths.name()));
                None
            }
        }
    }

    /// Registers this process, which becomes `command` and waits for no answer; sets the variables of the session if one is up.
    pub fn register_this(command: &mut Command) {
        let Ok(paths) = session::paths() else { return };
        let announced = paths.check().ok().and_then(|()| Announcement::read(&paths));
        let shares_ids = |announced: &Announcement| own_pid_namespace() == Some(announced.pid_namespace);
        let Some(announced) = announced.filter(shares_ids) else {
            // The gatekeeper knows this process by another id, or not at all, and says so.
            if let Some(launch) = Self::of_session() {
                launch.set_variables(command);
                launch.register(std::process::id(), command, None);
            }
            return;
        };
        let program = program(Process::this(), command, None);
        match send_without_answer(&paths, &program) {
            Err(ClientError::NotUp) => return,
            Err(error) => note(format_args!("the program is not registered in session {}: {error}", paths.name())),
            Ok(()) => {}
        }
        command.env(NAME_VARIABLE, paths.name()).env(SESSION_ID_VARIABLE, announced.id);
    }

    /// The session, for a program that starts in a group. Fails if there is none.
    pub fn in_group(group: &str) -> Outcome<Self> {
        names::check("group", group)?;
        let client = session::client(&session::paths()?)?;
        let about = client.get::<Session>("/v1/session")?;
        Ok(Self { client, about })
    }

    /// Sets the variables of a program of the session.
    pub fn set_variables(&self, command: &mut Command) {
        command.env(NAME_VARIABLE, &self.about.name).env(SESSION_ID_VARIABLE, &self.about.id);
    }

    /// Registers a process. False: the session has ended.
    pub fn register(&self, pid: u32, command: &Command, place: Option<(&str, Option<u32>)>) -> bool {
        let Some(process) = Process::of(pid) else { return true };
        let program = program(process, command, place);
        match self.client.post::<Program>("/v1/programs", &program) {
            Err(ClientError::NotUp) => return false,
            Err(error) if process.is_running() => {
                note(format_args!("process {pid} is not registered in session {}: {error}", self.about.name));
            }
            Ok(_) | Err(_) => {} // it may have ended already
        }
        true
    }

    /// Starts the programs of a group, waits for all of them, and ends as the first one that failed.
    pub fn run_group(&self, mut command: Command, program: &OsStr, at: &Path, group: &str, size: u32) -> Outcome {
        let mut signals = children::catch_signals()?;
        command.env(GROUP_VARIABLE, group).env(SIZE_VARIABLE, size.to_string());
        match Place::by_launcher(&|name| std::env::var(name).ok()) {
            Some(place) => command.env(GROUP_LAUNCHER_VARIABLE, place.identity()),
            None => command.env_remove(GROUP_LAUNCHER_VARIABLE),
        };
        let mut running = Vec::new();
        for rank in 0..size {
            command.env(RANK_VARIABLE, rank.to_string());
            match children::start(&mut command, at) {
                Ok(child) => {
                    let is_up = self.register(child.id(), &command, Some((group, Some(rank))));
                    running.push(child);
                    if !is_up {
                        end(&mut running);
                        return Err(ClientError::NotUp.into());
                    }
                }
                Err(error) => {
                    end(&mut running);
                    return Err(cannot_start(program, &error));
                }
            }
        }
        let (statuses, first_failed) = children::wait_all(running, &mut signals)?;
        for (rank, status) in statuses.iter().enumerate().filter(|(_, status)| !status.success()) {
            let how = status.code().map(|code| format!("exit status {code}"));
            let how = how.unwrap_or_else(|| format!("signal {}", status.signal().unwrap_or(0)));
            note(format_args!("rank {rank} of group {group} ended with {how}"));
        }
        match first_failed {
            Some(rank) => children::end_as(statuses[rank]),
            None => Ok(0),
        }
    }
}

/// What the session keeps of a program.
fn program(process: Process, command: &Command, place: Option<(&str, Option<u32>)>) -> Program {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let mut command = words.map(|word| word.to_string_lossy().into_owned()).collect();
    shorten(&mut command);
    let group = place.map(|(group, _)| group.to_owned());
    Program { host: String::new(), process, command, group, rank: place.and_then(|(_, rank)| rank) }
}

/// Ends programs at once.
fn end(running: &mut [Child]) {
    for child in running {
        let _ = child.kill();
        let _ = child.wait();
    }
}
