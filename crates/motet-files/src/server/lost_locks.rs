//! The sessions whose locks the server has released because their clients were away for too long. They are noted in a file beside the export's socket, so that a server
//! that is started again does not give such a client its locks back as if no other client could have had them.

use crate::protocol::SessionKey;
use motet_session::paths::exports_folder;
use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Sessions that are kept in the file, and by how many more it may grow before it is written anew.
const KEPT: usize = 4096;
const MORE: usize = 4096;

/// The sessions.
#[derive(Debug, Default)]
pub struct LostLocks(Mutex<Noted>);

#[derive(Debug, Default)]
struct Noted {
    /// `None`: there is no place for the file.
    path: Option<PathBuf>,
    keys: VecDeque<SessionKey>,
}

impl LostLocks {
    /// Takes over those that earlier servers of the export of this name have noted. There is no file as long as there are none.
    pub fn open(&self, name: &str) {
        let Ok(folder) = exports_folder() else { return };
        let path = folder.join(format!("{name}.lost"));
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let keys = text.lines().filter_map(|line| u128::from_str_radix(line, 16).ok());
        let mut noted = self.noted();
        noted.keys.extend(keys.map(|key| SessionKey(key.to_be_bytes())));
        noted.path = Some(path);
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The locks of a session are about to be released.
    pub fn note(&self, key: SessionKey) {
        let mut noted = self.noted();
        noted.keys.push_back(key);
        let is_full = noted.keys.len() > KEPT + MORE;
        if is_full {
            noted.keys.drain(..MORE);
        }
        let Some(path) = &noted.path else { return };
        let lines = if is_full { noted.keys.iter().copied().map(line).collect() } else { line(key) };
        let mut options = OpenOptions::new();
        options.create(true).write(true).append(!is_full).truncate(is_full).mode(0o600);
        // What cannot be written is known as long as this server runs.
        let _ = options.open(path).and_then(|mut file| file.write_all(lines.as_bytes()));
    }

    /// Whether the locks of a session were released.
    pub fn has(&self, key: SessionKey) -> bool {
        self.noted().keys.contains(&key)
    }
}

fn line(key: SessionKey) -> String {
    format!("{:032x}\n", u128::from_be_bytes(key.0))
}
