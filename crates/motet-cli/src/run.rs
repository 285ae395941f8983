//! `motet run`: starts a program with Motet preloaded.
//!
//! The program replaces this process, so that its process id, signals and exit status are its own. Only `--stats` stays
//! as its parent ([`crate::stats`]).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use motet_config::profile::Found;
use motet_config::{Config, Loaded, Mpi, Place, SETTINGS, Setting};
use motet_sys::append_file::{Appender, OWN_OUTPUT};

use crate::elf_check::{self, Search};
use crate::exit_error::{Failure, NO_COMMAND, NOT_EXECUTABLE, Outcome, USAGE};
use crate::libraries::{self, Libraries};
use crate::mpi_launcher::Launcher;
use crate::process_scan::{ORB_SHIM, SHIM};
use crate::{config, mpi_env, stats};

/// Run a program under Motet, with all programs that it starts
///
/// The program is not changed: a preload library takes care of its sockets. MPI launchers and other parents need nothing,
/// their children inherit it.
#[derive(Debug, Args)]
#[command(after_help = crate::exit_error::AFTER_HELP)]
pub struct Arguments {
    /// Drivers that may be used, such as `shm,tcp`; or `-shm` for all but that one
    #[arg(long, value_name = "DRIVERS", allow_hyphen_values = true, conflicts_with = "off")]
    on: Option<String>,

    /// Run without Motet, even where an outer `motet run` would equip it: for comparisons
    #[arg(long)]
    off: bool,

    /// When the program has ended, print a table of what each process moved over which path, on standard error
    #[arg(long)]
    stats: bool,

    /// Append a line to this file for each stream that is upgraded, stays on TCP, is reset or ends; `%p` is the process id
    #[arg(long, value_name = "FILE", conflicts_with = "off")]
    log: Option<PathBuf>,

    /// Set one of the settings that `motet config` lists
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,

    /// Say what is done, and why a program stays plain
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
    let file = match elf_check::search(program, std::env::var_os("PATH")) {
        Search::Found(file) => file,
        Search::Missing => return Err(not_found(program)),
        Search::NotExecutable(file) => return Err(not_executable(&file)),
    };
    let obstacle = elf_check::inspect(&file).err();
    let libraries = if arguments.off { None } else { Some(libraries::find()?) };

    let mut command = Command::new(program);
    command.args(&arguments.command[1..]);
    for (name, value) in &settings {
        command.env(name, value);
    }
    let say = |what: String| {
        if arguments.verbose {
            eprintln!("motet: {what}");
        }
    };
    if let Some(obstacle) = obstacle {
        say(format!("{} stays on plain TCP: {obstacle}", file.display()));
    }
    let orb = given(&settings, "MOTET_OMNIORB").map_or(loaded.config.omniorb, |value| value.eq_ignore_ascii_case("on"));
    match libraries.map(|libraries| libraries.with_orb(orb)) {
        Some(libraries) if !obstacle.is_some_and(elf_check::Obstacle::forbids_preload) => {
            let voices: Vec<_> = libraries.voices().map(|voice| voice.display().to_string()).collect();
            say(format!("preloading {}, engine {}", voices.join(" and "), libraries.engine.display()));
            equip(&mut command, &libraries);
            let wanted = given(&settings, "MOTET_MPI").map_or(loaded.config.mpi, Mpi::parse);
            let launcher = Launcher::of(&file);
            match libraries.provider.as_deref() {
                Some(provider) => {
                    let left = mpi_env::left(wanted, &arguments.command, &launcher);
                    say(mpi_env::tell(&mut command, provider, &launcher, left));
                }
                None => mpi_env::untell(&mut command),
            }
            if orb {
                tell_orb(&mut command, &settings, &loaded.config);
            }
        }
        _ => {
            strip(&mut command);
            mpi_env::untell(&mut command);
        }
    }
    if !arguments.off {
        say(sizes(&loaded));
        if let Some(path) = log_file(&settings, &loaded)
            && let Err(why) = try_log(&path)
        {
            eprintln!("motet: no log: {}: {why}; the program runs without one", path.display());
        }
    }
    if arguments.stats {
        return stats::run(command, program, &file, json);
    }
    Err(cannot_start(program, &command.exec()))
}

/// The omniORB voice knows the environment only, so it is told what the file says.
fn tell_orb(command: &mut Command, settings: &[(&'static str, String)], config: &Config) {
    let huge = if config.omniorb_huge { "on" } else { "off" };
    for (name, value) in
        [("MOTET_OMNIORB_MESSAGE", config.omniorb_message.to_string()), ("MOTET_OMNIORB_HUGE", huge.to_owned())]
    {
        if given(settings, name).is_none() {
            command.env(name, value);
        }
    }
}

/// Variables to set for the program: `--set`, `--on` and `--off`, all checked, on top of what is set already.
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
        // The program may go elsewhere before its first line.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let Some(path) = path.to_str() else {
            return Err(Failure::new(USAGE, format!("--log {}: the name is not UTF-8 text", path.display())));
        };
        settings.push(checked("log", path)?);
    }
    for (name, value) in &settings {
        if *name == "MOTET_DISABLE" {
            disable = ["1", "true", "yes", "on"].contains(&value.to_ascii_lowercase().as_str());
        }
    }
    // One spelling, which the preload object reads without knowing the others.
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

