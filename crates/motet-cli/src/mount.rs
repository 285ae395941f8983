//! `motet mount` and `motet umount`: an export as a file system.

use clap::Args;
use motet_files::client::Client;
use motet_files::uses::{self, Announced};
use motet_fuse::{Mount, Options, unmount};
use motet_session::api::ExportUse;
use motet_sys::inherited::only_standard_descriptors;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::ending;
use crate::exit_error::{FAILED, Failure, NOT_FOUND, Outcome};
use crate::limits;
use crate::mount_points::is_mount_of_export;
use crate::names;
use crate::output;

/// Threads that answer the kernel.
pub const THREADS: usize = 4;
/// How long names and attributes may be used without asking the server.
pub const VALIDITY: Duration = Duration::from_secs(1);
/// What the process in the background writes when the file system is mounted.
const MOUNTED: &[u8] = b"mounted\n";
/// Most links that lead to a mount, as in path_resolution(7).
const MAX_LINKS: usize = 40;

/// Mount an export on a directory, for all programs of this user
///
/// The file system is served by a process in the background until `motet umount`. A call waits for a server that is away, or fails with EIO after --soft.
#[derive(Debug, Args)]
#[command(after_help = crate::exit_error::AFTER_HELP)]
pub struct Arguments {
    /// The name of the export, on this host or on another one of the session; HOST:NAME if several have it
    #[arg(value_name = "EXPORT")]
    export: String,

    /// The directory
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,

    /// Let calls fail with EIO when the server is away for this long [default: they wait]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    soft: Option<Duration>,

    /// How long names and attributes may be used without asking the server
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    validity: Duration,

    /// Let other users use the file system, with the permissions of its files
    #[arg(long)]
    allow_other: bool,

    /// Let the kernel keep written data until a close, an fsync, or its memory is needed; only for files that no other client changes
    #[arg(long)]
    writeback: bool,

    /// Stay in the foreground until it is unmounted, or until SIGTERM or Ctrl-C
    #[arg(long)]
    foreground: bool,

    /// Write `mounted` to standard output and close it; `motet mount` says so to its process in the background
    #[arg(long, hide = true)]
    notify: bool,
}

/// Unmount what `motet mount` has mounted
#[derive(Debug, Args)]
#[command(after_help = crate::exit_error::AFTER_HELP)]
pub struct UmountArguments {
    /// The directory
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,

    /// Unmount it although programs use it: calls that wait for the server fail
    #[arg(long)]
    force: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "no number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// `motet mount`.
pub fn mount(arguments: &Arguments) -> Outcome {
    names::check_export(&arguments.export)?;
    let at = std::path::absolute(&arguments.directory).and_then(|named| without_links(&named));
    // A second one would hide the first.
    if at.is_ok_and(|at| is_mount_of_export(&at).unwrap_or(false)) {
        let shown = arguments.directory.display();
        return Err(Failure::new(FAILED, format!("{shown}: an export is mounted here already: motet umount {shown}")));
    }
    if arguments.foreground || arguments.notify { serve(arguments) } else { start(arguments) }
}

/// Serves the file system in this process.
fn serve(arguments: &Arguments) -> Outcome {
    let Arguments { export, directory, soft, validity, allow_other, writeback, .. } = arguments;
    let failed = |what: &str, error: std::io::Error| Failure::new(FAILED, format!("{what}: {error}"));
    let signals = ending::Signals::new().map_err(|error| failed("signals", error))?;
    limits::prepare_to_serve().map_err(|error| failed("signals", error))?;
    // The kernel has applied the programs' own masks.
    rustix::process::umask(rustix::fs::Mode::empty());
    let client = Client::named(export, *soft).map_err(|error| not_connected(export, error))?;
    let options = Options {
        name: export.clone(),
        validity: *validity,
        other_users: *allow_other,
        threads: THREADS,
        writeback: *writeback,
    };
    let mount = Mount::start(client.clone(), directory, &options)
        .map_err(|error| failed(&directory.display().to_string(), explained(error, directory)))?;
    // Without it the mount works, and is not listed.
    let announced = Announced::start(
        client.clone(),
        "mount",
        export,
        &std::path::absolute(directory).unwrap_or_else(|_| directory.clone()).to_string_lossy(),
        &uses::why(&client, export),
    );
    if arguments.notify {
        // A Ctrl-C at the terminal is not for this process any more.
        let _ = rustix::process::setsid();
        let _ = std::io::stdout().write_all(MOUNTED).and_then(|()| std::io::stdout().flush());
        detach().map_err(|error| failed("standard output", error))?;
    } else {
        output::text(&format!("{export} is mounted on {}\n", directory.display()))?;
    }
    let path = directory.clone();
    let of_signals = client.clone();
    let ended = std::thread::Builder::new().name("motet-umount".to_owned()).spawn(move || {
        signals.wait();
        // Programs that still use it keep what they have open; no new ones get in.
        let _ = unmount(&path, UnmountFlags::DETACH);
        // They go on as long as the server answers.
        of_signals.stop_waiting();
    });
    ended.map_err(|error| failed("signals", error))?;
    let waited = mount.wait();
    drop(announced);
    client.close();
    waited.map_err(|error| failed(&directory.display().to_string(), error))?;
    Ok(0)
}

/// The failure of a client that does not reach its export.
pub fn not_connected(export: &str, error: std::io::Error) -> Failure {
    match error.raw_os_error() {
        Some(2) => Failure::new(NOT_FOUND, not_found(export)),
        _ => Failure::new(FAILED, format!("export {export}: {error}")),
    }
}

/// Says that an export is not there, and how it comes to be there.
fn not_found(export: &str) -> String {
    match (export.split_once(':'), export.split_once('@')) {
        (Some((host, name)), _) => format!(
            "no export {name} on host {host} of the session (`motet hosts` lists them): on {host}, motet export DIRECTORY --as {name}"
        ),
        (None, Some((user, name))) => format!(
            "user {user} has no export {name} on this host that you may use: as {user}, motet export DIRECTORY --as {name} --to group:GROUP"
        ),
        (None, None) => {
            format!("no export {export} on this host or in the session: motet export DIRECTORY --as {export}")
        }
    }
}

/// Lets go of the terminal and of what waits for the output's end.
fn detach() -> std::io::Result<()> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Starts this command again in the background, and waits until the file system is mounted.
fn start(arguments: &Arguments) -> Outcome {
    let failed = |error: std::io::Error| Failure::new(FAILED, format!("the process in the background: {error}"));
    // It does not keep the caller's directory busy, so paths must not depend on that.
    let directory = std::path::absolute(&arguments.directory).map_err(failed)?;
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(["mount", "--notify", "--validity", &arguments.validity.as_secs_f64().to_string()]);
    if let Some(soft) = arguments.soft {
        command.args(["--soft", &soft.as_secs_f64().to_string()]);
    }
    if arguments.allow_other {
        command.arg("--allow-other");
    }
    if arguments.writeback {
        command.arg("--writeback");
    }
    command.arg("--").arg(&arguments.export).arg(directory);
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = only_standard_descriptors(&mut command).spawn().map_err(failed)?;
    let mut said = Vec::new();
    if let Some(output) = child.stdout.take() {
        output.take(MOUNTED.len() as u64).read_to_end(&mut said).map_err(failed)?;
    }
    if said == MOUNTED {
        return Ok(0);
    }
    // It has said why.
    let status = child.wait().map_err(failed)?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED))
}

