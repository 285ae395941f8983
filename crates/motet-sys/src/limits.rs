//! Limits that the process was given, as far as shared memory meets them: no memory of ours may cost the program a signal, an allocation
//! of its own, or its life.
//!
//! What it is: the size that files may have (RLIMIT_FSIZE: a memfd that is made larger raises SIGXFSZ), address space (RLIMIT_AS) and
//! the memory of the control groups that the process is in (beyond it the system ends processes). All are asked anew, as a program may
//! change them. Locked memory (RLIMIT_MEMLOCK) needs no look: the system refuses a mapping then.
//!
//! What it is not: an account. Who takes how much is its caller's matter.

use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, getrlimit};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Largest file that the process may make; `u64::MAX`: any.
pub fn file_size() -> u64 {
    getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

/// Whether a file may become so large without a signal.
pub fn fits_file(size: u64) -> bool {
    size <= file_size()
}

/// Most bytes of address space; `usize::MAX`: any.
pub fn address_space() -> usize {
    getrlimit(Resource::As).current.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX))
}

/// Of a limited address space this part at most is ours: the rest is the program's.
pub const SHARE: usize = 8;

/// Bytes of address space that may be taken for memory that others map, by a process that wants `most` at most.
pub fn address_share(most: usize) -> usize {
    match address_space() {
        usize::MAX => most,
        whole => most.min(whole / SHARE),
    }
}

/// A part of a control group's memory that is left free: the program's next allocations, and what the kernel counts late.
const MARGIN: u64 = 16;
/// Bytes that may be taken after one look at the control groups before the next one.
const BETWEEN: u64 = 1 << 20;
static LEFT: AtomicU64 = AtomicU64::new(0);

/// Whether the control groups of the process have room for so many more bytes of memory. Asked before pages come into being.
pub fn group_has(bytes: usize) -> bool {
    let groups = GROUPS.get_or_init(|| groups("/proc/self/cgroup", "/sys/fs/cgroup"));
    if groups.is_empty() {
        return true;
    }
    let bytes = bytes as u64;
    if LEFT.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes)).is_ok() {
        return true;
    }
    let room = groups.iter().map(Group::room).min().unwrap_or(u64::MAX);
    if bytes > room {
        return false;
    }
    LEFT.store((room - bytes).min(BETWEEN), Relaxed);
    true
}

/// A control group's files.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    most: PathBuf,
    used: PathBuf,
    kinds: PathBuf,
}

static GROUPS: OnceLock<Vec<Group>> = OnceLock::new();

/// Those of this process that have a limit on memory: its own, and those around it. Both versions of the interface.
fn groups(lines: impl AsRef<Path>, root: &str) -> Vec<Group> {
    let text = read(lines.as_ref()).unwrap_or_default();
    let found = text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, kinds, path) = (fields.next()?, fields.next()?, fields.next()?);
        let (two, one) = (number == "0" && kinds.is_empty(), kinds.split(',').any(|kind| kind == "memory"));
        (two || one).then(|| (if one { Path::new(root).join("memory") } else { PathBuf::from(root) }, one, path))
    });
    let Some((root, old, path)) = found else { return Vec::new() };
    let names = if old { ["memory.limit_in_bytes", "memory.usage_in_bytes"] } else { ["memory.max", "memory.current"] };
    // Where the files that are mounted are those of a part only, the path leads nowhere, and what is mounted is the group's own.
    let own = root.join(path.trim_start_matches('/'));
    let folders = own.ancestors().take_while(|folder| folder.starts_with(&root));
    let group = |folder: &Path| Group {
        most: folder.join(names[0]),
        used: folder.join(names[1]),
        kinds: folder.join("memory.stat"),
    };
    folders.map(group).filter(|group| group.limit().is_some()).collect()
}

impl Group {
    fn limit(&self) -> Option<u64> {
        // Version 1 writes a number that no machine has for "none".
        read(&self.most)?.trim().parse().ok().filter(|most| *most < 1 << 60)
    }

    fn room(&self) -> u64 {
        let Some(most) = self.limit() else { return u64::MAX };
        let used = read(&self.used).and_then(|used| used.trim().parse::<u64>().ok()).unwrap_or(0);
        let most = most - most / MARGIN;
        if used < most {
            return most - used;
        }
        // What the kernel keeps of files it gives up for this.
        let kinds = read(&self.kinds).unwrap_or_default();
        let kind = |name: &str| {
            let line = kinds.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok());
            line.unwrap_or(0u64)
        };
        let cached = kind("file").max(kind("cache")).saturating_sub(kind("shmem"));
        most.saturating_sub(used.saturating_sub(cached))
    }
}

/// A short file of the kernel's.
fn read(path: &Path) -> Option<String> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = [0; 8192];
    let mut length = 0;
    while length < bytes.len() {
        match rustix::io::read(&file, &mut bytes[length..]) {
            Ok(0) => break,
            Ok(n) => length += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_groups_around_a_process_are_asked_for_room() {
        let made = std::process::Command::new("mktemp").args(["-d"]).output().unwrap();
        let root = PathBuf::from(String::from_utf8_lossy(&made.stdout).trim());
        let inner = root.join("a/b");
        fs::create_dir_all(&inner).unwrap();
        fs::write(root.join("lines"), "0::/a/b\n").unwrap();
        fs::write(root.join("a/memory.max"), "1600\n").unwrap();
        fs::write(root.join("a/memory.current"), "1000\n").unwrap();
        fs::write(inner.join("memory.max"), "max\n").unwrap();
        let found = groups(root.join("lines"), root.to_str().unwrap());
        assert_eq!(found.len(), 1, "the one without a limit does not count");
        assert_eq!(found[0].room(), 500, "a sixteenth stays free");
        fs::write(root.join("a/memory.current"), "1590\n").unwrap();
        assert_eq!(found[0].room(), 0);
        fs::write(root.join("a/memory.stat"), "anon 100\nfile 700\nshmem 200\n").unwrap();
        assert_eq!(found[0].room(), 410, "what is kept of files can go");
        fs::create_dir_all(root.join("memory/c")).unwrap();
        fs::write(root.join("lines"), "5:memory:/c\n0::/a/b\n").unwrap();
        fs::write(root.join("memory/c/memory.limit_in_bytes"), "160\n").unwrap();
        fs::write(root.join("memory/c/memory.usage_in_bytes"), "50\n").unwrap();
        let found = groups(root.join("lines"), root.to_str().unwrap());
        assert_eq!(found.iter().map(Group::room).collect::<Vec<_>>(), [100]);
        fs::remove_dir_all(root).unwrap();
    }
}
