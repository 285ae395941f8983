//! What is wrong with a setting: where, what, and how to fix it.

use std::path::PathBuf;

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueSource {
    /// The environment variable of this name.
    Environment(String),
    /// A file and a line in it (from 1; 0 stands for the whole file).
    File(PathBuf, usize),
    /// The profile of this machine.
    Profile(PathBuf),
    /// The command line.
    CommandLine,
}

impl std::fmt::Display for ValueSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Environment(name) => write!(f, "environment variable {name}"),
            Self::File(path, 0) => write!(f, "{}", path.display()),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Profile(path) => write!(f, "profile {}", path.display()),
            Self::CommandLine => f.write_str("command line"),
        }
    }
}

/// A setting that was ignored. Displays as one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where the value was written.
    pub source: ValueSource,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub fix: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}; {}", self.source, self.what, self.fix)
    }
}

impl std::error::Error for Problem {}

/// The known name nearest to a misspelt one: at most a third of its letters (and at least one) may differ.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (name.chars().count() / 3).max(1);
    known.map(|k| (distance(name, k), k)).filter(|(d, _)| *d <= limit).min().map(|(_, k)| k)
}

/// Edits (insert, delete, replace, swap neighbours) between two words: optimal string alignment.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replace = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replace.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(rows[i - 2][j - 2] + 1);
            }
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_name_is_reported_with_the_nearest_one() {
        let known = || ["ring", "streams", "single_copy", "single_copy_min"].into_iter();
        assert_eq!(nearest("rign", known()), Some("ring"));
        assert_eq!(nearest("stream", known()), Some("streams"));
        assert_eq!(nearest("single-copy", known()), Some("single_copy"));
        assert_eq!(nearest("colour", known()), None);
    }
}
