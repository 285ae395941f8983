//! The sessions whose locks the server has released because their clients were away for too long. They are noted in a file beside the export's socket, so that a server
//! that is started again does not give such a client its locks back as if no other client could have had them. A user has a bounded number of them, so that no
//! other user's sessions are forgotten for them.

use crate::protocol::SessionKey;
use motet_session::paths::exports_folder;
use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Sessions that are kept, and by how many more the file may grow before it is written anew; of how many of one other user.
const KEPT: usize = 4096;
const MORE: usize = 4096;
const MAX_OF_USER: usize = KEPT / 8;

/// The sessions.
#[derive(Debug, Default)]
pub struct LostLocks(Mutex<Noted>);

#[derive(Debug, Default)]
struct Noted {
    /// `None`: there is no place for the file.
    path: Option<PathBuf>,
    sessions: VecDeque<Lost>,
    /// Lines of the file. Some may be of sessions that are forgotten.
    lines: usize,
}

/// A session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lost {
    key: SessionKey,
    /// Its user, if that is another one than the server's.
    member: Option<u32>,
}

impl Lost {
    fn line(self) -> String {
        let key = u128::from_be_bytes(self.key.0);
        self.member.map_or_else(|| format!("{key:032x}\n"), |user| format!("{key:032x} {user}\n"))
    }

    fn of_line(line: &str) -> Option<Self> {
        let (key, member) = match line.split_once(' ') {
            Some((key, user)) => (key, Some(user.parse().ok()?)),
            None => (line, None),
        };
        Some(Self { key: SessionKey(u128::from_str_radix(key, 16).ok()?.to_be_bytes()), member })
    }
}

impl Noted {
    fn keep(&mut self, lost: Lost) {
        if lost.member.is_some() {
            let of_user = |other: &Lost| other.member == lost.member;
            let count = self.sessions.iter().filter(|other| of_user(other)).count();
            if count >= MAX_OF_USER
                && let Some(first) = self.sessions.iter().position(of_user)
            {
                self.sessions.remove(first);
            }
        }
        self.sessions.push_back(lost);
        if self.sessions.len() > KEPT {
            self.sessions.pop_front();
        }
    }
}

impl LostLocks {
    /// Takes over those that earlier servers of the export of this name have noted. There is no file as long as there are none.
    pub fn open(&self, name: &str) {
        let Ok(folder) = exports_folder() else { return };
        self.open_file(folder.join(format!("{name}.lost")));
    }

    fn open_file(&self, path: PathBuf) {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let mut noted = self.noted();
        noted.lines = text.lines().count();
        text.lines().filter_map(Lost::of_line).for_each(|lost| noted.keep(lost));
        noted.path = Some(path);
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The locks of a session are about to be released. `member`: its user, if that is another one than the server's.
    pub fn note(&self, key: SessionKey, member: Option<u32>) {
        let mut noted = self.noted();
        let lost = Lost { key, member };
        noted.keep(lost);
        let is_full = noted.lines > KEPT + MORE;
        noted.lines = if is_full { noted.sessions.len() } else { noted.lines + 1 };
        let Some(path) = &noted.path else { return };
        let lines = if is_full { noted.sessions.iter().map(|lost| lost.line()).collect() } else { lost.line() };
        // What cannot be written is known as long as this server runs.
        let _ = if is_full { replace(path, &lines) } else { append(path, &lines) };
    }

    /// Whether the locks of a session were released.
    pub fn has(&self, key: SessionKey) -> bool {
        self.noted().sessions.iter().any(|lost| lost.key == key)
    }
}

fn append(path: &Path, lines: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    file.write_all(lines.as_bytes())
}

/// Writes a file anew. A server that is killed meanwhile leaves the old one.
fn replace(path: &Path, lines: &str) -> std::io::Result<()> {
    let new = path.with_extension("lost.new");
    let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(lines.as_bytes())?;
    std::fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> SessionKey {
        SessionKey((number as u128).to_be_bytes())
    }

    #[test]
    fn sessions_of_one_user_make_no_other_forgotten_also_after_a_restart() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("export.lost");
        let lost = LostLocks::default();
        lost.open_file(path.clone());
        lost.note(key(1), Some(1000));
        lost.note(key(2), None);
        for number in 10..10 + 2 * (KEPT + MORE) {
            lost.note(key(number), Some(1001));
        }
        let last = key(9 + 2 * (KEPT + MORE));
        let again = LostLocks::default();
        again.open_file(path.clone());
        for lost in [&lost, &again] {
            assert!(lost.has(key(1)) && lost.has(key(2)) && lost.has(last));
            assert!(!lost.has(key(10)), "as many of a user as may be are kept");
            assert_eq!(lost.noted().sessions.len(), 2 + MAX_OF_USER);
        }
        let lines = std::fs::read_to_string(path).expect("the file").lines().count();
        assert!(lines <= KEPT + MORE + 1, "{lines} lines");
    }

    #[test]
    fn lines_are_read_as_they_are_written() {
        for lost in [Lost { key: key(7), member: None }, Lost { key: key(8), member: Some(u32::MAX) }] {
            assert_eq!(Lost::of_line(lost.line().trim_end()), Some(lost));
        }
        for wrong in ["", " ", "x", "12 y", "12 -1", "12 4294967296"] {
            assert_eq!(Lost::of_line(wrong), None, "{wrong}");
        }
    }
}
