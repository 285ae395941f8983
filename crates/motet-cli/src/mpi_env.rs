//! Environment variables by which `motet run` has MPI libraries use Motet's libfabric provider.
//!
//! Every MPI reads its own variables and ignores those of the others, so all are set. What it is not: a wrapper, or a forced choice. A
//! variable that the user has set stays as it is; flags of a launcher (`--mca`, `-genv`) override variables; and each variable only
//! prefers the provider: if it cannot be loaded, or this MPI has no libfabric, MPI falls back to its own transport over the sockets
//! adapter. `docs/mpi.md` describes each variable.
//!
//! [`MPI_SET`] holds the names of the variables that were set, so that a nested `motet run --off` can remove them.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

use motet_config::Mpi;
use motet_inspect::mpi_skip::{MPI_LEFT, SkipReason};

use crate::mpi_hosts::{self, JobEnvironment};
use crate::mpi_launcher::{Launcher, LauncherFamily};

/// Folders in which libfabric looks for providers, instead of its own folders.
const PROVIDER_PATH: &str = "FI_PROVIDER_PATH";
/// Providers that libfabric may use.
const PROVIDER_CHOICE: &str = "FI_PROVIDER";
/// The name of Motet's provider in libfabric.
const NAME: &str = "motet";
/// Names of the variables that an outer `motet run` has set, separated by commas.
const MPI_SET: &str = "MOTET_MPI_SET";
/// The variables by which Open MPI 4 and 5 take the command of their daemons on other hosts, and the default command.
const LAUNCH_AGENTS: [(&str, &str); 2] =
    [("OMPI_MCA_orte_launch_agent", "orted"), ("PRTE_MCA_prte_launch_agent", "prted")];

/// Variables that prefer the provider, and their values.
const PREFERENCES: [(&str, &str); 10] = [
    // libfabric's old provider `sockets` scores as high as any other, and MPICH takes the first of the highest score.
    (PROVIDER_CHOICE, "^sockets"),
    ("OMPI_MCA_pml", "^ucx"),
    ("OMPI_MCA_mtl", "ofi"),
    ("OMPI_MCA_mtl_ofi_provider_include", NAME),
    // Without this filter Open MPI would use another provider for windows between hosts.
    ("OMPI_MCA_btl_ofi_provider_include", NAME),
    ("OMPI_MCA_osc", "^ucx"),
    ("MPIR_CVAR_CH4_NETMOD", "ofi"),
    ("MPIR_CVAR_NOLOCAL", "1"),
    ("I_MPI_FABRICS", "ofi"),
    // Over any libfabric provider Open MPI leaves a synchronous send that MPI_Mrecv has received without an answer. mpi4py receives by
    // MPI_Mrecv by default, and its futures send synchronously.
    ("MPI4PY_RC_RECV_MPROBE", "0"),
];

/// Why the MPI of a command is not configured; `None` if it is. (For [`SkipReason::OpenMpi`] other MPI libraries still are.)
pub fn skip_reason(wanted: Mpi, command: &[OsString], launcher: &Launcher) -> Option<SkipReason> {
    let variable = |name: &str| std::env::var(name).ok();
    let file = |path: &Path| std::fs::read_to_string(path).ok();
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    match wanted {
        Mpi::On => None,
        Mpi::Off => Some(SkipReason::Off),
        Mpi::Auto
            if !mpi_hosts::spans_hosts(command, &JobEnvironment { variable: &variable, file: &file, name: &name }) =>
        {
            Some(SkipReason::OneHost)
        }
        Mpi::Auto => (launcher.family != LauncherFamily::Hydra).then_some(SkipReason::OpenMpi),
    }
}

/// Removes the variables of an outer `motet run` and records the reason.
fn skip(command: &mut Command, reason: SkipReason) -> String {
    unconfigure(command);
    command.env(MPI_LEFT, reason.word());
    format!("MPI keeps its own transport: {}", reason.why())
}

