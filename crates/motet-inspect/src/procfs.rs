//! Reads /proc. Any process may end at any time, and may have changed its command line.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// All process ids, ascending.
pub fn pids() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let mut pids: Vec<u32> = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids
}

/// Whether there is a process with this id.
pub fn exists(pid: u32) -> bool {
    path(pid, "").exists()
}

fn path(pid: u32, name: &str) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join(name)
}

/// Effective user.
pub fn uid(pid: u32) -> Option<u32> {
    // Not the owner of the folder: that is root while a process is not dumpable.
    status(pid, "Uid")?.split_whitespace().nth(1)?.parse().ok()
}

/// The process id as the process itself sees it, in its own PID namespace.
pub fn own_pid(pid: u32) -> u32 {
    let own = || status(pid, "NSpid")?.split_whitespace().last()?.parse().ok();
    own().unwrap_or(pid)
}

/// A line of /proc/PID/status.
pub fn status(pid: u32, name: &str) -> Option<String> {
    let text = fs::read_to_string(path(pid, "status")).ok()?;
    field(&text, name).map(str::to_owned)
}

/// The value of the line `Name: value` in a text.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// The command line, its parts joined by spaces; for an empty one the kernel's name in brackets.
pub fn command(pid: u32) -> Option<String> {
    let bytes = fs::read(path(pid, "cmdline")).ok()?;
    let line = String::from_utf8_lossy(&bytes).trim_end_matches('\0').replace('\0', " ");
    if !line.is_empty() {
        return Some(line);
    }
    Some(format!("[{}]", fs::read_to_string(path(pid, "comm")).ok()?.trim_end()))
}

/// The program's name without its folder.
pub fn name(command: &str) -> &str {
    let first = command.split(' ').next().unwrap_or(command);
    first.rsplit('/').next().unwrap_or(first)
}

