//! `motet run --files NAME=/path`: which exported directories appear under which paths. How they do is decided in [`crate::file_ways`].

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use motet_files::exports::{Found, Query, ask};

use crate::exit_error::{FAILED, Failure, Outcome, USAGE};
use crate::names;

/// The variable that the preload object reads: `PREFIX=FOLDER[=ro][:...]`, with a backslash before `:`, `=` and backslash within names.
pub const VARIABLE: &str = "MOTET_FILES";
/// The most mappings that the preload object takes.
const MAX_MAPPINGS: usize = 16;
/// Its longest prefix or directory, bytes.
const MAX_PATH: usize = 2047;

/// An export and where it appears.
#[derive(Debug)]
pub struct Mapping {
    /// The export: NAME or HOST:NAME.
    pub export: String,
    /// Where it appears.
    pub prefix: PathBuf,
    /// The directory, if it can be used without its server by its path; otherwise why not.
    pub directory: Result<Directory, String>,
}

/// An exported directory of this host.
#[derive(Debug, Clone)]
pub struct Directory {
    /// Its path, here as at its server.
    pub path: PathBuf,
    /// Its device and inode.
    pub identity: (u64, u64),
    /// Whether its export refuses changes.
    pub read_only: bool,
}

/// The mappings of `NAME=/path` options.
pub fn find(options: &[String]) -> Outcome<Vec<Mapping>> {
    let mut mappings = Vec::new();
    for option in options {
        let (name, prefix) = parse(option)?;
        names::check_export(name)?;
        mappings.push(Mapping { export: name.to_owned(), prefix, directory: directory_of(name)? });
    }
    check(&mappings)?;
    Ok(mappings)
}

/// The mappings of an outer `motet run`.
pub fn outer() -> Option<OsString> {
    std::env::var_os(VARIABLE).filter(|outer| !outer.is_empty())
}

/// The prefixes in a text for the preload object.
pub fn prefixes(text: &OsStr) -> Vec<PathBuf> {
    let mut prefixes = vec![Vec::new()];
    let mut in_prefix = true;
    let mut bytes = text.as_bytes().iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b':' => {
                prefixes.push(Vec::new());
                in_prefix = true;
            }
            b'=' => in_prefix = false,
            _ => {
                let byte = if byte == b'\\' { bytes.next() } else { Some(byte) };
                if let (true, Some(last)) = (in_prefix, prefixes.last_mut()) {
                    last.extend(byte);
                }
            }
        }
    }
    prefixes.iter().filter(|prefix| !prefix.is_empty()).map(|prefix| OsStr::from_bytes(prefix).into()).collect()
}

/// What the preload object reads for one mapping.
pub fn text(prefix: &Path, directory: &Directory) -> Vec<u8> {
    let mut text = escaped(prefix.as_os_str());
    text.push(b'=');
    text.extend(escaped(directory.path.as_os_str()));
    if directory.read_only {
        text.extend(b"=ro");
    }
    text
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

/// The directory of an export, or why it cannot be used by its path.
fn directory_of(name: &str) -> Outcome<Result<Directory, String>> {
    if let Some((host, _)) = name.split_once(':') {
        return Ok(Err(format!("it is asked for at host {host}")));
    }
    let Found { info, root } = match ask(name, &Query { root: true, ..Query::default() }) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Err(format!("no export {name} on this host")));
        }
        Err(error) => return Err(Failure::new(FAILED, format!("export {name} does not answer: {error}"))),
    };
    let Some(root) = root.filter(|_| info.direct) else {
        return Ok(Err(
            "its server does not allow the use of the directory itself (--no-direct, or striped files)".to_owned()
        ));
    };
    let directory = PathBuf::from(&info.directory);
    // Within an outer `motet run --files` this process would get a name that its own prefixes give the directory.
    let path = if outer().is_some() { Ok(directory) } else { directory.canonicalize() };
    let path = match path {
        Ok(path) => path,
        Err(error) => return Ok(Err(format!("{}: {error}", info.directory))),
    };
    let there = rustix::fs::fstat(&root).map_err(|error| Failure::new(FAILED, format!("export {name}: {error}")))?;
    let identity = (there.st_dev, there.st_ino);
    if !rustix::fs::stat(&path).is_ok_and(|here| (here.st_dev, here.st_ino) == identity) {
        return Ok(Err(format!("{} is another directory here than at its server", path.display())));
    }
    if path.as_os_str().len() > MAX_PATH {
        return Ok(Err("its path is too long".to_owned()));
    }
    Ok(Ok(Directory { path, identity, read_only: info.read_only }))
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
        let hides = |other: &&Directory| other.path.starts_with(&mapping.prefix) && other.path != mapping.prefix;
        let directories = mappings.iter().filter_map(|mapping| mapping.directory.as_ref().ok());
        if let Some(hidden) = directories.into_iter().find(hides) {
            let directory = hidden.path.display();
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

    fn directory(path: &str, read_only: bool) -> Directory {
        Directory { path: path.into(), identity: (1, 1), read_only }
    }

    fn mapping(prefix: &str, path: &str) -> Mapping {
        Mapping { export: "e".to_owned(), prefix: prefix.into(), directory: Ok(directory(path, false)) }
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
        assert_eq!(text(Path::new("/mnt/r"), &directory("/data", true)), b"/mnt/r=/data=ro");
        let special = text(Path::new("/a:b"), &directory(r"/c=d\e", false));
        assert_eq!(special, br"/a\:b=/c\=d\\e");
        let both = [&special[..], b":/mnt/r=/data=ro"].concat();
        assert_eq!(prefixes(OsStr::from_bytes(&both)), [Path::new("/a:b"), Path::new("/mnt/r")]);
    }

    #[test]
    fn a_prefix_hides_no_exported_directory() {
        assert!(check(&[mapping("/mnt/r", "/data"), mapping("/mnt/r/s", "/more")]).is_ok());
        assert!(check(&[mapping("/data", "/data")]).is_ok());
        assert!(check(&[mapping("/data", "/data/x")]).is_err());
        assert!(check(&[mapping("/mnt/r", "/data"), mapping("/mnt/r", "/more")]).is_err());
    }
}
