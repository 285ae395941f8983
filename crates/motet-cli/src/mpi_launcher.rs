//! Recognises MPI launchers, and finds the libfabric providers that belong to a launcher's own libfabric.
//!
//! Judged by the file of the command and its folder; no program is run. For an unknown launcher (a script, `srun`, `flux`) no folder
//! of providers is found.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The ending of the file name of a provider.
const PROVIDERS: &str = "-fi.so";

/// The MPI that a launcher belongs to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LauncherFamily {
    /// No known MPI: a script, `srun`, `flux`.
    #[default]
    Unknown,
    /// Open MPI (orterun; prterun in version 5).
    OpenMpi,
    /// MPICH and Intel MPI.
    Hydra,
}

impl LauncherFamily {
    /// The MPI of a launcher, by its real name and the files beside it.
    fn of(real: &Path) -> Self {
        let beside = |name: &str| real.parent().is_some_and(|folder| folder.join(name).exists());
        match real.file_name().and_then(OsStr::to_str).unwrap_or_default() {
            "orterun" | "prterun" => Self::OpenMpi,
            name if name.contains("hydra") || beside("hydra_pmi_proxy") => Self::Hydra,
            _ if beside("prterun") => Self::OpenMpi,
            _ => Self::Unknown,
        }
    }
}

/// A command as an MPI launcher.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Launcher {
    pub family: LauncherFamily,
    /// Folders of the providers of the launcher's own libfabric. FI_PROVIDER_PATH would hide them, so it must name them.
    pub folders: Vec<PathBuf>,
}

impl Launcher {
    /// The launcher in the file of a command.
    pub fn of(file: &Path) -> Self {
        if !is_launcher(file) {
            return Self::default();
        }
        let real = file.canonicalize().unwrap_or_else(|_| file.to_owned());
        let prefixes = [file, &real].map(|file| file.parent().and_then(Path::parent).map(Path::to_owned));
        let mut folders = Vec::new();
        for folder in prefixes.into_iter().flatten().flat_map(|prefix| provider_folders(&prefix)) {
            let folder = folder.canonicalize().unwrap_or(folder);
            if !folders.contains(&folder) && has_providers(&folder) {
                folders.push(folder);
            }
        }
        Self { family: LauncherFamily::of(&real), folders }
    }
}

/// Whether a file is a launcher by its name: `mpirun`, `mpiexec`, `mpirun.openmpi`, `mpiexec.hydra`, `orterun`, `prterun`.
pub fn is_launcher(file: &Path) -> bool {
    let name = file.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let name = name.split('.').next().unwrap_or_default();
    ["mpirun", "mpiexec", "orterun", "prterun"].contains(&name)
}

/// Folders in which distributions of MPI keep providers, below their prefix.
fn provider_folders(prefix: &Path) -> Vec<PathBuf> {
    let known = [
        "lib/libfabric",
        "lib64/libfabric",
        "opt/mpi/libfabric/lib/prov",
        "libfabric/lib/prov",
        "lib/libfabric/prov",
        "lib/prov",
    ];
    let mut provider_folders: Vec<PathBuf> = known.iter().map(|place| prefix.join(place)).collect();
    // PREFIX/lib/openmpi/libfabric, PREFIX/lib/mpich/libfabric, and Debian's PREFIX/lib/x86_64-linux-gnu/libfabric.
    provider_folders.extend(["openmpi", "mpich"].map(|family| prefix.join("lib").join(family).join("libfabric")));
    provider_folders.push(prefix.join("lib").join(format!("{}-linux-gnu", std::env::consts::ARCH)).join("libfabric"));
    // Intel MPI of PyPI keeps them beside its libraries. The system's own folder of libraries is skipped.
    if prefix != Path::new("/usr") && prefix != Path::new("/") {
        provider_folders.push(prefix.join("lib"));
    }
    provider_folders
}

fn has_providers(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| entry.file_name().to_str().is_some_and(|name| name.ends_with(PROVIDERS)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_recognised_by_name() {
        for name in ["mpirun", "/usr/bin/mpirun.openmpi", "/opt/x/bin/mpiexec.hydra", "mpiexec", "prterun", "orterun"] {
            assert!(is_launcher(Path::new(name)), "{name}");
        }
        for name in ["mpirunner", "srun", "sh", "/mpirun/prog", ""] {
            assert!(!is_launcher(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn providers_of_the_launchers_own_libfabric_are_found() {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        let prefix = tempfile::Builder::new().prefix("motet-launcher-").permissions(mode).tempdir().unwrap();
        let prefix = prefix.path();
        let own = prefix.join("opt/mpi/libfabric/lib/prov");
        for folder in [&own, &prefix.join("bin"), &prefix.join("lib/libfabric")] {
            std::fs::create_dir_all(folder).unwrap();
        }
        for file in ["mpiexec.hydra", "orterun", "prterun", "other"].map(|name| prefix.join("bin").join(name)) {
            std::fs::write(file, "").unwrap();
        }
        for file in [own.join("libtcp-fi.so"), prefix.join("lib/mpirun")] {
            std::fs::write(file, "").unwrap();
        }
        std::os::unix::fs::symlink("mpiexec.hydra", prefix.join("bin/mpiexec")).unwrap();
        std::os::unix::fs::symlink("orterun", prefix.join("bin/mpirun.openmpi")).unwrap();
        std::fs::write(prefix.join("bin/mpirun"), "").unwrap();
        let family = |name: &str| Launcher::of(&prefix.join(name)).family;
        let families = ["mpiexec", "mpirun.openmpi", "mpirun", "prterun"].map(|name| family(&format!("bin/{name}")));
        assert_eq!(
            families,
            [LauncherFamily::Hydra, LauncherFamily::OpenMpi, LauncherFamily::OpenMpi, LauncherFamily::OpenMpi]
        );
        assert_eq!([family("lib/mpirun"), family("bin/other")], [LauncherFamily::Unknown; 2]);
        let found = |name: &str| Launcher::of(&prefix.join("bin").join(name)).folders;
        let own = own.canonicalize().unwrap();
        assert_eq!(found("mpiexec"), std::slice::from_ref(&own));
        assert_eq!(found("mpiexec.hydra"), [own]);
        assert_eq!(found("other"), Vec::<PathBuf>::new());
    }
}