/// A variable of the environment that the process started with.
pub fn variable(pid: u32, name: &str) -> Option<String> {
    let bytes = fs::read(path(pid, "environ")).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    text.split('\0').find_map(|v| v.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
}

/// Whether the process runs under a system call filter.
pub fn has_filter(pid: u32) -> bool {
    status(pid, "Seccomp").is_some_and(|mode| mode != "0")
}

/// The number of its system call filters; `None` if the kernel does not report it (before Linux 5.9), or in strict mode.
pub fn filters(pid: u32) -> Option<u32> {
    const FILTER_MODE: &str = "2";
    let mode = status(pid, "Seccomp")?;
    if mode == FILTER_MODE { status(pid, "Seccomp_filters")?.parse().ok() } else { None }
}

/// Whether the process runs under a filter that was not there when `motet run` started it, or under which Motet does not work.
pub fn confined(pid: u32) -> bool {
    let before = variable(pid, "MOTET_SECCOMP_FILTERS").and_then(|text| text.parse().ok());
    has_filter(pid) && filters(pid).zip(before).is_none_or(|(now, before): (u32, u32)| now > before)
}

/// Whether a file whose name has this ending is mapped; `None` if the maps cannot be read.
pub fn maps(pid: u32, ending: &str) -> Option<bool> {
    let text = fs::read(path(pid, "maps")).ok()?;
    let text = String::from_utf8_lossy(&text);
    Some(text.lines().any(|line| line.trim_end_matches(" (deleted)").ends_with(ending)))
}

/// Names, without folders, of the mapped files, each once; empty if the maps cannot be read.
pub fn mapped(pid: u32) -> BTreeSet<String> {
    let text = fs::read(path(pid, "maps")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().map(|line| line.trim_end_matches(" (deleted)"));
    lines.filter_map(|line| Some(line.get(line.find('/')?..)?.rsplit('/').next()?.to_owned())).collect()
}

/// Whether a link of /proc/PID/fd leads to a memfd with this name.
pub fn is_memfd(target: &Path, name: &str) -> bool {
    target.to_str().and_then(|t| t.strip_prefix("/memfd:")).and_then(|t| t.strip_suffix(" (deleted)")) == Some(name)
}

/// Mapped memfds with this name: bytes by inode.
pub fn memfds(pid: u32, name: &str) -> BTreeMap<u64, u64> {
    let text = fs::read(path(pid, "maps")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mut sizes = BTreeMap::new();
    for (inode, bytes) in text.lines().filter_map(|line| memfd(line, name)) {
        *sizes.entry(inode).or_default() += bytes;
    }
    sizes
}

/// Inode and bytes of a line of /proc/PID/maps (`from-to rights offset device inode name`), if it maps a memfd with this name.
fn memfd(line: &str, name: &str) -> Option<(u64, u64)> {
    let mut fields = line.split_ascii_whitespace();
    let (from, to) = fields.next()?.split_once('-')?;
    let inode = fields.nth(3)?.parse().ok()?;
    let named = fields.next()?.strip_prefix("/memfd:")? == name;
    let address = |text| u64::from_str_radix(text, 16).ok();
    named.then_some((inode, address(to)?.checked_sub(address(from)?)?))
}

/// A path to the program's file, valid for a deleted file and in another mount namespace as well.
pub fn executable(pid: u32) -> PathBuf {
    path(pid, "exe")
}

/// The network namespace of the process.
pub fn network(pid: u32) -> Option<PathBuf> {
    fs::read_link(path(pid, "ns/net")).ok()
}

/// Descriptors and their link targets. Fails if they cannot be read.
pub fn links(pid: u32) -> std::io::Result<Vec<(PathBuf, PathBuf)>> {
    let entries = fs::read_dir(path(pid, "fd"))?;
    Ok(entries.flatten().filter_map(|e| Some((e.path(), fs::read_link(e.path()).ok()?))).collect())
}

/// Inode and bytes of memory of the memfd behind a descriptor link.
pub fn pages(link: &Path) -> Option<(u64, u64)> {
    let metadata = fs::metadata(link).ok()?;
    Some((metadata.ino(), metadata.blocks() * 512))
}

/// Device and inode of a file.
pub fn identity(file: &fs::File) -> std::io::Result<(u64, u64)> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

/// The name of a user, or the number if it has none.
pub fn user(uid: u32) -> String {
    let text = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = text.lines().find_map(|line| {
        let mut parts = line.split(':');
        let (name, number) = (parts.next()?, parts.nth(1)?);
        (number.parse() == Ok(uid)).then(|| name.to_owned())
    });
    found.unwrap_or_else(|| uid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_is_described() {
        let me = std::process::id();
        assert!(pids().contains(&me));
        assert_eq!(own_pid(me), me);
        assert_eq!(uid(me), Some(motet_sys::thread::euid()));
        assert!(command(me).is_some() && !links(me).unwrap().is_empty());
        assert!(mapped(me).iter().any(|name| name.starts_with("libc.so")));
        assert_eq!(variable(me, "PATH"), std::env::var("PATH").ok());
    }

    #[test]
    fn mapped_memfds_are_recognised() {
        let line = "7f12a0000000-7f12a0022000 rw-s 00000000 00:01 1034 /memfd:motet-segment (deleted)";
        assert_eq!(memfd(line, "motet-segment"), Some((1034, 0x22000)));
        assert_eq!(memfd(line, "motet-node"), None);
        for other in [
            "",
            "7f-",
            "7f00-7e00 rw-s 0 00:01 1 /memfd:motet-segment",
            "7f12a0000000-7f12a0022000 rw-p 00000000 00:00 0",
        ] {
            assert_eq!(memfd(other, "motet-segment"), None, "{other}");
        }
    }

    #[test]
    fn process_names_have_no_folder() {
        assert_eq!(name("/usr/bin/redis-server *:6379"), "redis-server");
        assert_eq!(name("[kthreadd]"), "[kthreadd]");
    }
}