/// `motet umount`.
pub fn umount(arguments: &UmountArguments) -> Outcome {
    let directory = &arguments.directory;
    take_away(directory, arguments.force).map_err(|error| {
        let code = if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) { NOT_FOUND } else { FAILED };
        Failure::new(code, format!("{}: {}", directory.display(), explained(error, directory)))
    })?;
    Ok(0)
}

/// Unmounts an export, and nothing else.
fn take_away(directory: &Path, by_force: bool) -> std::io::Result<()> {
    let named = std::path::absolute(directory)?;
    let at = without_links(&named)?;
    if !is_mount_of_export(&at)? {
        return Err(Errno::INVAL.into());
    }
    // What was looked at, and not what a link leads to by now.
    let kept = UnmountFlags::NOFOLLOW;
    if by_force { force(&named, &at, kept) } else { unmount(&at, kept) }
}

/// The path that links lead to. Nothing here asks the directory itself, which could wait for its server.
fn without_links(named: &Path) -> std::io::Result<PathBuf> {
    let mut at = named.to_owned();
    for _ in 0..MAX_LINKS {
        let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else { return Ok(at) };
        let parent = parent.canonicalize()?;
        at = parent.join(name);
        match std::fs::read_link(&at) {
            Ok(target) => at = parent.join(target),
            Err(_) => return Ok(at),
        }
    }
    Err(Errno::LOOP.into())
}

/// Takes a mount away although programs use it. Root ends the connection to the kernel, and all calls with it. Another user detaches the mount, and its
/// process ends the calls that wait.
fn force(named: &Path, at: &Path, kept: UnmountFlags) -> std::io::Result<()> {
    let is_it = |found: &ExportUse| found.front == "mount" && [named, at].contains(&Path::new(&found.at));
    let uses = uses::list().into_iter().filter(is_it);
    let servers: Vec<_> = uses.filter_map(|found| i32::try_from(found.process).ok().and_then(Pid::from_raw)).collect();
    unmount(at, UnmountFlags::FORCE | UnmountFlags::DETACH | kept)?;
    for server in servers {
        // One that has ended with the mount is gone.
        let _ = kill_process(server, Signal::TERM);
    }
    Ok(())
}

/// Says what to do about errors of mounting that users meet.
fn explained(error: std::io::Error, directory: &Path) -> std::io::Error {
    let hint = match error.raw_os_error() {
        Some(code) if code == Errno::BUSY.raw_os_error() => "programs use it",
        Some(code) if code == Errno::INVAL.raw_os_error() => "it is not mounted",
        Some(code) if code == Errno::NOENT.raw_os_error() => match () {
            () if !directory.exists() => return error,
            () if !Path::new("/dev/fuse").exists() => "there is no /dev/fuse (module fuse)",
            () => "there is no fusermount3 (package fuse3)",
        },
        _ => return error,
    };
    std::io::Error::other(format!("{error}: {hint}"))
}
