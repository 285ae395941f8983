//! Whether a program can be equipped by preloading, read from its file before it is started.
//!
//! The dynamic loader named in a program's PT_INTERP is what honours LD_PRELOAD; a program without one, with another C
//! library's, of another machine or with raised privileges runs plainly.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why a process that could be equipped is not.
pub const NOT_STARTED_UNDER_MOTET: &str = "it was not started under Motet; start it with `motet run -- COMMAND`";

/// Why a program runs without the preload object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// No dynamic loader.
    Static,
    /// musl's loader, or another one that is not glibc's.
    OtherLibc,
    /// 32-bit, or another processor's.
    OtherMachine,
    /// Set-uid, set-gid or with capabilities: the loader ignores LD_PRELOAD.
    Privileged,
}

impl Obstacle {
    /// Why the loader may have skipped the object although nothing above applies.
    pub const NOT_FOUND_BY_LOADER: &'static str = "the dynamic loader did not take the preload object: is its folder visible to this process (container, chroot)?";

    /// Whether LD_PRELOAD in its environment harms: the loader would complain or refuse. Otherwise it is ignored, and
    /// programs that this one starts still profit.
    pub fn forbids_preload(self) -> bool {
        matches!(self, Self::OtherLibc | Self::OtherMachine)
    }
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Static => "statically linked: no loader reads LD_PRELOAD; link it dynamically (Go: with cgo and `-linkmode=external`)",
            Self::OtherLibc => "built for another C library than glibc (musl?); use a build for glibc",
            Self::OtherMachine => "a 32-bit program, or one for another processor; use a build for this machine's 64-bit mode",
            Self::Privileged => "set-uid, set-gid or with file capabilities: the loader ignores LD_PRELOAD; run it as its user without them",
        })
    }
}

/// What the search for a command found.
#[derive(Debug, PartialEq, Eq)]
pub enum Search {
    /// The file that the kernel will execute.
    Found(PathBuf),
    /// There is one, but it is not executable.
    NotExecutable(PathBuf),
    /// There is none.
    Missing,
}

/// Finds a command as `execvp` does.
pub fn search(command: &std::ffi::OsStr, path: Option<std::ffi::OsString>) -> Search {
    let given = Path::new(command);
    let candidates: Vec<PathBuf> = if command.as_encoded_bytes().contains(&b'/') {
        vec![given.to_owned()]
    } else if command.is_empty() {
        Vec::new()
    } else {
        let path = path.unwrap_or_else(|| "/bin:/usr/bin".into());
        std::env::split_paths(&path).map(|folder| folder.join(given)).collect()
    };
    let mut refused = None;
    for candidate in candidates {
        match candidate.metadata() {
            Ok(m) if m.is_file() && can_execute(&candidate) => return Search::Found(candidate),
            Ok(_) => refused = refused.or(Some(candidate)),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => refused = refused.or(Some(candidate)),
            Err(_) => {}
        }
    }
    refused.map_or(Search::Missing, Search::NotExecutable)
}

fn can_execute(path: &Path) -> bool {
    use rustix::fs::{Access, access};
    access(path, Access::EXEC_OK).is_ok()
}

/// Whether a program can be equipped. What is neither a script nor ELF is left to the kernel to judge.
///
/// # Errors
/// What stands in the way.
pub fn inspect(path: &Path) -> Result<(), Obstacle> {
    let mut at = path.to_owned();
    // A script's interpreter may be a script: the kernel follows four.
    for _ in 0..5 {
        let Ok(mut file) = File::open(&at) else { return Ok(()) };
        let mut start = [0; 256];
        let length = read_up_to(&mut file, &mut start);
        if let Some(line) = start[..length].strip_prefix(b"#!") {
            let line = line.split(|b| *b == b'\n').next().unwrap_or_default();
            let Some(interpreter) = String::from_utf8_lossy(line).split_whitespace().next().map(PathBuf::from) else {
                return Ok(());
            };
            at = interpreter;
            continue;
        }
        return if start.starts_with(b"\x7fELF") { elf(&mut file, &start[..length]) } else { Ok(()) };
    }
    Ok(())
}

fn read_up_to(file: &mut File, into: &mut [u8]) -> usize {
    let mut length = 0;
    while let Ok(n @ 1..) = file.read(&mut into[length..]) {
        length += n;
    }
    length
}

// Offsets and values of <elf.h>, 64 bit.
const ELFCLASS64: u8 = 2;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PROGRAM_HEADER: usize = 56;
const MOST_HEADERS: usize = 256;