/// Sets the variables for the MPI of a command, unless there is a reason not to. Returns a line that says what was done.
pub fn configure(command: &mut Command, provider: &Path, launcher: &Launcher, reason: Option<SkipReason>) -> String {
    let outer = set_by_outer_run();
    let have = |name: &str| value_of(command, name).filter(|_| !outer.iter().any(|set| set == name));
    if reason == Some(SkipReason::Off) {
        return skip(command, SkipReason::Off);
    }
    if let Some(chosen) = have(PROVIDER_CHOICE).filter(|chosen| !admits(&chosen.to_string_lossy())) {
        return format!("{}: {}", skip(command, SkipReason::Choice), chosen.to_string_lossy());
    }
    let in_user_file = user_file();
    let is_set: fn(&str) -> bool = match reason {
        None => |_: &str| true,
        // A script or `srun` may start any MPI: configure all but Open MPI.
        Some(SkipReason::OpenMpi) if launcher.family == LauncherFamily::Unknown => {
            |name: &str| !name.starts_with("OMPI_")
        }
        // Only the daemons on other hosts, which carry the sockets adapter there.
        Some(_) => |_: &str| false,
    };
    let mut set: Vec<(&str, OsString)> = Vec::new();
    if is_set(PROVIDER_PATH) {
        set.push((PROVIDER_PATH, path(have(PROVIDER_PATH).as_deref(), provider, &launcher.folders)));
    }
    let set_by_user = |name: &str| {
        have(name).is_some() || name.strip_prefix("OMPI_MCA_").is_some_and(|key| in_user_file.iter().any(|m| m == key))
    };
    let preferences = PREFERENCES.iter().filter(|(name, _)| is_set(name) && !set_by_user(name));
    set.extend(preferences.map(|(name, value)| (*name, OsString::from(value))));
    let agents: Vec<_> = LAUNCH_AGENTS.iter().filter(|(name, _)| !set_by_user(name)).copied().collect();
    unconfigure(command);
    for (name, value) in &set {
        command.env(name, value);
    }
    if let Some(reason) = reason {
        command.env(MPI_LEFT, reason.word());
    }
    let carried = agent_variables(command, &set);
    for (name, daemon) in agents {
        let agent = format!("env {carried} {daemon}");
        command.env(name, &agent);
        set.push((name, agent.into()));
    }
    let names: Vec<&str> = set.iter().map(|(name, _)| *name).collect();
    command.env(MPI_SET, names.join(","));
    match reason {
        None => {
            format!(
                "MPI is configured for the provider in {}; variables left to the user: {}",
                provider.display(),
                left_to_user(&names)
            )
        }
        Some(reason) => format!("MPI keeps its own transport: {}", reason.why()),
    }
}

/// Removes the variables that an outer `motet run` has set.
pub fn unconfigure(command: &mut Command) {
    for name in set_by_outer_run() {
        command.env_remove(name);
    }
    command.env_remove(MPI_SET).env_remove(MPI_LEFT);
}

fn set_by_outer_run() -> Vec<String> {
    let known =
        |name: &str| name == PROVIDER_PATH || PREFERENCES.iter().chain(&LAUNCH_AGENTS).any(|(known, _)| *known == name);
    let names = std::env::var(MPI_SET).unwrap_or_default();
    names.split(',').filter(|name| known(name)).map(str::to_owned).collect()
}

fn left_to_user(set: &[&str]) -> String {
    let kept: Vec<&str> =
        PREFERENCES.iter().chain(&LAUNCH_AGENTS).map(|(name, _)| *name).filter(|name| !set.contains(name)).collect();
    if kept.is_empty() { "none".to_owned() } else { kept.join(" ") }
}

/// The value that the command will see; `None` if empty.
fn value_of(command: &Command, name: &str) -> Option<OsString> {
    let own = command.get_envs().find(|(n, _)| *n == OsStr::new(name)).map(|(_, value)| value.map(OsStr::to_owned));
    own.unwrap_or_else(|| std::env::var_os(name)).filter(|value| !value.is_empty())
}

/// Whether a user's FI_PROVIDER admits Motet's provider. It is a list of names, or after `^` of excluded names.
fn admits(choice: &str) -> bool {
    let (names, excluded) = choice.strip_prefix('^').map_or((choice, false), |rest| (rest, true));
    names.split(',').any(|name| name.trim() == NAME) != excluded
}

