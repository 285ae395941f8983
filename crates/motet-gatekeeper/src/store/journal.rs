//! The changes of the embedded store on the disk: one JSON line each.
//!
//! A gatekeeper that is killed loses nothing that it has written. The file is not synced to the disk: after a crash of the host the processes of
//! the session are gone as well.

use super::Change;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The longest line, bytes.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// A journal that is being written.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Journal {
    /// The changes of a journal, and what is wrong with its end. A journal that does not exist is empty.
    pub fn read(path: &Path) -> io::Result<(Vec<Change>, Option<String>)> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), None)),
            file => file?,
        };
        let mut reader = BufReader::new(file);
        let mut changes: Vec<Change> = Vec::new();
        loop {
            let mut line = Vec::new();
            let length = io::Read::take(&mut reader, MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
            if length == 0 {
                return Ok((changes, None));
            }
            match serde_json::from_slice::<Change>(&line) {
                Ok(change) if line.ends_with(b"\n") => changes.push(change),
                _ => {
                    let number = changes.len() + 1;
                    return Ok((
                        changes,
                        Some(format!("{}: line {number} is damaged: it and what follows is ignored", path.display())),
                    ));
                }
            }
        }
    }

    /// Writes a new journal with these changes in place of the file.
    pub fn create(path: &Path, changes: &[Change]) -> io::Result<Self> {
        let temporary = path.with_extension("new");
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&temporary)?;
        let mut text = Vec::new();
        for change in changes {
            serde_json::to_writer(&mut text, change)?;
            text.push(b'\n');
        }
        file.write_all(&text)?;
        std::fs::rename(&temporary, path)?;
        Ok(Self { path: path.to_owned(), file, bytes: text.len() as u64 })
    }

    /// Appends a change. After an error, such as a full disk, the file ends where it did before.
    pub fn append(&mut self, change: &Change) -> io::Result<()> {
        let mut text = serde_json::to_vec(change)?;
        text.push(b'\n');
        if let Err(error) = self.file.write_all(&text) {
            self.file.set_len(self.bytes)?;
            self.file.seek(SeekFrom::Start(self.bytes))?;
            return Err(error);
        }
        self.bytes += text.len() as u64;
        Ok(())
    }

    /// Replaces the journal by these changes.
    pub fn replace(&mut self, changes: &[Change]) -> io::Result<()> {
        *self = Self::create(&self.path, changes)?;
        Ok(())
    }

    /// The length of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(revision: u64, value: Option<&str>) -> Change {
        Change { revision, key: "k".to_owned(), value: value.map(str::to_owned) }
    }

    #[test]
    fn half_a_line_at_the_end_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let mut journal = Journal::create(&path, &[change(1, Some("a"))]).unwrap();
        journal.append(&change(2, None)).unwrap();
        assert_eq!(Journal::read(&path).unwrap(), (vec![change(1, Some("a")), change(2, None)], None));
        journal.file.write_all(b"{\"revision\":3").unwrap();
        let (changes, damage) = Journal::read(&path).unwrap();
        assert_eq!(changes.len(), 2);
        assert!(damage.unwrap().contains("line 3"));
    }
}