fn elf(file: &mut File, start: &[u8]) -> Result<(), Obstacle> {
    let own = File::open("/proc/self/exe").map(|mut f| {
        let mut head = [0; 20];
        read_up_to(&mut f, &mut head);
        head
    });
    let same_machine =
        own.is_ok_and(|own| start.len() >= 64 && own[4..6] == start[4..6] && own[18..20] == start[18..20]);
    if !same_machine || start[4] != ELFCLASS64 {
        return Err(Obstacle::OtherMachine);
    }
    let word = |bytes: &[u8], at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
    let headers = usize::from(u16::from_ne_bytes([start[56], start[57]])).min(MOST_HEADERS);
    let mut table = vec![0; headers * PROGRAM_HEADER];
    let at = word(start, 32);
    let length = file.seek(SeekFrom::Start(at)).map_or(0, |_| read_up_to(file, &mut table));
    let headers: Vec<&[u8]> = table[..length].chunks_exact(PROGRAM_HEADER).collect();
    let kind = |header: &[u8]| u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
    let Some(interp) = headers.iter().find(|h| kind(h) == PT_INTERP) else {
        // The loader itself, run as a command, is a shared object that honours LD_PRELOAD for what it loads.
        let loader = headers.iter().any(|h| kind(h) == PT_DYNAMIC) && is_loader(file);
        return if loader { Ok(()) } else { Err(Obstacle::Static) };
    };
    debug_assert!(headers.iter().any(|h| kind(h) == PT_LOAD) || headers.len() < 2);
    let mut name = vec![0; word(interp, 32).min(4096) as usize];
    let length = file.seek(SeekFrom::Start(word(interp, 8))).map_or(0, |_| read_up_to(file, &mut name));
    let name = String::from_utf8_lossy(&name[..length]).trim_end_matches('\0').to_owned();
    let file_name = name.rsplit('/').next().unwrap_or_default();
    if !(file_name.starts_with("ld-linux") || file_name.starts_with("ld64.so") || file_name == "ld.so.1") {
        return Err(Obstacle::OtherLibc);
    }
    if raises_privileges(file) { Err(Obstacle::Privileged) } else { Ok(()) }
}

fn is_loader(file: &File) -> bool {
    use std::os::fd::AsRawFd;
    let target = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    target.is_ok_and(|t| t.file_name().is_some_and(|n| n.to_string_lossy().starts_with("ld-")))
}

/// Whether the kernel would start it in secure mode for this user.
fn raises_privileges(file: &File) -> bool {
    const SETUID: u32 = 0o4000;
    const SETGID: u32 = 0o2010; // set-gid needs the group's execute bit too
    let Ok(metadata) = file.metadata() else { return false };
    let mode = metadata.permissions().mode();
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    if mode & SETUID != 0 && metadata.uid() != uid.as_raw() || mode & SETGID == SETGID && metadata.gid() != gid.as_raw()
    {
        return true;
    }
    let mut none: [u8; 0] = [];
    let capabilities = rustix::fs::fgetxattr(file, "security.capability", &mut none[..]);
    !uid.is_root() && capabilities.is_ok_and(|length| length > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(name: &str, contents: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::Builder::new().prefix(&format!("motet-executable-{name}-")).tempfile().unwrap();
        file.write_all(contents).unwrap();
        file
    }

    /// A minimal ELF file of this machine with these program headers: (type, contents).
    fn made(class: u8, headers: &[(u32, &[u8])]) -> Vec<u8> {
        let mut own = [0; 64];
        File::open("/proc/self/exe").unwrap().read_exact(&mut own).unwrap();
        let mut bytes = own.to_vec();
        bytes[4] = class;
        bytes[32..40].copy_from_slice(&64u64.to_ne_bytes());
        bytes[56..58].copy_from_slice(&(headers.len() as u16).to_ne_bytes());
        let mut data = 64 + headers.len() * PROGRAM_HEADER;
        for (kind, contents) in headers {
            let mut header = [0; PROGRAM_HEADER];
            header[..4].copy_from_slice(&kind.to_ne_bytes());
            header[8..16].copy_from_slice(&(data as u64).to_ne_bytes());
            header[32..40].copy_from_slice(&(contents.len() as u64).to_ne_bytes());
            bytes.extend(header);
            data += contents.len();
        }
        headers.iter().for_each(|(_, contents)| bytes.extend(*contents));
        bytes
    }

    #[test]
    fn programs_are_told_apart() {
        let check = |name: &str, bytes: &[u8]| inspect(file(name, bytes).path());
        let glibc: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";
        assert_eq!(check("glibc", &made(2, &[(PT_LOAD, b""), (PT_INTERP, glibc)])), Ok(()));
        assert_eq!(check("musl", &made(2, &[(PT_INTERP, b"/lib/ld-musl-x86_64.so.1\0")])), Err(Obstacle::OtherLibc));
        assert_eq!(check("static", &made(2, &[(PT_LOAD, b"")])), Err(Obstacle::Static));
        assert_eq!(check("static-pie", &made(2, &[(PT_DYNAMIC, b"")])), Err(Obstacle::Static));
        assert_eq!(check("32", &made(1, &[(PT_INTERP, glibc)])), Err(Obstacle::OtherMachine));
        assert_eq!(check("cut", b"\x7fELF\x02"), Err(Obstacle::OtherMachine));
        assert_eq!(check("text", b"echo hello\n"), Ok(()));
        assert_eq!(check("script", b"#!/bin/sh -e\n"), Ok(()));
        assert_eq!(inspect(Path::new("/proc/self/exe")), Ok(()));
    }

    #[test]
    fn commands_are_found_like_a_shell_does() {
        let path = || Some("/nowhere:/bin".into());
        assert_eq!(search("sh".as_ref(), path()), Search::Found("/bin/sh".into()));
        assert_eq!(search("no-such-command".as_ref(), path()), Search::Missing);
        assert_eq!(search("".as_ref(), path()), Search::Missing);
        assert_eq!(search("/etc".as_ref(), path()), Search::NotExecutable("/etc".into()));
        assert_eq!(search("/etc/passwd".as_ref(), path()), Search::NotExecutable("/etc/passwd".into()));
    }
}
