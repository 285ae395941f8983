//! Reads and parses the settings file into (key, text, line), and finds the folders of such files.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, OFlags};
use toml::de::{DeTable, DeValue};

use crate::problem::{Problem, ValueSource};

/// Largest file read.
const MAX_FILE_BYTES: usize = 64 << 10;

/// One `key = value` of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    /// The value as it would be written in the environment.
    pub text: String,
    /// The line number, from 1.
    pub line: usize,
}

/// The text of a file; `None` when there is none, or it is /dev/null. Never blocks: a FIFO is refused.
pub fn read(path: &Path) -> io::Result<Option<String>> {
    if path == Path::new("/dev/null") {
        return Ok(None);
    }
    match open(path, OFlags::empty())? {
        Some(file) => text(&file, MAX_FILE_BYTES).map(Some),
        None => Ok(None),
    }
}

/// A folder of the XDG base directories: the value of a variable, else a folder below HOME.
pub fn folder(variables: &BTreeMap<String, OsString>, variable: &str, below_home: &str) -> Option<PathBuf> {
    let absolute = |name| variables.get(name).map(PathBuf::from).filter(|p| p.is_absolute());
    absolute(variable).or_else(|| Some(absolute("HOME")?.join(below_home)))
}

/// Opens a regular file for reading; `None` when there is none.
pub fn open(path: &Path, more: OFlags) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | more;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => file,
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("not a regular file"));
    }
    Ok(Some(file))
}

/// The whole text of a file of at most `limit` bytes.
pub fn text(file: &OwnedFd, limit: usize) -> io::Result<String> {
    let mut bytes = vec![0; limit + 1];
    let length = fill(file, &mut bytes)?;
    if length > limit {
        return Err(io::Error::other(format!("larger than {} KiB", limit >> 10)));
    }
    bytes.truncate(length);
    String::from_utf8(bytes).map_err(|_| io::Error::other("not UTF-8 text"))
}

/// Reads until the file ends or `bytes` is full; returns the number of bytes read.
pub fn fill(file: &OwnedFd, bytes: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < bytes.len() {
        match rustix::io::read(file, &mut bytes[length..]) {
            Ok(0) => break,
            Ok(n) => length += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(length)
}

/// Parses the text of a file. A value that no setting can have becomes a problem.
pub fn parse(path: &Path, text: &str) -> (Vec<Entry>, Vec<Problem>) {
    let line = |at: usize| 1 + text.as_bytes()[..at.min(text.len())].iter().filter(|b| **b == b'\n').count();
    let problem = |line, what: String, fix: &str| Problem {
        source: ValueSource::File(PathBuf::from(path), line),
        what,
        fix: fix.into(),
    };
    let table = match DeTable::parse(text) {
        Ok(table) => table.into_inner(),
        Err(e) => {
            let at = e.span().map_or(0, |span| line(span.start));
            let what = e.message().lines().collect::<Vec<_>>().join(", ");
            return (Vec::new(), vec![problem(at, what, "write lines such as `ring = \"64KiB\"`")]);
        }
    };
    let (mut entries, mut problems) = (Vec::new(), Vec::new());
    for (key, value) in &table {
        let at = line(key.span().start);
        match environment_text(value.get_ref()) {
            Some(text) => entries.push(Entry { key: key.get_ref().to_string(), text, line: at }),
            None => problems.push(problem(
                at,
                format!("`{}` is not a simple value", key.get_ref()),
                "write a number, a word in quotes, true or false, or a list of words",
            )),
        }
    }
    entries.sort_by_key(|e| e.line);
    (entries, problems)
}

/// The value as it would be written in the environment; `None` for tables, dates and floats.
fn environment_text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(n) if n.radix() == 10 => Some(n.as_str().replace('_', "")),
        DeValue::Integer(n) => Some(i64::from_str_radix(n.as_str(), n.radix()).ok()?.to_string()),
        DeValue::Boolean(flag) => Some(flag.to_string()),
        DeValue::Array(words) => {
            let words = words.iter().map(|w| if let DeValue::String(w) = w.get_ref() { Some(&**w) } else { None });
            Some(words.collect::<Option<Vec<_>>>()?.join(","))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_what_the_environment_would_hold() {
        let (entries, problems) = parse(
            Path::new("f"),
            "# a comment\nring = 65_536\ndrivers = [\"shm\", \"tcp\"]\n\ndisable = true\nstats = \"/tmp/x\"\n",
        );
        assert!(problems.is_empty(), "{problems:?}");
        let entries: Vec<_> = entries.iter().map(|e| (e.key.as_str(), e.text.as_str(), e.line)).collect();
        assert_eq!(
            entries,
            [("ring", "65536", 2), ("drivers", "shm,tcp", 3), ("disable", "true", 5), ("stats", "/tmp/x", 6)]
        );
    }

    #[test]
    fn broken_line_is_named() {
        let (entries, problems) = parse(Path::new("f"), "ring = 1\nspin = = 2\n");
        assert!(entries.is_empty());
        assert_eq!(problems[0].source, ValueSource::File("f".into(), 2));
        let (_, problems) = parse(Path::new("f"), "[ring]\nsize = 1\n");
        assert_eq!(problems[0].what, "`ring` is not a simple value");
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_parsed_or_reported(text in ".{0,200}") {
            parse(Path::new("f"), &text);
        }
    }
}
