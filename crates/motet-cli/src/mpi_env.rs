//! What `motet run` says to MPI libraries, so that they take Motet's provider of libfabric without further flags.
//!
//! Every MPI reads variables of its own, and none minds those of the others, so all are told. What it is not: a wrapper, or a choice
//! that cannot be undone. A variable that the user has set is left as it is, one by one; flags of a launcher (`--mca`, `-genv`) are
//! stronger than variables anyway; and where the provider cannot be used (it is not loadable there, or this MPI has no libfabric) each
//! MPI falls back to what it takes by itself, over the sockets voice: so none of these variables demands, each only prefers. What
//! each one does: `docs/mpi.md`.
//!
//! Names of what was set are kept in [`SET`], so that a `motet run --off` inside can take it out again.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

use motet_config::Mpi;

use crate::mpi_hosts::{self, Surroundings};
use crate::mpi_launcher::{Family, Launcher};
use crate::procfs;

/// Folders in which libfabric looks for providers, instead of its own.
const PATH: &str = "FI_PROVIDER_PATH";
/// Providers that libfabric may use.
const CHOICE: &str = "FI_PROVIDER";
/// As libfabric calls ours.
const NAME: &str = "motet";
/// Names of the variables that an outer `motet run` has set, separated by commas.
const SET: &str = "MOTET_MPI_SET";
/// Why nothing was set: one of [`Left`]'s words.
const LEFT: &str = "MOTET_MPI_LEFT";
/// What Open MPI 4 and 5 start their daemons on other hosts with.
const AGENTS: [(&str, &str); 2] = [("OMPI_MCA_orte_launch_agent", "orted"), ("PRTE_MCA_prte_launch_agent", "prted")];

/// Preferences: variable and value.
const PREFERENCES: [(&str, &str); 9] = [
    // libfabric's old provider of that name scores as many points as any, and MPICH takes the first that has most.
    (CHOICE, "^sockets"),
    ("OMPI_MCA_pml", "^ucx"),
    ("OMPI_MCA_mtl", "ofi"),
    ("OMPI_MCA_mtl_ofi_provider_include", NAME),
    // Without this component's filter Open MPI's windows between hosts would be another provider's.
    ("OMPI_MCA_btl_ofi_provider_include", NAME),
    ("OMPI_MCA_osc", "^ucx"),
    ("MPIR_CVAR_CH4_NETMOD", "ofi"),
    ("MPIR_CVAR_NOLOCAL", "1"),
    ("I_MPI_FABRICS", "ofi"),
];

/// Why MPI libraries are left to what they take by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// The user has said so.
    Off,
    /// All ranks will be on one host, where no library has been shown to be as fast over Motet in every shape of job.
    OneHost,
    /// Open MPI, or who may be: its component that takes libfabric loses data, hangs and crashes in calls in which its own transports do not.
    OpenMpi,
    /// The user's FI_PROVIDER leaves ours out.
    Choice,
}

impl Left {
    const ALL: [Self; 4] = [Self::Off, Self::OneHost, Self::OpenMpi, Self::Choice];

    fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::OneHost => "one-host",
            Self::OpenMpi => "open-mpi",
            Self::Choice => "FI_PROVIDER",
        }
    }

    /// That of a process, by its environment.
    pub fn of(pid: u32) -> Option<Self> {
        let word = procfs::variable(pid, LEFT)?;
        Self::ALL.into_iter().find(|left| left.word() == word)
    }

    /// What a user may read of it.
    pub fn why(self) -> &'static str {
        match self {
            Self::Off => "mpi is off",
            Self::OneHost => {
                "the job was not known to be on several hosts, and within one MPI's own transport is kept (`--set mpi=on` takes Motet's)"
            }
            Self::OpenMpi => {
                "Open MPI has faults of its own over libfabric, which its own transports have not (`--set mpi=on` takes Motet's)"
            }
            Self::Choice => "FI_PROVIDER leaves Motet's provider out",
        }
    }
}

