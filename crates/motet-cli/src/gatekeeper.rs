//! `motet gatekeeper`: the process that `motet up` starts in the background.

use clap::Args;
use motet_gatekeeper::server::{Gatekeeper, Options};
use motet_session::paths::SessionPaths;
use std::io::Write;
use tokio::signal::unix::{SignalKind, signal};

use crate::containers_argument::ContainersArgument;
use crate::directory_arguments::DirectoryArguments;
use crate::exit_error::{FAILED, Failure, Outcome, USAGE};
use crate::names;

/// The exit code if another gatekeeper has the session.
pub const ANOTHER_RUNS: u8 = 75;

/// Run a gatekeeper in the foreground; `motet up` does so in the background
#[derive(Debug, Args)]
pub struct Arguments {
    /// The session
    name: String,

    /// The name of this host in the session
    #[arg(long, value_name = "NAME")]
    host: Option<String>,

    /// Address of the API for clients that know the session's key
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<std::net::SocketAddr>,

    #[command(flatten)]
    directory: DirectoryArguments,

    /// Whether containers share memory
    #[arg(long, value_name = "POLICY")]
    containers: Option<ContainersArgument>,

    /// Stay with the command that has started this one; a signal to end, and that command's end, end the session
    #[arg(long)]
    foreground: bool,
}

/// The command. Prints `ready` once it listens.
pub fn run(arguments: &Arguments) -> Outcome {
    let failed = |error: &dyn std::fmt::Display| Failure::new(FAILED, error.to_string());
    let paths = SessionPaths::of(&arguments.name).map_err(|error| Failure::new(USAGE, error.to_string()))?;
    if let Some(host) = &arguments.host {
        names::check("host", host)?;
    }
    let directory = arguments.directory.address()?;
    if arguments.foreground {
        let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    } else {
        // Of its own session, so that the end of the terminal is not its end. A leader of a process group has one already.
        let _ = rustix::process::setsid();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| failed(&error))?;
    runtime.block_on(async {
        let containers = arguments.containers.map(Into::into);
        let options = Options { paths, host: arguments.host.clone(), listen: arguments.listen, directory, containers };
        let mut stop = signal(SignalKind::terminate()).map_err(|error| failed(&error))?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| failed(&error))?;
        let mut hang_up = signal(SignalKind::hangup()).map_err(|error| failed(&error))?;
        let gatekeeper = Gatekeeper::start(options).await.map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => Failure::new(ANOTHER_RUNS, error.to_string()),
            _ => failed(&error),
        })?;
        let mut out = std::io::stdout();
        let told = writeln!(out, "ready").and_then(|()| out.flush());
        let is_alone = arguments.foreground && told.is_err();
        let stopped = async {
            if !is_alone {
                tokio::select! {
                    _ = stop.recv() => {}
                    _ = interrupt.recv() => {}
                    _ = hang_up.recv() => {}
                }
            }
        };
        let run = match arguments.foreground {
            true => gatekeeper.run_in_front(stopped).await,
            false => gatekeeper.run(stopped).await,
        };
        run.map_err(|error| failed(&error))
    })?;
    Ok(0)
}
