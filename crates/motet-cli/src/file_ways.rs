//! How exported directories appear to the program of a `motet run --files`.
//!
//! | way | when |
//! | --- | --- |
//! | preload | the directory can be used by its path here, and the program reads LD_PRELOAD |
//! | bind | the same, but the program does not read it: the directory is mounted again, for this program only |
//! | fuse | the directory cannot be used by its path: a process mounts the export for this program only |

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use motet_inspect::elf_check::Obstacle;
use motet_inspect::exported::{USES_VARIABLE, Use, Way};

use crate::exit_error::{FAILED, Failure, NOT_FOUND, Outcome, USAGE};
use crate::files::{self, Mapping};
use crate::mount_server::MountServer;
use crate::private_mount::{Namespace, check_place};

/// The preload object's longest value, bytes.
const MAX_VALUE: usize = 16_000;

/// What `--files-by` forces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// Paths are changed by the preload object
    Preload,
    /// A mount that only this program and its children see
    Mount,
}

/// The exported directories of one command.
#[derive(Debug)]
pub struct FileWays {
    mappings: Vec<Mapping>,
    by: Option<By>,
    namespace: Option<Namespace>,
    /// What is mounted.
    mounted: Vec<Use>,
}

impl FileWays {
    /// Finds the exports, and mounts those that are not preloaded whatever the program is.
    pub fn start(options: &[String], by: Option<By>) -> Outcome<Self> {
        let mut ways = Self { mappings: files::find(options)?, by, namespace: None, mounted: Vec::new() };
        let (preloadable, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut ways.mappings).into_iter().partition(|mapping| mapping.directory.is_ok());
        ways.mappings = preloadable;
        if by == Some(By::Preload)
            && let Some(Mapping { export, directory: Err(why), .. }) = others.first()
        {
            let code = if why.starts_with("no export") { NOT_FOUND } else { FAILED };
            return Err(Failure::new(
                code,
                format!("export {export} cannot be preloaded: {why}; use --files-by mount"),
            ));
        }
        // The servers of mounts must not be in the namespace.
        let servers: Vec<MountServer> = others
            .iter()
            .map(|mapping| MountServer::start(&mapping.export, &mapping.prefix))
            .collect::<Outcome<_>>()?;
        for (mapping, server) in others.into_iter().zip(&servers) {
            let why = mapping.directory.err().unwrap_or_default();
            ways.enter(&mapping.prefix)?.mount(server, &mapping.export, &mapping.prefix)?;
            let why = format!("{why}; its files are used by {}", server.way);
            ways.mounted.push(used(mapping.export, &mapping.prefix, Way::Fuse, why));
        }
        if by == Some(By::Mount) {
            ways.bind("--files-by mount")?;
        }
        Ok(ways)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.mappings.is_empty() && self.mounted.is_empty()
    }

    /// Whether the preload object has to show one.
    pub fn preloads(&self) -> bool {
        !self.mappings.is_empty()
    }

    /// The program cannot be preloaded: what would have been preloaded is mounted.
    pub fn mount_for(&mut self, program: &Path, obstacle: Obstacle) -> Outcome<()> {
        if self.by == Some(By::Preload) {
            let what = format!("{} cannot see files of --files by preload: {obstacle}", program.display());
            return Err(Failure::new(USAGE, what));
        }
        self.bind(&format!("the program is {}", obstacle.kind()))
    }

    /// Mounts the directories that can be used by their paths.
    fn bind(&mut self, why: &str) -> Outcome<()> {
        for mapping in std::mem::take(&mut self.mappings) {
            let Ok(directory) = mapping.directory else { continue };
            let namespace = self.enter(&mapping.prefix)?;
            namespace.bind(&directory.path, directory.identity, &mapping.prefix, directory.read_only)?;
            self.mounted.push(used(mapping.export, &mapping.prefix, Way::Bind, why.to_owned()));
        }
        Ok(())
    }

