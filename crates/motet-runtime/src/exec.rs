//! The driver `exec`: an unmodified program as a child of the node, under Motet.
//!
//! The child has a process group of its own, and the kernel ends it when the node dies. What is left of the group when the program has ended is
//! killed.

mod child;

use crate::descriptor::{Fault, Source};
use crate::instance::{Failed, Instance, Launcher, ProgramStatus, Waker};
use crate::log::Log;
use crate::restart::Restarts;
use crate::units;
use child::Child;
use motet_session::MODULE_NODE_VARIABLE;
use motet_session::modules::ModuleState;
use rustix::process::Signal;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// The variable with the name of the module.
pub const MODULE_VARIABLE: &str = "MOTET_MODULE";
/// A program has so long to end after its signal, if the descriptor does not say.
const DEFAULT_STOP_LIMIT: Duration = Duration::from_secs(2);
/// The longest time that a descriptor may give it, seconds.
const MAX_STOP_LIMIT: u64 = 30;

/// Signals that may end a program.
const STOP_SIGNALS: [(&str, Signal); 7] = [
    ("TERM", Signal::TERM),
    ("INT", Signal::INT),
    ("HUP", Signal::HUP),
    ("QUIT", Signal::QUIT),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("KILL", Signal::KILL),
];

/// A program.
pub struct Exec {
    name: String,
    launcher: Launcher,
    program: PathBuf,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
    folder: PathBuf,
    restart: Restarts,
    stop_signal: Signal,
    stop_limit: Duration,
    waker: Waker,
    log: Log,
    run: Run,
    restarts: u32,
    last_exit: Option<String>,
}

/// What the program does.
enum Run {
    /// It does not run.
    Idle(ModuleState),
    /// It runs.
    Child(Child, Instant),
    /// It is started again at this time.
    Waiting(Instant),
}

impl Exec {
    /// Checks the options and finds the program.
    pub fn load(source: &Source, launcher: &Launcher, waker: Waker, log: Log) -> Result<Self, Failed> {
        let Source { descriptor, folder } = source;
        let [unit] = &descriptor.units[..] else {
            return Err("the driver exec takes one unit, the program".to_owned());
        };
        let fault = |Fault(why): Fault| why;
        let restart = Restarts::parse(descriptor.option("restart"), descriptor.option("restart-limit"))?;
        let stop_signal = match descriptor.option("stop-signal") {
            None => Signal::TERM,
            Some(name) => STOP_SIGNALS
                .iter()
                .find(|(known, _)| *known == name.trim_start_matches("SIG"))
                .map(|(_, signal)| *signal)
                .ok_or_else(|| format!("stop-signal: use one of {}", STOP_SIGNALS.map(|(name, _)| name).join(", ")))?,
        };
        let stop_limit = match descriptor.option("stop-limit").map(str::parse::<u64>) {
            None => DEFAULT_STOP_LIMIT,
            Some(Ok(seconds)) if seconds <= MAX_STOP_LIMIT => Duration::from_secs(seconds),
            Some(_) => return Err(format!("stop-limit is no number of seconds from 0 to {MAX_STOP_LIMIT}")),
        };
        let working = match descriptor.option("folder") {
            None => folder.clone(),
            Some(name) if name.contains("..") => return Err(format!("the folder {name:?} leaves the descriptor's")),
            Some(name) => units::find(folder, name).map_err(fault)?,
        };
        log.note(&format!("{} is loaded", descriptor.name));
        Ok(Self {
            name: descriptor.name.clone(),
            launcher: launcher.clone(),
            program: units::program(folder, unit).map_err(fault)?,
            arguments: descriptor.attributes.get("arguments").cloned().unwrap_or_default(),
            variables: descriptor.variables().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            folder: working,
            restart,
            stop_signal,
            stop_limit,
            waker,
            run: Run::Idle(ModuleState::Loaded),
            restarts: 0,
            last_exit: None,
            log,
        })
    }

    /// Starts the program.
    fn spawn(&mut self) -> Result<(), Failed> {
        let words: Vec<OsString> =
            self.launcher.command.iter().cloned().chain([self.program.clone().into_os_string()]).collect();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(&self.arguments).current_dir(&self.folder);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.env(MODULE_VARIABLE, &self.name).env(MODULE_NODE_VARIABLE, &self.launcher.node);
        let child = Child::spawn(command, &self.log, &self.waker);
        let child = child.map_err(|error| format!("{}: {error}", self.program.display()))?;
        self.log.note(&format!("process {} starts", child.pid()));
        self.run = Run::Child(child, Instant::now());
        Ok(())
    }

    /// The program has ended by itself.
    fn ended(&mut self, status: ExitStatus, ran: Duration, now: Instant) {
        let how = how(status);
        self.run = match self.restart.after_end(status.success(), ran) {
            Some(wait) => {
                self.log.note(&format!("it ended with {how}, and is started again in {} ms", wait.as_millis()));
                Run::Waiting(now + wait)
            }
            None => {
                self.log.note(&format!("it ended with {how}"));
                Run::Idle(if status.success() { ModuleState::Ended } else { ModuleState::Failed })
            }
        };
        self.last_exit = Some(how);
    }
}

impl Instance for Exec {
    fn start(&mut self) -> Result<(), Failed> {
        self.restart.begin();
        self.spawn()
    }

    fn stop(&mut self) -> Result<(), Failed> {
        let run = std::mem::replace(&mut self.run, Run::Idle(ModuleState::Loaded));
        if let Run::Child(child, _) = run {
            let status = child.end(self.stop_signal, self.stop_limit).map_err(|error| error.to_string())?;
            self.last_exit = Some(how(status));
            self.log.note(&format!("it was stopped, and ended with {}", how(status)));
        }
        Ok(())
    }

    fn unload(self: Box<Self>) -> Result<(), Failed> {
        Ok(())
    }

    fn review(&mut self, now: Instant) -> Option<ProgramStatus> {
        match &mut self.run {
            Run::Child(child, began) => {
                let ran = began.elapsed();
                if let Some(status) = child.ended() {
                    self.ended(status, ran, now);
                }
            }
            Run::Waiting(at) if *at <= now => match self.spawn() {
                Ok(()) => self.restarts = self.restarts.saturating_add(1),
                Err(why) => {
                    self.log.note(&format!("it cannot be started again: {why}"));
                    self.last_exit = Some(why);
                    self.run = Run::Idle(ModuleState::Failed);
                }
            },
            Run::Waiting(_) | Run::Idle(_) => {}
        }
        let (state, pid) = match &self.run {
            Run::Idle(state) => (*state, None),
            Run::Child(child, _) => (ModuleState::Running, Some(child.pid())),
            Run::Waiting(_) => (ModuleState::Restarting, None),
        };
        Some(ProgramStatus { state, pid, restarts: self.restarts, last_exit: self.last_exit.clone() })
    }

    fn deadline(&self) -> Option<Instant> {
        match self.run {
            Run::Waiting(at) => Some(at),
            _ => None,
        }
    }
}

/// How a program ended, in a few words.
fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) if status.core_dumped() => format!("signal {signal}, with a core file"),
        (None, signal) => format!("signal {}", signal.unwrap_or(0)),
    }
}
