//! Programs that run as children of `motet run`: this process forwards signals to them, waits for them, and ends as they did.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::Cause;

use crate::exit_error::{FAILED, Failure, NO_COMMAND, NOT_EXECUTABLE, Outcome};

/// Signals that are forwarded to the programs.
const FORWARDED_SIGNALS: [i32; 8] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGALRM];

/// Catches the signals that are forwarded, and those that report the end of a child. Call this before the first child starts.
///
/// The signals are caught, not blocked: a caught signal has its default action in the program, an ignored one (nohup) stays ignored.
pub fn catch_signals() -> Outcome<SignalsInfo<WithOrigin>> {
    let ignored = ignored_signals();
    let caught = FORWARDED_SIGNALS.into_iter().filter(|n| ignored >> (n - 1) & 1 == 0).chain([SIGCHLD]);
    SignalsInfo::new(caught).map_err(|e| Failure::new(FAILED, format!("cannot wait for signals: {e}")))
}

/// Starts the program. A file that the kernel cannot execute is a script for the shell, as for `execvp`.
pub fn start(command: &mut Command, at: &Path) -> std::io::Result<Child> {
    match command.spawn() {
        Err(e) if e.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error()) => {
            let mut shell = Command::new("/bin/sh");
            shell.arg(at).args(command.get_args());
            for (name, value) in command.get_envs() {
                match value {
                    Some(value) => shell.env(name, value),
                    None => shell.env_remove(name),
                };
            }
            shell.spawn()
        }
        started => started,
    }
}

/// The mask of signals that this process was started to ignore.
pub fn ignored_signals() -> u64 {
    let text = motet_inspect::procfs::status(std::process::id(), "SigIgn").unwrap_or_default();
    u64::from_str_radix(&text, 16).unwrap_or(0)
}

/// Forwards signals until the program has ended; returns how it has.
pub fn wait(child: Child, signals: &mut SignalsInfo<WithOrigin>) -> Outcome<ExitStatus> {
    Ok(wait_all(vec![child], signals)?.0[0])
}

/// Forwards signals until all programs have ended; returns how each has, and which one failed first. Signals of the terminal are skipped: the kernel
/// sends them to the whole foreground group, the programs included.
pub fn wait_all(
    mut children: Vec<Child>,
    signals: &mut SignalsInfo<WithOrigin>,
) -> Outcome<(Vec<ExitStatus>, Option<usize>)> {
    let failed = |e| Failure::new(FAILED, format!("cannot wait for the program: {e}"));
    let mut first_failed = None;
    loop {
        let ended: Vec<_> = children.iter_mut().map(Child::try_wait).collect::<Result<_, _>>().map_err(failed)?;
        first_failed = first_failed.or(ended.iter().position(|status| status.is_some_and(|status| !status.success())));
        if ended.iter().all(Option::is_some) {
            return Ok((ended.into_iter().flatten().collect(), first_failed));
        }
        for origin in signals.wait() {
            if origin.signal == SIGCHLD || matches!(origin.cause, Cause::Kernel) {
                continue;
            }
            let Some(signal) = Signal::from_named_raw(origin.signal) else { continue };
            for (child, _) in children.iter().zip(&ended).filter(|(_, ended)| ended.is_none()) {
                // The program is not reaped yet, so the process id is still its own.
                let _ = rustix::process::kill_process(Pid::from_child(child), signal);
            }
        }
    }
}

/// Exits with the program's code, or ends by the signal that ended it (without a second core file).
pub fn end_as(status: ExitStatus) -> Outcome {
    use rustix::process::{Resource, Rlimit, setrlimit};
    if let Some(code) = status.code() {
        return Ok(code as u8);
    }
    let number = status.signal().unwrap_or(0);
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = signal_hook::low_level::emulate_default_handler(number);
    // A signal whose default action does not end a process: the shell's code.
    Ok(128u8.wrapping_add(number as u8))
}

/// The failure for an error of the kernel when it starts the program.
pub fn cannot_start(program: &OsStr, error: &io::Error) -> Failure {
    let program = program.to_string_lossy();
    match error.kind() {
        // The file itself was found: the interpreter on its first line, or its loader, is missing.
        io::ErrorKind::NotFound => Failure::new(
            NO_COMMAND,
            format!("{program}: its interpreter (#! line or ELF loader) was not found; install it"),
        ),
        _ => Failure::new(NOT_EXECUTABLE, format!("{program}: cannot be executed: {error}")),
    }
}
