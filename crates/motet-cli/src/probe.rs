//! `motet probe`: checks that need a process of their own. `motet doctor` starts it, and `motet run` under a system call filter.

use std::io::Read;

use clap::{Args, ValueEnum};
use nix::sched::{CloneFlags, unshare};

use crate::exit_error::{FAILED, Outcome};
use crate::trial_exchange;

/// Run a check in a process of its own, for `motet doctor` and `motet run`
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
    /// Exchange messages with a child over a connection that moves to shared memory.
    Exchange,
    /// Be the child of such an exchange.
    Answer,
}

impl What {
    /// The argument's text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Namespaces => "namespaces",
            Self::Wait => "wait",
            Self::Exchange => "exchange",
            Self::Answer => "answer",
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
        What::Exchange => trial_exchange::exchange(),
        What::Answer => trial_exchange::answer(),
    }
}