/// What the command line says of a setting: the last word counts.
fn given<'a>(settings: &'a [(&'static str, String)], variable: &str) -> Option<&'a str> {
    settings.iter().rev().find(|(name, _)| *name == variable).map(|(_, value)| value.as_str())
}

/// Whether a log can be written there. With `%p` only its folder is looked at.
fn try_log(path: &Path) -> Result<(), String> {
    let words = |errno: i32| match errno {
        OWN_OUTPUT => "it is the program's own output".to_owned(),
        errno => io::Error::from_raw_os_error(errno).to_string(),
    };
    if path.to_string_lossy().contains("%p") {
        use rustix::fs::{Access, access};
        let folder = path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
        return access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(|e| words(e.raw_os_error()));
    }
    Appender::open(path).map(drop).map_err(words)
}

/// Where the sizes of large transfers come from.
fn sizes(loaded: &Loaded) -> String {
    match &loaded.profile {
        Found::Valid { path, profile } => format!("profile {}: {}", path.display(), crate::tune::describe(profile)),
        Found::Ignored { path, why } => {
            format!("profile {} is not used: {why}; `motet tune` measures anew", path.display())
        }
        Found::Missing => "no profile of this machine, so sizes are defaults; `motet tune` measures one".into(),
    }
}

fn checked(name: &str, value: &str) -> Outcome<(&'static str, String)> {
    let find = |setting: &&Setting| setting.name == name || setting.env == name;
    let Some(setting) = SETTINGS.iter().find(find) else {
        return Err(Setting::unknown(name, Place::CommandLine).into());
    };
    setting.check(value, Place::CommandLine)?;
    if setting.name == "drivers" {
        let words: Vec<String> = value.split(',').map(|w| w.trim().to_owned()).filter(|w| !w.is_empty()).collect();
        if let Some(problem) = config::check_drivers(&motet_config::Drivers::parse(&words), Place::CommandLine) {
            return Err(problem.into());
        }
    }
    Ok((setting.env, value.trim().to_owned()))
}

/// Puts the preload objects in front of what the user preloads.
fn equip(command: &mut Command, libraries: &Libraries) {
    let others = without_shim(std::env::var_os("LD_PRELOAD"));
    let others = Some(others).filter(|others| !others.is_empty());
    let all: Vec<OsString> = libraries.voices().map(|voice| voice.clone().into_os_string()).chain(others).collect();
    let preload = all.join(OsStr::new(":"));
    command.env("LD_PRELOAD", preload).env("MOTET_LIBRARY", &libraries.engine);
}

/// Takes the preload objects of an outer `motet run` out.
fn strip(command: &mut Command) {
    let others = without_shim(std::env::var_os("LD_PRELOAD"));
    if others.is_empty() {
        command.env_remove("LD_PRELOAD")
    } else {
        command.env("LD_PRELOAD", others)
    };
}

fn without_shim(preload: Option<OsString>) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let preload = preload.unwrap_or_default();
    let parts = preload.as_bytes().split(|b| *b == b' ' || *b == b':').filter(|part| !part.is_empty());
    let is_ours = |part: &&[u8]| {
        let name = Path::new(OsStr::from_bytes(part)).file_name();
        [SHIM, ORB_SHIM].iter().any(|voice| name == Some(OsStr::new(voice)))
    };
    let others: Vec<&[u8]> = parts.filter(|part| !is_ours(part)).collect();
    OsString::from_vec(others.join(&b':'))
}

fn not_found(program: &OsStr) -> Failure {
    let program = program.to_string_lossy();
    let fix = if program.contains('/') { "check the path" } else { "check the name and PATH" };
    Failure::new(NO_COMMAND, format!("{program}: command not found; {fix}"))
}

fn not_executable(file: &Path) -> Failure {
    let fix = if file.is_dir() { "it is a folder" } else { "make it so with chmod +x" };
    Failure::new(NOT_EXECUTABLE, format!("{}: not executable; {fix}", file.display()))
}

/// What the kernel said when the program was to start.
pub fn cannot_start(program: &OsStr, error: &io::Error) -> Failure {
    let program = program.to_string_lossy();
    match error.kind() {
        // It was there a moment ago: most likely what it names on its first line, or its loader, is missing.
        io::ErrorKind::NotFound => {
            Failure::new(NO_COMMAND, format!("{program}: its interpreter (#! line or ELF loader) was not found"))
        }
        _ => Failure::new(NOT_EXECUTABLE, format!("{program}: cannot be executed: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_preloads_is_kept() {
        let kept = |text: &str| without_shim(Some(text.into())).into_string().unwrap();
        assert_eq!(kept("/x/libmotet_sockets.so"), "");
        assert_eq!(kept("/a.so:/x/libmotet_sockets.so /b.so"), "/a.so:/b.so");
        assert_eq!(kept("/x/libmotet_sockets.so:/x/libmotet_omniorb.so:/b.so"), "/b.so");
        assert_eq!(kept("/not-libmotet_sockets.so"), "/not-libmotet_sockets.so");
        assert_eq!(without_shim(None), "");
    }

    #[test]
    fn settings_are_checked_where_they_are_written() {
        assert_eq!(checked("ring", "64K").unwrap(), ("MOTET_RING", "64K".into()));
        assert_eq!(checked("MOTET_HOT", "8").unwrap().0, "MOTET_HOT");
        let message = |name, value| checked(name, value).unwrap_err().message;
        assert_eq!(message("rign", "1"), "command line: no such setting: `rign`; did you mean ring?");
        assert!(message("drivers", "warp").starts_with("command line: no such driver: `warp`; there are: "));
        assert!(checked("drivers", "-shm").is_ok());
    }
}