    /// The namespace, in which something is to be mounted at `prefix`.
    fn enter(&mut self, prefix: &Path) -> Outcome<&Namespace> {
        let overlaps = |other: &Path| prefix.starts_with(other) || other.starts_with(prefix);
        let others = self.mappings.iter().map(|mapping| &mapping.prefix);
        let mounted = self.mounted.iter().map(|used| Path::new(&used.at));
        if let Some(other) = others.map(PathBuf::as_path).chain(mounted).find(|other| overlaps(other)) {
            let (prefix, other) = (prefix.display(), other.display());
            return Err(Failure::new(
                USAGE,
                format!("--files: one of {prefix} and {other} is mounted, and they lie in each other; use other paths"),
            ));
        }
        if let Some(outer) = files::outer().and_then(|outer| files::prefixes(&outer).into_iter().find(|p| overlaps(p)))
        {
            let (prefix, outer) = (prefix.display(), outer.display());
            let what = format!("--files: {prefix} is mounted, but an outer `motet run --files` has {outer}");
            return Err(Failure::new(USAGE, format!("{what}; use another path")));
        }
        check_place(prefix)?;
        if self.namespace.is_none() {
            self.namespace = Some(Namespace::enter()?);
        }
        self.namespace.as_ref().ok_or_else(|| Failure::new(FAILED, "no mount namespace"))
    }

    /// The real path of a program, if it lies in a directory that is preloaded. `None`: its path is as it is.
    pub fn real(&self, path: &Path) -> Option<PathBuf> {
        let longest = self.mappings.iter().filter(|mapping| path.starts_with(&mapping.prefix));
        let mapping = longest.max_by_key(|mapping| mapping.prefix.as_os_str().len())?;
        Some(mapping.directory.as_ref().ok()?.path.join(path.strip_prefix(&mapping.prefix).ok()?))
    }

    /// Tells the preload object, which goes on with the mappings of an outer `motet run`, and `motet why`.
    pub fn set_variables(&self, command: &mut Command) -> Outcome<()> {
        if self.preloads() {
            let directories = self.mappings.iter().filter_map(|m| Some((&m.prefix, m.directory.as_ref().ok()?)));
            let own = directories.map(|(prefix, directory)| files::text(prefix, directory));
            let value: Vec<Vec<u8>> = own.chain(files::outer().map(OsString::into_vec)).collect();
            let value = value.join(&b':');
            if value.len() > MAX_VALUE {
                return Err(Failure::new(USAGE, "--files: the paths are too long together"));
            }
            command.env(files::VARIABLE, OsString::from_vec(value));
        }
        let outer = std::env::var(USES_VARIABLE).unwrap_or_default();
        let uses: Vec<Use> = self.uses().chain(Use::parse(&outer)).collect();
        command.env(USES_VARIABLE, serde_json::to_string(&uses).unwrap_or_default());
        Ok(())
    }

    /// How each export appears.
    fn uses(&self) -> impl Iterator<Item = Use> {
        let preloaded = self.mappings.iter().map(|mapping| {
            let why = "its directory is on this host, and the program is dynamic".to_owned();
            used(mapping.export.clone(), &mapping.prefix, Way::Preload, why)
        });
        preloaded.chain(self.mounted.iter().cloned())
    }

    /// A line for `-v` of each.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        let directories = self.mappings.iter().filter_map(|m| Some((&m.prefix, m.directory.as_ref().ok()?)));
        let preloaded = directories.map(|(prefix, directory)| {
            let how = if directory.read_only { ", read-only" } else { "" };
            format!("{} is {}{how}", prefix.display(), directory.path.display())
        });
        preloaded.chain(self.mounted.iter().map(Use::to_string))
    }
}

/// The program does not see what an outer `motet run` preloads.
pub fn forget_preloaded(command: &mut Command) {
    let mut uses = Use::parse(&std::env::var(USES_VARIABLE).unwrap_or_default());
    uses.retain(|used| used.way != Way::Preload);
    command.env(USES_VARIABLE, serde_json::to_string(&uses).unwrap_or_default());
}

fn used(export: String, at: &Path, way: Way, why: String) -> Use {
    Use { export, at: at.to_string_lossy().into_owned(), way, why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Directory;

    #[test]
    fn the_longest_prefix_gives_the_program() {
        let mapping = |prefix: &str, path: &str| {
            let directory = Directory { path: path.into(), identity: (1, 1), read_only: false };
            Mapping { export: "e".to_owned(), prefix: prefix.into(), directory: Ok(directory) }
        };
        let mappings = vec![mapping("/mnt/r", "/data"), mapping("/mnt/r/s", "/more")];
        let both = FileWays { mappings, by: None, namespace: None, mounted: Vec::new() };
        assert_eq!(both.real(Path::new("/mnt/r/s/run")), Some("/more/run".into()));
        assert_eq!(both.real(Path::new("/mnt/r/run")), Some("/data/run".into()));
        assert_eq!(both.real(Path::new("/mnt/run")), None);
    }
}
