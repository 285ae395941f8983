//! `motet run`: starts a program with Motet preloaded.
//!
//! The program replaces this process, so its process id, signals and exit status are its own. With `--stats` this process stays as the
//! parent ([`crate::stats`]).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use motet_config::profile::ProfileLookup;
use motet_config::{Config, Loaded, Mpi, SETTINGS, Setting, ValueSource};
use motet_sys::append_file::{Appender, OWN_OUTPUT};

use crate::children::cannot_start;
use crate::exit_error::{Failure, LIBRARIES, NO_COMMAND, NOT_EXECUTABLE, Outcome, USAGE};
use crate::file_ways::{self, By, FileWays};
use crate::files;
use crate::launch::{self, Launch};
use crate::libraries::{self, Libraries};
use crate::mpi_launcher::Launcher;
use crate::{config, globus, mpi_env, sandbox, sanitizers, stats};
use motet_inspect::elf_check::{self, CommandSearch};
use motet_inspect::process_scan::{FILES_SHIM, ORB_SHIM, SHIM};
use motet_session::notes;

/// Run a program under Motet, with all programs that it starts
///
/// The program is not changed: a preload library handles its sockets. MPI launchers and other parents need no options, as
/// their children inherit the preload library.
#[derive(Debug, Args)]
#[command(after_help = crate::exit_error::AFTER_HELP)]
pub struct Arguments {
    /// Drivers that may be used, such as `shm,tcp`; or `-shm` for all but that one
    #[arg(long, value_name = "DRIVERS", allow_hyphen_values = true, conflicts_with = "off")]
    on: Option<String>,

    /// Run without Motet, also inside another `motet run`: for comparisons
    #[arg(long)]
    off: bool,

    /// When the program has ended, print a table on standard error: the bytes of each process by path
    #[arg(long)]
    stats: bool,

    /// Append a line to this file for each stream that is upgraded, stays on TCP, is reset or ends; `%p` is the process id
    #[arg(long, value_name = "FILE", conflicts_with = "off")]
    log: Option<PathBuf>,

    /// Set one of the settings that `motet config` lists
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,

    /// Start the program in this group of the session (`motet up`)
    #[arg(long, value_name = "NAME", conflicts_with_all = ["off", "stats"])]
    group: Option<String>,

    /// Start so many processes, with ranks in MOTET_GROUP_RANK
    #[arg(short = 'n', value_name = "N", default_value_t = 1, requires = "group")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(launch::MAX_PROGRAMS)))]
    processes: u32,

    /// Let the program and its children, and no others, see an export at a path; HOST:NAME=/PATH if several hosts have it
    #[arg(long, value_name = "EXPORT=/PATH", conflicts_with = "off")]
    files: Vec<String>,

    /// How they see it [default: by preload where the directory is on this host and the program is dynamic, else by a mount]
    #[arg(long, value_name = "WAY", requires = "files")]
    files_by: Option<By>,

