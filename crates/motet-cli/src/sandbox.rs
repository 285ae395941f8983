//! Programs that start under a system call filter, such as a container's default profile.
//!
//! A filter that a program installs itself confines it: from then on the adapter makes no system call that the program does not make. A filter that was there
//! before `motet run` restricts all programs alike, and most of them answer a refused call with an error. Whether Motet works under it is found out once, by an
//! exchange between two processes that use the engine. If it does, [`FILTERS_VARIABLE`] holds the number of filters, and only a process with more of them is
//! confined.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use motet_inspect::procfs;

use crate::libraries::Libraries;
use crate::probe::What;

/// The number of filters that `motet run` started under, if Motet works under them.
pub const FILTERS_VARIABLE: &str = "MOTET_SECCOMP_FILTERS";
/// An exchange takes some milliseconds.
const LIMIT: Duration = Duration::from_secs(5);

/// What a filter means for the programs that `motet run` starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sandbox {
    /// There is no filter.
    None,
    /// Motet works under so many filters.
    Works(u32),
    /// Motet does not work under them, or they cannot be counted.
    Refuses,
}

/// Finds out what this process's filters permit. An outer `motet run` under the same filters has found out already.
pub fn find(libraries: &Libraries) -> Sandbox {
    let own = std::process::id();
    if !procfs::has_filter(own) {
        return Sandbox::None;
    }
    let Some(filters) = procfs::filters(own) else { return Sandbox::Refuses };
    let known = std::env::var(FILTERS_VARIABLE).ok().and_then(|text| text.parse().ok());
    if known == Some(filters) || exchange_works(libraries, filters) {
        Sandbox::Works(filters)
    } else {
        Sandbox::Refuses
    }
}

/// Sets the variable for a program. Returns a line that says what was found, if there is a filter.
pub fn configure(command: &mut Command, sandbox: Sandbox) -> Option<String> {
    match sandbox {
        Sandbox::None => {
            command.env_remove(FILTERS_VARIABLE);
            None
        }
        Sandbox::Works(filters) => {
            command.env(FILTERS_VARIABLE, filters.to_string());
            Some(format!("{filters} system call filters were there before; Motet works under them"))
        }
        Sandbox::Refuses => {
            command.env_remove(FILTERS_VARIABLE);
            Some(
                "a system call filter was there before, under which Motet does not work: connections stay on TCP"
                    .to_owned(),
            )
        }
    }
}

fn exchange_works(libraries: &Libraries, filters: u32) -> bool {
    let Ok(own) = std::env::current_exe() else { return false };
    let mut command = Command::new(own);
    command.args(["probe", What::Exchange.name()]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // The exchange follows no setting of the program, and appears in none of its reports.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"MOTET_")) {
        command.env_remove(name);
    }
    command.env("LD_PRELOAD", &libraries.shim).env("MOTET_LIBRARY", &libraries.engine).env("MOTET_CONFIG", "/dev/null");
    command.env(FILTERS_VARIABLE, filters.to_string()).env("MOTET_PATIENCE", "20ms").env("MOTET_DISABLE", "0");
    let Ok(mut child) = command.spawn() else { return false };
    let until = Instant::now() + LIMIT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return false;
            }
        }
    }
}
