//! Resource limits of the process that shared memory must respect: Motet's memory must not cause a signal, a failed allocation of the
//! program, or an out-of-memory kill.
//!
//! What it is: queries of the file size limit (RLIMIT_FSIZE: a memfd that grows beyond it raises SIGXFSZ), of the address space limit
//! (RLIMIT_AS) and of the memory limits of the process's control groups (beyond them the kernel kills processes). Each query reads the
//! limit again, as a program may change it. RLIMIT_MEMLOCK needs no query: the kernel refuses the mapping.
//!
//! What it is not: accounting. Callers count what they use.

use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, getrlimit};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Largest file size that the process may create, bytes; `u64::MAX`: no limit.
pub fn max_file_size() -> u64 {
    getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

/// Whether a file of `size` bytes is within the limit.
pub fn allows_file_size(size: u64) -> bool {
    size <= max_file_size()
}

/// Most bytes of address space; `usize::MAX`: no limit.
pub fn max_address_space() -> usize {
    getrlimit(Resource::As).current.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Motet uses at most one part in this many of a limited address space.
pub const ADDRESS_SPACE_DIVISOR: usize = 8;

/// Bytes of address space that may be used for shared memory: at most `wanted`, and at most Motet's share of a limited address space.
pub fn address_space_share(wanted: usize) -> usize {
    match max_address_space() {
        usize::MAX => wanted,
        limit => wanted.min(limit / ADDRESS_SPACE_DIVISOR),
    }
}

/// One part in this many of a control group's memory stays free: for the program's allocations, and for pages that the kernel counts late.
const CGROUP_RESERVE_DIVISOR: u64 = 16;
/// Most bytes that are granted after one reading of the control groups before the next one.
const RECHECK_BYTES: u64 = 1 << 20;
static ROOM_BEFORE_RECHECK: AtomicU64 = AtomicU64::new(0);

/// Whether the control groups of the process have room for `bytes` more bytes of memory. To be called before pages are allocated.
pub fn cgroup_has_room(bytes: usize) -> bool {
    let groups = CGROUPS.get_or_init(|| limited_cgroups("/proc/self/cgroup", "/sys/fs/cgroup"));
    if groups.is_empty() {
        return true;
    }
    let bytes = bytes as u64;
    if ROOM_BEFORE_RECHECK.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes)).is_ok() {
        return true;
    }
    let room = groups.iter().map(MemoryCgroup::room).min().unwrap_or(u64::MAX);
    if bytes > room {
        return false;
    }
    ROOM_BEFORE_RECHECK.store((room - bytes).min(RECHECK_BYTES), Relaxed);
    true
}

/// The files of a control group's memory controller.
#[derive(Debug, PartialEq, Eq)]
struct MemoryCgroup {
    /// memory.max, or memory.limit_in_bytes.
    limit: PathBuf,
    /// memory.current, or memory.usage_in_bytes.
    usage: PathBuf,
    /// memory.stat.
    stat: PathBuf,
}

static CGROUPS: OnceLock<Vec<MemoryCgroup>> = OnceLock::new();

/// The control groups of the process that limit memory: its own and the parents of that. Reads both versions of the interface.
fn limited_cgroups(list: impl AsRef<Path>, root: &str) -> Vec<MemoryCgroup> {
    let text = read(list.as_ref()).unwrap_or_default();
    let found = text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_v1 = controllers.split(',').any(|name| name == "memory");
        let is_v2 = number == "0" && controllers.is_empty();
        (is_v2 || is_v1)
            .then(|| (if is_v1 { Path::new(root).join("memory") } else { PathBuf::from(root) }, is_v1, path))
    });
    let Some((root, is_v1, path)) = found else { return Vec::new() };
    let names =
        if is_v1 { ["memory.limit_in_bytes", "memory.usage_in_bytes"] } else { ["memory.max", "memory.current"] };
    // In a container the path may not exist below the mount, which then shows the container's own group.
    let own = root.join(path.trim_start_matches('/'));
    let folders = own.ancestors().take_while(|folder| folder.starts_with(&root));
    let group = |folder: &Path| MemoryCgroup {
        limit: folder.join(names[0]),
        usage: folder.join(names[1]),
        stat: folder.join("memory.stat"),
    };
    folders.map(group).filter(|group| group.limit().is_some()).collect()
}

impl MemoryCgroup {
    /// The limit in bytes, if there is one.
    fn limit(&self) -> Option<u64> {
        // Version 1 writes a huge number for "none".
        read(&self.limit)?.trim().parse().ok().filter(|limit| *limit < 1 << 60)
    }

    /// Bytes that may still be allocated.
    fn room(&self) -> u64 {
        let Some(limit) = self.limit() else { return u64::MAX };
        let used = read(&self.usage).and_then(|used| used.trim().parse::<u64>().ok()).unwrap_or(0);
        let limit = limit - limit / CGROUP_RESERVE_DIVISOR;
        if used < limit {
            return limit - used;
        }
        // The kernel reclaims the page cache first.
        let stat = read(&self.stat).unwrap_or_default();
        let value = |name: &str| {
            let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok());
            line.unwrap_or(0u64)
        };
        let cached = value("file").max(value("cache")).saturating_sub(value("shmem"));
        limit.saturating_sub(used.saturating_sub(cached))
    }
}

/// The first 8 KiB of a file of procfs or cgroupfs.
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
    fn room_is_that_of_the_limited_parent_cgroups() {
        let made = std::process::Command::new("mktemp").args(["-d"]).output().unwrap();
        let root = PathBuf::from(String::from_utf8_lossy(&made.stdout).trim());
        let inner = root.join("a/b");
        fs::create_dir_all(&inner).unwrap();
        fs::write(root.join("lines"), "0::/a/b\n").unwrap();
        fs::write(root.join("a/memory.max"), "1600\n").unwrap();
        fs::write(root.join("a/memory.current"), "1000\n").unwrap();
        fs::write(inner.join("memory.max"), "max\n").unwrap();
        let found = limited_cgroups(root.join("lines"), root.to_str().unwrap());
        assert_eq!(found.len(), 1, "a group without a limit does not count");
        assert_eq!(found[0].room(), 500, "a sixteenth stays free");
        fs::write(root.join("a/memory.current"), "1590\n").unwrap();
        assert_eq!(found[0].room(), 0);
        fs::write(root.join("a/memory.stat"), "anon 100\nfile 700\nshmem 200\n").unwrap();
        assert_eq!(found[0].room(), 410, "the page cache can be reclaimed");
        fs::create_dir_all(root.join("memory/c")).unwrap();
        fs::write(root.join("lines"), "5:memory:/c\n0::/a/b\n").unwrap();
        fs::write(root.join("memory/c/memory.limit_in_bytes"), "160\n").unwrap();
        fs::write(root.join("memory/c/memory.usage_in_bytes"), "50\n").unwrap();
        let found = limited_cgroups(root.join("lines"), root.to_str().unwrap());
        assert_eq!(found.iter().map(MemoryCgroup::room).collect::<Vec<_>>(), [100]);
        fs::remove_dir_all(root).unwrap();
    }
}
