//! `motet probe`: checks that need a process of their own. Only `motet doctor` starts it.

use std::io::Read;

use clap::{Args, ValueEnum};
use nix::sched::{CloneFlags, unshare};

use crate::exit_error::{FAILED, Outcome};

/// Run a check in a process of its own, for `motet doctor`
#[derive(Debug, Args)]
pub struct Arguments {
    what: What,
}

/// The check to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// Create a user and a network namespace; the exit code is the result.
    Namespaces,
    /// Wait for the end of standard input, as a target for single copy.
    Wait,
}

impl What {
    /// The argument's text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Namespaces => "namespaces",
            Self::Wait => "wait",
        }
    }
}

/// The command.
pub fn run(arguments: &Arguments) -> Outcome {
    match arguments.what {
        What::Namespaces => {
            let made = unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET);
            Ok(if made.is_ok() { 0 } else { FAILED })
        }
        What::Wait => {
            let _ = std::io::stdin().read(&mut [0]);
            Ok(0)
        }
    }
}
