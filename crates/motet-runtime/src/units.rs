//! The files that the units of a module name.
//!
//! A relative unit lies in the folder of the descriptor, and no symbolic link leads out of it. An absolute one may be any file of the host.

use crate::descriptor::Fault;
use rustix::fs::{Access, access};
use std::path::{Path, PathBuf};

/// The file or folder of a unit.
pub fn find(folder: &Path, unit: &str) -> Result<PathBuf, Fault> {
    let path = folder.join(unit);
    let found = path.canonicalize().map_err(|error| Fault(format!("the unit {unit:?}: {error}")))?;
    if Path::new(unit).is_relative() && !found.starts_with(folder) {
        return Err(Fault(format!("the unit {unit:?} leaves the descriptor's folder")));
    }
    Ok(found)
}

/// The file of a unit.
pub fn file(folder: &Path, unit: &str) -> Result<PathBuf, Fault> {
    let path = find(folder, unit)?;
    if path.is_file() { Ok(path) } else { Err(Fault(format!("the unit {unit:?} is no file"))) }
}

/// The program of a unit. One without `/` is a command of `PATH`, as in a shell.
pub fn program(folder: &Path, unit: &str) -> Result<PathBuf, Fault> {
    let is_program = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    if !unit.contains('/') {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).map(|folder| folder.join(unit)).find(|path| is_program(path));
        return found.ok_or_else(|| Fault(format!("there is no command {unit:?} in PATH")));
    }
    let found = file(folder, unit)?;
    if !is_program(&found) {
        return Err(Fault(format!("the unit {unit:?} is not executable")));
    }
    // By its own name: programs may look at it.
    Ok(folder.join(unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn relative_units_stay_in_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().canonicalize().unwrap().join("modules");
        std::fs::create_dir_all(folder.join("sub")).unwrap();
        std::fs::write(folder.join("sub/a"), "x").unwrap();
        std::fs::write(dir.path().join("secret"), "x").unwrap();
        symlink("../secret", folder.join("out")).unwrap();
        symlink("sub/a", folder.join("in")).unwrap();
        assert_eq!(file(&folder, "sub/a").unwrap(), folder.join("sub/a"));
        assert_eq!(file(&folder, "in").unwrap(), folder.join("sub/a"));
        assert_eq!(file(&folder, "/bin/sh").unwrap(), Path::new("/bin/sh").canonicalize().unwrap());
        for (unit, said) in
            [("out", "leaves"), ("../secret", "leaves"), ("none", "No such file"), ("sub", "is no file")]
        {
            assert!(file(&folder, unit).unwrap_err().0.contains(said), "{unit}");
        }
    }

    #[test]
    fn programs_are_executable() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().canonicalize().unwrap();
        std::fs::write(folder.join("run"), "#!/bin/sh\n").unwrap();
        assert!(program(&folder, "./run").unwrap_err().0.contains("is not executable"));
        std::fs::set_permissions(folder.join("run"), std::fs::Permissions::from_mode(0o755)).unwrap();
        program(&folder, "./run").unwrap();
        assert!(program(&folder, "run").unwrap_err().0.contains("no command"), "only PATH is searched");
        assert!(program(&folder, "sh").unwrap().is_absolute());
    }
}