    /// Print what is set up, and why a program runs without Motet
    #[arg(short, long)]
    verbose: bool,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND", value_hint = clap::ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// The command.
pub fn run(arguments: &Arguments, json: bool) -> Outcome {
    let (settings, loaded) = settings(arguments)?;
    let program = &arguments.command[0];
    let mut exports = FileWays::start(&arguments.files, arguments.files_by)?;
    let real = exports.real(Path::new(program)).map(PathBuf::into_os_string);
    let to_run = real.as_deref().unwrap_or(program);
    let file = match elf_check::search(to_run, std::env::var_os("PATH")) {
        CommandSearch::Executable(file) => file,
        CommandSearch::Missing => return Err(not_found(program)),
        CommandSearch::NotExecutable(file) => return Err(not_executable(&file)),
    };
    let obstacle = elf_check::inspect(&file).err();
    let libraries = if arguments.off { None } else { Some(libraries::find()?) };

    if let Some(obstacle) = obstacle {
        exports.mount_for(&file, obstacle)?;
    }
    // What is mounted has its own path.
    let to_run = if exports.preloads() { to_run } else { program };
    let mut command = Command::new(to_run);
    command.arg0(program).args(&arguments.command[1..]);
    for (name, value) in &settings {
        command.env(name, value);
    }
    let note = |what: String| {
        if arguments.verbose {
            notes::note(what);
        }
    };
    if let Some(obstacle) = obstacle {
        note(format!("{} runs without Motet: {obstacle}", file.display()));
    }
    let orb = given(&settings, "MOTET_OMNIORB").map_or(loaded.config.omniorb, |value| value.eq_ignore_ascii_case("on"));
    exports.notes().for_each(note);
    if !exports.is_empty() {
        exports.set_variables(&mut command)?;
    }
    let sees_files = exports.preloads() || files::outer().is_some();
    if let Some(Libraries { files_shim: None, .. }) = libraries
        && exports.preloads()
    {
        return Err(Failure::new(LIBRARIES, format!("{FILES_SHIM} is missing; build or install Motet again")));
    }
    match libraries.map(|libraries| libraries.with_orb(orb).with_files(sees_files)) {
        Some(libraries) if !obstacle.is_some_and(elf_check::Obstacle::forbids_preload) => {
            let preload_objects: Vec<_> =
                libraries.preload_objects().map(|object| object.display().to_string()).collect();
            note(format!("preloading {}, engine {}", preload_objects.join(" and "), libraries.engine.display()));
            add_preload(&mut command, &libraries);
            sanitizers::configure(&mut command);
            sandbox::configure(&mut command, sandbox::find(&libraries)).map(note);
            let wanted = given(&settings, "MOTET_MPI").map_or(loaded.config.mpi, Mpi::parse);
            let launcher = Launcher::of(&file);
            match libraries.provider.as_deref() {
                Some(provider) => {
                    let reason = mpi_env::skip_reason(wanted, &arguments.command, &launcher);
                    note(mpi_env::configure(&mut command, provider, &launcher, reason));
                }
                None => mpi_env::unconfigure(&mut command),
            }
            if let Some(line) =
                globus::configure(&mut command, libraries.xio_driver.as_deref(), &file, &arguments.command)
            {
                note(line);
            }
            if orb {
                set_omniorb_variables(&mut command, &settings, &loaded.config);
            }
        }
        _ => {
            remove_preload(&mut command);
            mpi_env::unconfigure(&mut command);
        }
    }
    if !arguments.off {
        note(sizes(&loaded));
        if let Some(path) = log_file(&settings, &loaded)
            && let Err(why) = try_log(&path)
        {
            notes::note(format_args!("no log: {}: {why}; the program runs without a log", path.display()));
        }
    }
    if let Some(group) = &arguments.group {
        let session = Launch::in_group(group)?;
        session.set_variables(&mut command);
        return session.run_group(command, program, &file, group, arguments.processes);
    }
    if !arguments.off {
        Launch::register_this(&mut command);
    }
    if arguments.stats {
        return stats::run(command, program, &file, json);
    }
    Err(cannot_start(program, &command.exec()))
}

/// Sets the variables of the omniORB adapter, which reads the environment only, from the settings file.
fn set_omniorb_variables(command: &mut Command, settings: &[(&'static str, String)], config: &Config) {
    let huge = if config.omniorb_huge { "on" } else { "off" };
    for (name, value) in
        [("MOTET_OMNIORB_MESSAGE", config.omniorb_message.to_string()), ("MOTET_OMNIORB_HUGE", huge.to_owned())]
    {
        if given(settings, name).is_none() {
            command.env(name, value);
        }
    }
}

/// Checks `--set`, `--on`, `--log` and `--off`. Returns the variables to set for the program, and the settings without them.
fn settings(arguments: &Arguments) -> Outcome<(Vec<(&'static str, String)>, Loaded)> {
    let loaded = config::load()?;
    let mut disable = loaded.config.disable;
    let mut settings = Vec::new();
    for text in &arguments.set {
        let Some((name, value)) = text.split_once('=') else {
            return Err(Failure::new(USAGE, format!("--set {text}: no value; write --set NAME=VALUE")));
        };
        settings.push(checked(name.trim(), value)?);
    }
    if let Some(drivers) = &arguments.on {
        settings.push(checked("drivers", drivers)?);
    }
    if let Some(path) = &arguments.log {
        // The program may change its folder before the first line of the log.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let Some(path) = path.to_str() else {
            return Err(Failure::new(
                USAGE,
                format!("--log {}: the name is not UTF-8 text; use another name", path.display()),
            ));
        };
        settings.push(checked("log", path)?);
    }
    for (name, value) in &settings {
        if *name == "MOTET_DISABLE" {
            disable = ["1", "true", "yes", "on"].contains(&value.to_ascii_lowercase().as_str());
        }
    }
    // The preload object reads one spelling only.
    settings.retain(|(name, _)| *name != "MOTET_DISABLE");
    settings.push(("MOTET_DISABLE", if disable || arguments.off { "1" } else { "0" }.to_owned()));
    Ok((settings, loaded))
}

/// The log that the program will write, if any.
fn log_file(settings: &[(&'static str, String)], loaded: &Loaded) -> Option<PathBuf> {
    match given(settings, "MOTET_LOG") {
        Some(path) => (!path.is_empty()).then(|| path.into()),
        None => loaded.config.log.clone(),
    }
}

/// The value of a setting on the command line. The last one wins.
fn given<'a>(settings: &'a [(&'static str, String)], variable: &str) -> Option<&'a str> {
    settings.iter().rev().find(|(name, _)| *name == variable).map(|(_, value)| value.as_str())
}

/// Whether a log can be written to a path. With `%p` only the folder is checked.
fn try_log(path: &Path) -> Result<(), String> {
    let text_of = |errno: i32| match errno {
        OWN_OUTPUT => "it is the program's own output".to_owned(),
        errno => io::Error::from_raw_os_error(errno).to_string(),
    };
    if path.to_string_lossy().contains("%p") {
        use rustix::fs::{Access, access};
        let folder = path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
        return access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(|e| text_of(e.raw_os_error()));
    }
    Appender::open(path).map(drop).map_err(text_of)
}

/// A line for `-v`: the source of the sizes of large transfers.
fn sizes(loaded: &Loaded) -> String {
    match &loaded.profile {
        ProfileLookup::Valid { path, profile } => {
            format!("profile {}: {}", path.display(), crate::tune::describe(profile))
        }
        ProfileLookup::Ignored { path, why } => {
            format!("profile {} is not used: {why}; run `motet tune` to measure again", path.display())
        }
        ProfileLookup::Missing => {
            "no profile of this machine, so sizes are defaults; run `motet tune` to measure one".into()
        }
    }
}

fn checked(name: &str, value: &str) -> Outcome<(&'static str, String)> {
    let find = |setting: &&Setting| setting.name == name || setting.env == name;
    let Some(setting) = SETTINGS.iter().find(find) else {
        return Err(Setting::unknown(name, ValueSource::CommandLine).into());
    };
    setting.check(value, ValueSource::CommandLine)?;
    if setting.name == "drivers" {
        let words: Vec<String> = value.split(',').map(|w| w.trim().to_owned()).filter(|w| !w.is_empty()).collect();
        if let Some(problem) = config::check_drivers(&motet_config::Drivers::parse(&words), ValueSource::CommandLine) {
            return Err(problem.into());
        }
    }
    Ok((setting.env, value.trim().to_owned()))
}

/// Puts the preload objects in front of what the user preloads.
fn add_preload(command: &mut Command, libraries: &Libraries) {
    let users = without_shim(std::env::var_os("LD_PRELOAD"));
    let users = Some(users).filter(|users| !users.is_empty());
    let all: Vec<OsString> =
        libraries.preload_objects().map(|object| object.clone().into_os_string()).chain(users).collect();
    let preload = all.join(OsStr::new(":"));
    command.env("LD_PRELOAD", preload).env("MOTET_LIBRARY", &libraries.engine);
}

/// Removes the preload objects of an outer `motet run`.
fn remove_preload(command: &mut Command) {
    if files::outer().is_some() {
        // Empty: this process's own files adapter adds nothing to the environment.
        command.env(files::VARIABLE, "");
        file_ways::forget_preloaded(command);
    }
    let users = without_shim(std::env::var_os("LD_PRELOAD"));
    if users.is_empty() {
        command.env_remove("LD_PRELOAD")
    } else {
        command.env("LD_PRELOAD", users)
    };
}

fn without_shim(preload: Option<OsString>) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let preload = preload.unwrap_or_default();
    let parts = preload.as_bytes().split(|b| *b == b' ' || *b == b':').filter(|part| !part.is_empty());
    let is_ours = |part: &&[u8]| {
        let name = Path::new(OsStr::from_bytes(part)).file_name();
        [SHIM, ORB_SHIM, FILES_SHIM].iter().any(|object| name == Some(OsStr::new(object)))
    };
    let users: Vec<&[u8]> = parts.filter(|part| !is_ours(part)).collect();
    OsString::from_vec(users.join(&b':'))
}

fn not_found(program: &OsStr) -> Failure {
    let program = program.to_string_lossy();
    let fix = if program.contains('/') { "check the path" } else { "check the name and PATH" };
    Failure::new(NO_COMMAND, format!("{program}: command not found; {fix}"))
}

fn not_executable(file: &Path) -> Failure {
    let fix = if file.is_dir() { "it is a folder" } else { "make it executable with chmod +x" };
    Failure::new(NOT_EXECUTABLE, format!("{}: not executable; {fix}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_preload_objects_are_kept() {
        let kept = |text: &str| without_shim(Some(text.into())).into_string().unwrap();
        assert_eq!(kept("/x/libmotet_sockets.so"), "");
        assert_eq!(kept("/a.so:/x/libmotet_sockets.so /b.so"), "/a.so:/b.so");
        assert_eq!(kept("/x/libmotet_sockets.so:/x/libmotet_omniorb.so:/b.so"), "/b.so");
        assert_eq!(kept("/x/libmotet_files.so:/x/libmotet_sockets.so:/b.so"), "/b.so");
        assert_eq!(kept("/not-libmotet_sockets.so"), "/not-libmotet_sockets.so");
        assert_eq!(without_shim(None), "");
    }

    #[test]
    fn settings_on_the_command_line_are_checked() {
        assert_eq!(checked("ring", "64K").unwrap(), ("MOTET_RING", "64K".into()));
        assert_eq!(checked("MOTET_HOT", "8").unwrap().0, "MOTET_HOT");
        let message = |name, value| checked(name, value).unwrap_err().message;
        assert_eq!(message("rign", "1"), "command line: no such setting: `rign`; did you mean ring?");
        assert!(message("drivers", "warp").starts_with("command line: no such driver: `warp`; use "));
        assert!(checked("drivers", "-shm").is_ok());
    }
}