/// FI_PROVIDER_PATH: Motet's folder in front of the user's folders, or else of the launcher's own folders.
fn path(user: Option<&OsStr>, provider: &Path, own: &[std::path::PathBuf]) -> OsString {
    let mut path = OsString::new();
    let mut rest = OsString::new();
    match user.map(OsStr::to_string_lossy) {
        Some(user) => {
            // libfabric's mark for "in this order, not by version", which holds for the whole list.
            let (mark, folders) = user.strip_prefix('@').map_or(("", &*user), |folders| ("@", folders));
            path.push(mark);
            let others = folders.split(':').filter(|folder| Path::new(folder) != provider && !folder.is_empty());
            rest.push(others.collect::<Vec<_>>().join(":"));
        }
        None => rest = own.iter().map(|folder| folder.as_os_str()).collect::<Vec<_>>().join(OsStr::new(":")),
    }
    path.push(provider);
    if !rest.is_empty() {
        path.push(":");
        path.push(rest);
    }
    path
}

/// Variables for the daemons that Open MPI starts on other hosts, whose ranks inherit them: NAME=VALUE words that a remote shell does
/// not change. (Open MPI itself passes `OMPI_…` on; other launchers pass everything on.)
fn agent_variables(command: &Command, set: &[(&str, OsString)]) -> String {
    let is_shell_safe =
        |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_./:=,+@%^-".contains(&b));
    let ours = command.get_envs().filter(|(name, _)| {
        let name = name.to_string_lossy();
        name == "LD_PRELOAD"
            || name.starts_with("MOTET_")
            || set.iter().any(|(set, _)| *set == name && !name.starts_with("OMPI_"))
    });
    let ours = ours.filter_map(|(name, value)| Some((name.to_str()?.to_owned(), value?.to_str()?.to_owned())));
    let users =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let users = users
        .filter(|(name, _)| name.starts_with("MOTET_") && command.get_envs().all(|(set, _)| set != OsStr::new(name)));
    let words = ours.chain(users).filter(|(name, value)| is_shell_safe(name) && is_shell_safe(value));
    words.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// Names that the user's own file of Open MPI sets. The system's file belongs to the distribution and is ignored.
fn user_file() -> Vec<String> {
    let home = std::env::var_os("HOME").unwrap_or_default();
    let text = std::fs::read_to_string(Path::new(&home).join(".openmpi/mca-params.conf")).unwrap_or_default();
    names_in(&text)
}

fn names_in(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| Some(line.split_once('=')?.0.trim().to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn choice_of_providers_admits_ours_or_not() {
        for choice in ["motet", "tcp, motet", "^sockets", "^tcp,sockets"] {
            assert!(admits(choice), "{choice}");
        }
        for choice in ["tcp", "^motet", "^tcp,motet", "shm,tcp"] {
            assert!(!admits(choice), "{choice}");
        }
    }

    #[test]
    fn our_folder_is_first_and_no_other_is_lost() {
        let ours = Path::new("/m/libfabric");
        let own = [PathBuf::from("/i/prov"), PathBuf::from("/i/lib")];
        assert_eq!(path(None, ours, &own), "/m/libfabric:/i/prov:/i/lib");
        assert_eq!(path(None, ours, &[]), "/m/libfabric");
        assert_eq!(path(Some("/u/one:/u/two".as_ref()), ours, &own), "/m/libfabric:/u/one:/u/two");
        assert_eq!(path(Some("@/u/one:/m/libfabric".as_ref()), ours, &own), "@/m/libfabric:/u/one");
        assert_eq!(path(Some("/m/libfabric".as_ref()), ours, &[]), "/m/libfabric");
    }

    #[test]
    fn names_in_the_users_file_are_found() {
        assert_eq!(names_in("# mtl = psm\n pml=ob1\nbtl = tcp,self\nnonsense\n"), ["pml", "btl"]);
    }

    #[test]
    fn remote_daemons_get_words_that_a_shell_keeps() {
        let mut command = Command::new("true");
        command
            .env("LD_PRELOAD", "/m/a.so:/m/b.so")
            .env("MOTET_LIBRARY", "/m/l.so")
            .env("MOTET_LOG", "/x y")
            .env("OTHER", "1");
        command.env(PROVIDER_CHOICE, "^sockets").env("OMPI_MCA_mtl", "ofi");
        let set = [(PROVIDER_CHOICE, OsString::from("^sockets")), ("OMPI_MCA_mtl", "ofi".into())];
        let words = agent_variables(&command, &set);
        for word in ["LD_PRELOAD=/m/a.so:/m/b.so", "MOTET_LIBRARY=/m/l.so", "FI_PROVIDER=^sockets"] {
            assert!(words.split(' ').any(|w| w == word), "{words}");
        }
        assert!(!words.contains("x y") && !words.contains("OTHER") && !words.contains("OMPI"), "{words}");
    }
}
