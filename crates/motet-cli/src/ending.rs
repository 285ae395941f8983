//! The signals that end a command that serves.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator;
use std::io;

use crate::children;

/// The signals, caught from the creation on.
#[derive(Debug)]
pub struct Signals(iterator::Signals);

impl Signals {
    /// Catches SIGTERM, SIGINT and SIGHUP. Those that were ignored when the process started (nohup) stay ignored.
    pub fn new() -> io::Result<Self> {
        let ignored = children::ignored_signals();
        let caught = [SIGTERM, SIGINT, SIGHUP].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
        Ok(Self(iterator::Signals::new(caught)?))
    }

    /// Waits for the first one. A second one ends the process at once.
    pub fn wait(mut self) {
        let _ = self.0.forever().next();
        let handle = self.0.handle();
        let second = move || {
            if let Some(signal) = self.0.forever().next() {
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        };
        // Without the thread a second signal is only ignored.
        if std::thread::Builder::new().name("motet-signals".to_owned()).spawn(second).is_err() {
            handle.close();
        }
    }
}
