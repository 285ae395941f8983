//! `motet run --files NAME=/path`: exported directories that appear under a path of one program and its children.
//!
//! The preload object `libmotet_files.so` changes paths; every file is opened by the kernel. So the directory must be usable from here without its server:
//! the export is one of this host that allows it (`direct`), and its path leads to the same directory here as at the server.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use motet_files::exports::{Found, Query, ask};

use crate::exit_error::{FAILED, Failure, NOT_FOUND, Outcome, USAGE};

/// The variable that the preload object reads: `PREFIX=FOLDER[=ro][:...]`, with a backslash before `:`, `=` and backslash within names.
pub const VARIABLE: &str = "MOTET_FILES";
/// The most mappings that the preload object takes.
const MAX_MAPPINGS: usize = 16;
/// Its longest value, bytes.
const MAX_VALUE: usize = 16_000;
/// Its longest prefix or directory, bytes.
const MAX_PATH: usize = 2047;

/// An exported directory and where it appears.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    prefix: PathBuf,
    directory: PathBuf,
    read_only: bool,
}

/// The mappings of one command.
#[derive(Debug, Default)]
pub struct Mappings(Vec<Mapping>);

impl Mappings {
    /// Finds the exports of `NAME=/path` options.
    pub fn find(options: &[String]) -> Outcome<Self> {
        let mut mappings = Vec::new();
        for option in options {
            let (name, prefix) = parse(option)?;
            let (directory, read_only) = folder_of(name)?;
            mappings.push(Mapping { prefix, directory, read_only });
        }
        check(&mappings)?;
        Ok(Self(mappings))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The real path of a program, if it lies in a mapped directory. `None`: its path is as it is.
    pub fn real(&self, path: &Path) -> Option<PathBuf> {
        let longest = self.0.iter().filter(|mapping| path.starts_with(&mapping.prefix));
        let mapping = longest.max_by_key(|mapping| mapping.prefix.as_os_str().len())?;
        Some(mapping.directory.join(path.strip_prefix(&mapping.prefix).ok()?))
    }

    /// Tells the preload object, which goes on with the mappings of an outer `motet run`.
    pub fn set_variable(&self, command: &mut Command) -> Outcome<()> {
        let own = self.0.iter().map(Mapping::text);
        let value: Vec<Vec<u8>> = own.chain(outer().map(OsString::into_vec)).collect();
        let value = value.join(&b':');
        if value.len() > MAX_VALUE {
            return Err(Failure::new(USAGE, "--files: the paths are too long together"));
        }
        command.env(VARIABLE, OsString::from_vec(value));
        Ok(())
    }

    /// A line for `-v` of each.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|mapping| {
            let Mapping { prefix, directory, read_only } = mapping;
            let how = if *read_only { ", read-only" } else { "" };
            format!("{} is {}{how}", prefix.display(), directory.display())
        })
    }
}

/// The mappings of an outer `motet run`.
pub fn outer() -> Option<OsString> {
    std::env::var_os(VARIABLE).filter(|outer| !outer.is_empty())
}

impl Mapping {
    fn text(&self) -> Vec<u8> {
        let mut text = escaped(self.prefix.as_os_str());
        text.push(b'=');
        text.extend(escaped(self.directory.as_os_str()));
        if self.read_only {
            text.extend(b"=ro");
        }
        text
    }
}

fn escaped(path: &OsStr) -> Vec<u8> {
    let mut text = Vec::new();
    for byte in path.as_bytes() {
        if matches!(byte, b':' | b'=' | b'\\') {
            text.push(b'\\');
        }
        text.push(*byte);
    }
    text
}

/// The name of the export and the prefix of an option.
fn parse(option: &str) -> Outcome<(&str, PathBuf)> {
    let wrong = |why: &str| Failure::new(USAGE, format!("--files {option}: {why}"));
    let (name, path) = option.split_once('=').ok_or_else(|| wrong("write NAME=/path"))?;
    let path = Path::new(path);
    if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
        return Err(wrong("the path must be absolute and without `..`"));
    }
    let path: PathBuf = path.components().collect();
    let Some(parent) = path.parent() else { return Err(wrong("the root directory cannot be replaced")) };
    // Programs that look at each directory of a path would not get as far as the prefix.
    if !parent.is_dir() {
        return Err(wrong(&format!("there is no directory {}; use a path in one that exists", parent.display())));
    }
    if path.as_os_str().len() > MAX_PATH {
        return Err(wrong("the path is too long"));
    }
    Ok((name, path))
}