/// Why a command's MPI is to be left alone; `None`: it is not. (Where only Open MPI is, others are told.)
pub fn left(wanted: Mpi, command: &[OsString], launcher: &Launcher) -> Option<Left> {
    let variable = |name: &str| std::env::var(name).ok();
    let file = |path: &Path| std::fs::read_to_string(path).ok();
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    match wanted {
        Mpi::On => None,
        Mpi::Off => Some(Left::Off),
        Mpi::Auto if !mpi_hosts::several(command, &Surroundings { variable: &variable, file: &file, name: &name }) => {
            Some(Left::OneHost)
        }
        Mpi::Auto => (launcher.family != Family::Hydra).then_some(Left::OpenMpi),
    }
}

/// Leaves it alone, also where an outer `motet run` did not.
fn leave(command: &mut Command, left: Left) -> String {
    untell(command);
    command.env(LEFT, left.word());
    format!("MPI is left alone: {}", left.why())
}

/// Tells the command's MPI, as far as it is not left alone; says what was done.
pub fn tell(command: &mut Command, provider: &Path, launcher: &Launcher, left: Option<Left>) -> String {
    let outer = outer();
    let have = |name: &str| value_of(command, name).filter(|_| !outer.iter().any(|set| set == name));
    if left == Some(Left::Off) {
        return leave(command, Left::Off);
    }
    if let Some(chosen) = have(CHOICE).filter(|chosen| !admits(&chosen.to_string_lossy())) {
        return format!("{}: {}", leave(command, Left::Choice), chosen.to_string_lossy());
    }
    let mine = user_file();
    let told: fn(&str) -> bool = match left {
        None => |_: &str| true,
        // Whatever MPI a script or `srun` starts, but for Open MPI.
        Some(Left::OpenMpi) if launcher.family == Family::Unknown => |name: &str| !name.starts_with("OMPI_"),
        // Daemons on other hosts, and with them the sockets voice there.
        Some(_) => |_: &str| false,
    };
    let mut set: Vec<(&str, OsString)> = Vec::new();
    if told(PATH) {
        set.push((PATH, path(have(PATH).as_deref(), provider, &launcher.folders)));
    }
    let theirs = |name: &str| {
        have(name).is_some() || name.strip_prefix("OMPI_MCA_").is_some_and(|key| mine.iter().any(|m| m == key))
    };
    let preferences = PREFERENCES.iter().filter(|(name, _)| told(name) && !theirs(name));
    set.extend(preferences.map(|(name, value)| (*name, OsString::from(value))));
    let agents: Vec<_> = AGENTS.iter().filter(|(name, _)| !theirs(name)).copied().collect();
    untell(command);
    for (name, value) in &set {
        command.env(name, value);
    }
    if let Some(left) = left {
        command.env(LEFT, left.word());
    }
    let carried = carried(command, &set);
    for (name, daemon) in agents {
        let agent = format!("env {carried} {daemon}");
        command.env(name, &agent);
        set.push((name, agent.into()));
    }
    let names: Vec<&str> = set.iter().map(|(name, _)| *name).collect();
    command.env(SET, names.join(","));
    match left {
        None => format!("MPI is told of the provider in {}; the user's own: {}", provider.display(), kept(&names)),
        Some(left) => format!("MPI is left alone: {}", left.why()),
    }
}

/// Takes out what an outer `motet run` has set.
pub fn untell(command: &mut Command) {
    for name in outer() {
        command.env_remove(name);
    }
    command.env_remove(SET).env_remove(LEFT);
}

fn outer() -> Vec<String> {
    let known = |name: &str| name == PATH || PREFERENCES.iter().chain(&AGENTS).any(|(known, _)| *known == name);
    let names = std::env::var(SET).unwrap_or_default();
    names.split(',').filter(|name| known(name)).map(str::to_owned).collect()
}

fn kept(set: &[&str]) -> String {
    let kept: Vec<&str> =
        PREFERENCES.iter().chain(&AGENTS).map(|(name, _)| *name).filter(|name| !set.contains(name)).collect();
    if kept.is_empty() { "none".to_owned() } else { kept.join(" ") }
}

