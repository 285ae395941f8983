//! What a driver does with a module that is loaded, and what it needs for that.
//!
//! All calls come from the node's one thread for modules.

use motet_session::modules::ModuleState;
use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// Why a driver cannot do something, in text of any length and form.
pub type Failed = String;

/// A module that is loaded.
pub trait Instance {
    /// Starts it.
    fn start(&mut self) -> Result<(), Failed>;
    /// Stops it. After an error it counts as stopped, too.
    fn stop(&mut self) -> Result<(), Failed>;
    /// Gives back what it has. It does not run.
    fn unload(self: Box<Self>) -> Result<(), Failed>;
    /// The program of a module that is one, after a look at whether it still runs.
    fn review(&mut self, _now: Instant) -> Option<ProgramStatus> {
        None
    }
    /// When it wants to be reviewed, at the latest.
    fn deadline(&self) -> Option<Instant> {
        None
    }
}

/// The program of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramStatus {
    /// Its state.
    pub state: ModuleState,
    /// Its process id, while it runs.
    pub pid: Option<u32>,
    /// How often it was started again.
    pub restarts: u32,
    /// How it ended last.
    pub last_exit: Option<String>,
}

/// Makes the node look at its modules again. Any thread may call it.
#[derive(Clone)]
pub struct Waker(pub Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker(..)")
    }
}

/// How programs of modules are started.
#[derive(Debug, Clone)]
pub struct Launcher {
    /// The command that starts a program under Motet: the program and its arguments follow.
    pub command: Vec<OsString>,
    /// The node's identity. Programs carry it in their environment, so that they can be found when the node has died.
    pub node: String,
}
