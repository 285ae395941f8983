//! The output of the default node, which is a file: its size is kept within a limit.
//!
//! Modules and their children write to the descriptor that they have inherited, so the file stays the same one: its contents move to a second file, and it is
//! truncated. Processes that write to the log append, so their next line is the first one of the truncated file. Lines that are written between the copy and the truncation are lost.

use motet_session::private_file::create_beside;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{FileType, OFlags};
use std::fs::OpenOptions;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The size that begins a new file, and about that of the older file, bytes.
const LIMIT: u64 = 4 << 20;
/// The pause between two looks at the size.
const INTERVAL: Duration = Duration::from_secs(1);

/// Looks at the size of standard output from now on, in a thread, if that is a file to which is appended.
pub fn keep_small() -> io::Result<()> {
    let output = io::stdout();
    if !is_appended_file(output.as_fd()) {
        return Ok(());
    }
    let path = std::fs::read_link("/proc/self/fd/1")?;
    let look = move || {
        loop {
            std::thread::sleep(INTERVAL);
            let is_long = rustix::fs::fstat(&output).is_ok_and(|stat| stat.st_size as u64 > LIMIT);
            if is_long {
                let _ = shorten(&path, LIMIT);
            }
        }
    };
    std::thread::Builder::new().name("motet-log".to_owned()).spawn(look).map(drop)
}

fn is_appended_file(fd: BorrowedFd<'_>) -> bool {
    let appends = rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::APPEND));
    appends && rustix::fs::fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

/// Moves the last `keep` bytes of a file, and what is added meanwhile, to `FILE.old`, and truncates it.
fn shorten(path: &Path, keep: u64) -> io::Result<()> {
    let mut from = OpenOptions::new().read(true).write(true).custom_flags(OFlags::NOFOLLOW.bits() as i32).open(path)?;
    let old = with_end(path, ".old");
    let (new, mut to) = create_beside(&old)?;
    let length = from.metadata()?.len();
    from.seek(SeekFrom::Start(length.saturating_sub(keep)))?;
    let copied = io::copy(&mut from.by_ref().take(2 * keep), &mut to); // and what is added meanwhile
    if let Err(error) = copied.and_then(|_| std::fs::rename(&new, &old)) {
        let _ = std::fs::remove_file(&new);
        return Err(error);
    }
    from.set_len(0)
}

/// The path with more text at its end.
fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(end);
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;

    #[test]
    fn older_part_moves_and_writers_go_on_at_the_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        assert!(is_appended_file(log.as_fd()));
        for (text, old) in [("0123456789", "6789"), ("abc", "abc")] {
            log.write_all(text.as_bytes()).unwrap();
            shorten(&path, 4).unwrap();
            assert_eq!(std::fs::read_to_string(dir.path().join("log.old")).unwrap(), old);
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        }
        log.write_all(b"more").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"more");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn only_files_that_are_appended_to_are_cut() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_appended_file(File::create(dir.path().join("log")).unwrap().as_fd()));
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        assert!(!is_appended_file(writer.as_fd()));
    }
}