/// As the command will see it.
fn value_of(command: &Command, name: &str) -> Option<OsString> {
    let own = command.get_envs().find(|(n, _)| *n == OsStr::new(name)).map(|(_, value)| value.map(OsStr::to_owned));
    own.unwrap_or_else(|| std::env::var_os(name)).filter(|value| !value.is_empty())
}

/// Whether a user's FI_PROVIDER leaves ours in: a list of names, or of those that are not wanted.
fn admits(choice: &str) -> bool {
    let (names, excluded) = choice.strip_prefix('^').map_or((choice, false), |rest| (rest, true));
    names.split(',').any(|name| name.trim() == NAME) != excluded
}

/// Our folder in front of what the user has, or else of what libfabric would have looked at.
fn path(user: Option<&OsStr>, provider: &Path, own: &[std::path::PathBuf]) -> OsString {
    let mut path = OsString::new();
    let mut rest = OsString::new();
    match user.map(OsStr::to_string_lossy) {
        Some(user) => {
            // libfabric's mark for "in this order, whatever the versions", which holds for the whole list.
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

/// Variables for the daemons that Open MPI starts on other hosts, whose ranks inherit them: NAME=VALUE words, each of which a remote
/// shell leaves as it is. (`OMPI_…` is passed on by Open MPI itself, and everything by the other launchers.)
fn carried(command: &Command, set: &[(&str, OsString)]) -> String {
    let plain =
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
    let words = ours.chain(users).filter(|(name, value)| plain(name) && plain(value));
    words.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// Names that the user's own file of Open MPI sets (the system's file is the distribution's, not a wish of the user).
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
    fn a_choice_of_providers_leaves_ours_in_or_out() {
        for choice in ["motet", "tcp, motet", "^sockets", "^tcp,sockets"] {
            assert!(admits(choice), "{choice}");
        }
        for choice in ["tcp", "^motet", "^tcp,motet", "shm,tcp"] {
            assert!(!admits(choice), "{choice}");
        }
    }

    #[test]
    fn our_folder_comes_first_and_nothing_is_lost() {
        let ours = Path::new("/m/libfabric");
        let own = [PathBuf::from("/i/prov"), PathBuf::from("/i/lib")];
        assert_eq!(path(None, ours, &own), "/m/libfabric:/i/prov:/i/lib");
        assert_eq!(path(None, ours, &[]), "/m/libfabric");
        assert_eq!(path(Some("/u/one:/u/two".as_ref()), ours, &own), "/m/libfabric:/u/one:/u/two");
        assert_eq!(path(Some("@/u/one:/m/libfabric".as_ref()), ours, &own), "@/m/libfabric:/u/one");
        assert_eq!(path(Some("/m/libfabric".as_ref()), ours, &[]), "/m/libfabric");
    }

    #[test]
    fn what_the_users_file_sets_is_known() {
        assert_eq!(names_in("# mtl = psm\n pml=ob1\nbtl = tcp,self\nnonsense\n"), ["pml", "btl"]);
    }

    #[test]
    fn daemons_elsewhere_get_what_a_shell_leaves_alone() {
        let mut command = Command::new("true");
        command
            .env("LD_PRELOAD", "/m/a.so:/m/b.so")
            .env("MOTET_LIBRARY", "/m/l.so")
            .env("MOTET_LOG", "/x y")
            .env("OTHER", "1");
        command.env(CHOICE, "^sockets").env("OMPI_MCA_mtl", "ofi");
        let set = [(CHOICE, OsString::from("^sockets")), ("OMPI_MCA_mtl", "ofi".into())];
        let words = carried(&command, &set);
        for word in ["LD_PRELOAD=/m/a.so:/m/b.so", "MOTET_LIBRARY=/m/l.so", "FI_PROVIDER=^sockets"] {
            assert!(words.split(' ').any(|w| w == word), "{words}");
        }
        assert!(!words.contains("x y") && !words.contains("OTHER") && !words.contains("OMPI"), "{words}");
    }
}