/// The directory of an export, and whether it is read-only.
fn folder_of(name: &str) -> Outcome<(PathBuf, bool)> {
    let Found { info, root } = ask(name, &Query { root: true, ..Query::default() }).map_err(|error| {
        let none = error.kind() == std::io::ErrorKind::NotFound;
        let what = if none {
            format!("no export {name} on this host")
        } else {
            format!("export {name} does not answer: {error}")
        };
        Failure::new(if none { NOT_FOUND } else { FAILED }, what)
    })?;
    let unusable = |why: &str| {
        Failure::new(FAILED, format!("export {name} is not usable directly here: {why}; use it through `motet mount`"))
    };
    let Some(root) = root.filter(|_| info.direct) else { return Err(unusable("its server does not allow it")) };
    let directory = PathBuf::from(&info.directory);
    // Within an outer `motet run --files` this process would get a name that its own prefixes give the directory.
    let directory = if outer().is_some() { Ok(directory) } else { directory.canonicalize() };
    let directory = directory.map_err(|error| unusable(&format!("{}: {error}", info.directory)))?;
    let same = rustix::fs::fstat(&root)
        .and_then(|there| Ok((there, rustix::fs::stat(&directory)?)))
        .is_ok_and(|(there, here)| (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino));
    if !same {
        return Err(unusable(&format!("{} is another directory here than at its server", directory.display())));
    }
    if directory.as_os_str().len() > MAX_PATH {
        return Err(unusable("its path is too long"));
    }
    Ok((directory, info.read_only))
}

/// What the preload object would leave out.
fn check(mappings: &[Mapping]) -> Outcome<()> {
    if mappings.len() > MAX_MAPPINGS {
        return Err(Failure::new(USAGE, format!("--files: at most {MAX_MAPPINGS} directories")));
    }
    for (at, mapping) in mappings.iter().enumerate() {
        let prefix = mapping.prefix.display();
        if mappings[..at].iter().any(|other| other.prefix == mapping.prefix) {
            return Err(Failure::new(USAGE, format!("--files: {prefix} is given twice")));
        }
        let hides =
            |other: &&Mapping| other.directory.starts_with(&mapping.prefix) && other.directory != mapping.prefix;
        if let Some(hidden) = mappings.iter().find(hides) {
            let directory = hidden.directory.display();
            return Err(Failure::new(
                USAGE,
                format!("--files: {prefix} would hide {directory}, which is exported; use another path"),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(prefix: &str, directory: &str, read_only: bool) -> Mapping {
        Mapping { prefix: prefix.into(), directory: directory.into(), read_only }
    }

    #[test]
    fn options_name_an_export_and_a_path() {
        assert_eq!(parse("results=/tmp//r/").unwrap(), ("results", "/tmp/r".into()));
        for wrong in ["results", "results=r", "results=/", "results=/tmp/../r", "results=/no-such-directory/r"] {
            assert_eq!(parse(wrong).unwrap_err().code, USAGE, "{wrong}");
        }
    }

    #[test]
    fn names_with_special_bytes_are_escaped() {
        assert_eq!(mapping("/mnt/r", "/data", true).text(), b"/mnt/r=/data=ro");
        assert_eq!(mapping("/a:b", r"/c=d\e", false).text(), br"/a\:b=/c\=d\\e");
    }

    #[test]
    fn a_prefix_hides_no_exported_directory() {
        assert!(check(&[mapping("/mnt/r", "/data", false), mapping("/mnt/r/s", "/more", false)]).is_ok());
        assert!(check(&[mapping("/data", "/data", false)]).is_ok());
        assert!(check(&[mapping("/data", "/data/x", false)]).is_err());
        assert!(check(&[mapping("/mnt/r", "/data", false), mapping("/mnt/r", "/more", false)]).is_err());
    }

    #[test]
    fn the_longest_prefix_gives_the_program() {
        let both = Mappings(vec![mapping("/mnt/r", "/data", false), mapping("/mnt/r/s", "/more", false)]);
        assert_eq!(both.real(Path::new("/mnt/r/s/run")), Some("/more/run".into()));
        assert_eq!(both.real(Path::new("/mnt/r/run")), Some("/data/run".into()));
        assert_eq!(both.real(Path::new("/mnt/run")), None);
    }
}
