//! Whether a program can run under Motet by preloading, read from its file before it starts.
//!
//! The dynamic loader in a program's PT_INTERP honours LD_PRELOAD. A program without a loader, with the loader of another C library, for
//! another machine or with raised privileges runs without Motet.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why a preloadable process runs without Motet.
pub const NOT_STARTED_UNDER_MOTET: &str = "it was not started under Motet; start it with `motet run -- COMMAND`";

/// Why a program runs without the preload object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// No dynamic loader.
    Static,
    /// A loader other than glibc's, such as musl's.
    OtherLibc,
    /// A 32-bit program, or one for another processor.
    OtherMachine,
    /// Set-uid, set-gid or with file capabilities: the loader ignores LD_PRELOAD.
    Privileged,
}

impl Obstacle {
    /// Why the loader may have skipped the preload object of a preloadable program.
    pub const NOT_FOUND_BY_LOADER: &'static str = "the dynamic loader did not load the preload object; check that the process can see its folder (container, chroot)";

    /// What the program is, in a few words.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Static => "statically linked",
            Self::OtherLibc => "built for another C library",
            Self::OtherMachine => "a 32-bit program, or one for another processor",
            Self::Privileged => "set-uid, set-gid or with file capabilities",
        }
    }

    /// Whether LD_PRELOAD must not be set, as the loader would complain or refuse. Otherwise the program ignores it, and programs
    /// that it starts run under Motet.
    pub fn forbids_preload(self) -> bool {
        matches!(self, Self::OtherLibc | Self::OtherMachine)
    }
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Static => "statically linked: no loader reads LD_PRELOAD; link it dynamically (Go: with cgo and `-linkmode=external`)",
            Self::OtherLibc => "built for a C library other than glibc (musl?); use a build for glibc",
            Self::OtherMachine => "a 32-bit program, or one for another processor; use a build for this machine's 64-bit mode",
            Self::Privileged => "set-uid, set-gid or with file capabilities: the loader ignores LD_PRELOAD; run it as its user without them",
        })
    }
}

/// The result of the search for a command.
#[derive(Debug, PartialEq, Eq)]
pub enum CommandSearch {
    /// The file that the kernel will execute.
    Executable(PathBuf),
    /// There is such a file, but it is not executable.
    NotExecutable(PathBuf),
    /// There is no such file.
    Missing,
}

/// Finds a command as `execvp` does.
pub fn search(command: &std::ffi::OsStr, path: Option<std::ffi::OsString>) -> CommandSearch {
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
            Ok(m) if m.is_file() && can_execute(&candidate) => return CommandSearch::Executable(candidate),
            Ok(_) => refused = refused.or(Some(candidate)),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => refused = refused.or(Some(candidate)),
            Err(_) => {}
        }
    }
    refused.map_or(CommandSearch::Missing, CommandSearch::NotExecutable)
}

fn can_execute(path: &Path) -> bool {
    use rustix::fs::{Access, access};
    access(path, Access::EXEC_OK).is_ok()
}

/// Whether a program is preloadable. A file that is neither a script nor ELF passes; the kernel will judge it.
///
/// # Errors
/// Why the program runs without the preload object.
pub fn inspect(path: &Path) -> Result<(), Obstacle> {
    let mut at = path.to_owned();
    // A script's interpreter may be a script; the kernel follows four of them.
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
const MAX_PROGRAM_HEADERS: usize = 256;

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
    let headers = usize::from(u16::from_ne_bytes([start[56], start[57]])).min(MAX_PROGRAM_HEADERS);
    let mut table = vec![0; headers * PROGRAM_HEADER];
    let at = word(start, 32);
    let length = file.seek(SeekFrom::Start(at)).map_or(0, |_| read_up_to(file, &mut table));
    let headers: Vec<&[u8]> = table[..length].chunks_exact(PROGRAM_HEADER).collect();
    let kind = |header: &[u8]| u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
    let Some(interp) = headers.iter().find(|h| kind(h) == PT_INTERP) else {
        // The loader itself, run as a command, is a shared object and honours LD_PRELOAD for the program that it loads.
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

/// Whether the kernel would start the program in secure mode for this user.
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
    fn kinds_of_programs_are_recognised() {
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
    fn commands_are_found_as_in_a_shell() {
        let path = || Some("/nowhere:/bin".into());
        assert_eq!(search("sh".as_ref(), path()), CommandSearch::Executable("/bin/sh".into()));
        assert_eq!(search("no-such-command".as_ref(), path()), CommandSearch::Missing);
        assert_eq!(search("".as_ref(), path()), CommandSearch::Missing);
        assert_eq!(search("/etc".as_ref(), path()), CommandSearch::NotExecutable("/etc".into()));
        assert_eq!(search("/etc/passwd".as_ref(), path()), CommandSearch::NotExecutable("/etc/passwd".into()));
    }
}
