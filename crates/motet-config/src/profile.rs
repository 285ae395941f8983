//! The profile: what `motet tune` measured on this machine, in one small file.
//!
//! What it is: the paths of the file ([`candidates`]), its text ([`Profile::parse`], [`Profile::render`]), and when it is trusted: a
//! regular file of this user or of root that other users cannot write, measured on a machine like this one ([`Machine`]: a home
//! folder may be shared over the network). What it is not: required. If anything is wrong with it the defaults hold, without an
//! error; `motet doctor` gives the reason.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};

use crate::file;
use crate::kind::Value;
use crate::settings::setting;

/// The version of the file's format. A file of another version is ignored.
pub const FORMAT: u64 = 2;
/// The profile that root measures, which every user reads.
pub const SYSTEM_PROFILE_PATH: &str = "/var/cache/motet/profile.toml";
/// The user's own profile, below $XDG_CACHE_HOME.
const USER_PROFILE_PATH: &str = "motet/profile.toml";
/// Largest file that is read, bytes.
const MAX_FILE_BYTES: usize = 4096;
/// Longest name of a processor or kernel release, characters.
const MAX_NAME_CHARS: usize = 200;

/// The machine on which a profile was measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// CPUs that are online, including those that this process may not use.
    pub cpus: u64,
    /// Release of the kernel.
    pub kernel: String,
}

/// The content of a profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The machine that was measured.
    pub machine: Machine,
    /// Time of the measurement, seconds since 1970.
    pub measured: u64,
    /// Time that a cache line takes from one CPU to the other at the last measurement, ns; shown to users only.
    pub floor: Option<u64>,
    /// Bytes from which single copy is faster between CPUs that share a cache.
    pub single_copy_min: Option<u64>,
    /// Bytes from which single copy is faster between CPUs that share no cache.
    pub single_copy_min_far: Option<u64>,
    /// Bytes from which both sides together make the single copy faster than one.
    pub half_copy_min: Option<u64>,
}

/// The result of the search for a profile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ProfileLookup {
    /// There is no profile.
    #[default]
    Missing,
    /// There is a profile, and it is not used.
    Ignored {
        /// The file.
        path: PathBuf,
        /// Why it is not used.
        why: String,
    },
    /// There is a profile, and it is used.
    Valid {
        /// The file.
        path: PathBuf,
        /// The content of the file.
        profile: Profile,
    },
}

impl Machine {
    /// This machine. A field that cannot be read is empty.
    pub fn here() -> Self {
        // The first CPU's entry is enough, and a large machine takes long to list them all.
        let info = head("/proc/cpuinfo", 2048);
        let field = |name: &str| {
            let value = info.lines().find_map(|l| l.strip_prefix(name)?.trim_start().strip_prefix(':'));
            value.unwrap_or_default().trim().to_owned()
        };
        let processor = match field("model name") {
            name if !name.is_empty() => name,
            // ARM has numbers only.
            _ => [field("CPU implementer"), field("CPU part"), field("CPU revision")].join(" ").trim().to_owned(),
        };
        let online = count_cpus(head("/sys/devices/system/cpu/online", MAX_FILE_BYTES).trim());
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        Self { processor: word(&processor), cpus: online, kernel: word(&kernel) }
    }
}

/// Number of CPUs in a list such as `0-3,6`; 0 for any other text.
fn count_cpus(list: &str) -> u64 {
    let count = |range: &str| -> Option<u64> {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        last.parse::<u32>().ok()?.checked_sub(first.parse().ok()?).map(|n| u64::from(n) + 1)
    };
    list.split(',').map(count).sum::<Option<u64>>().unwrap_or(0)
}

/// The first `limit` bytes of a file of /proc or /sys; empty if it cannot be read.
fn head(path: &str, limit: usize) -> String {
    let read = || -> io::Result<String> {
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut bytes = vec![0; limit];
        let length = file::fill(&file, &mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
    };
    read().unwrap_or_default()
}

/// The text without characters that a quoted value cannot hold, cut to [`MAX_NAME_CHARS`] characters.
fn word(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() && !"\"\\".contains(*c)).take(MAX_NAME_CHARS).collect()
}

impl Profile {
    /// Parses the text of a profile. Unknown keys are ignored.
    ///
    /// # Errors
    /// The first thing that is wrong with it, as text for users.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_FILE_BYTES {
            return Err(format!("is larger than {MAX_FILE_BYTES} bytes"));
        }
        let (entries, problems) = file::parse(Path::new("profile"), text);
        let find = |key: &str| entries.iter().find(|e| e.key == key).map(|e| e.text.as_str());
        let number = |key: &str| match find(key) {
            None => Ok(None),
            Some(text) => text.parse::<u64>().map(Some).map_err(|_| format!("{key} is not a number")),
        };
        match number("format")? {
            Some(FORMAT) => {}
            Some(n) => return Err(format!("has format {n}, this version of Motet reads format {FORMAT}")),
            None => return Err(problems.first().map_or("has no format".into(), |p| p.what.clone())),
        }
        let required = |key: &str| find(key).map(word).ok_or_else(|| format!("has no {key}"));
        let size = |key: &str| match find(key) {
            None => Ok(None),
            Some(text) => match setting(key).map(|s| s.kind.parse(text)) {
                Some(Ok(Value::Number(n))) if n > 0 => Ok(Some(n)),
                _ => Err(format!("{key} is out of range")),
            },
        };
        Ok(Self {
            machine: Machine {
                processor: required("processor")?,
                cpus: number("cpus")?.ok_or("has no cpus")?,
                kernel: required("kernel")?,
            },
            measured: number("measured")?.unwrap_or(0),
            floor: number("floor")?,
            single_copy_min: size("single_copy_min")?,
            single_copy_min_far: size("single_copy_min_far")?,
            half_copy_min: size("half_copy_min")?,
        })
    }

    /// The text of the file. `notes` are comment lines, such as the measured values.
    pub fn render(&self, notes: &[String]) -> String {
        let Machine { processor, cpus, kernel } = &self.machine;
        let mut text = format!(
            "# Measured by `motet tune` on this machine. The file may be deleted; other machines ignore it.\n\
             format = {FORMAT}\nprocessor = \"{}\"\ncpus = {cpus}\nkernel = \"{}\"\nmeasured = {}\n",
            word(processor),
            word(kernel),
            self.measured
        );
        text.extend(self.floor.map(|ns| format!("floor = {ns}\n")));
        text.extend(self.settings().map(|(key, size)| format!("{key} = {size}\n")));
        for note in notes {
            let line = format!("# {}\n", note.replace(char::is_control, " "));
            if text.len() + line.len() <= MAX_FILE_BYTES {
                text += &line;
            }
        }
        text
    }

    /// The settings that the profile has values for.
    pub fn settings(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let values = [
            ("single_copy_min", self.single_copy_min),
            ("single_copy_min_far", self.single_copy_min_far),
            ("half_copy_min", self.half_copy_min),
        ];
        values.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }
}

/// Files that may hold the profile, best first. `motet tune` writes the first.
///
/// Only `MOTET_PROFILE` if that is set (/dev/null: none); otherwise the user's own file, then root's. Root uses only its own, so
/// that a root shell with the HOME of a user leaves no file there.
pub fn candidates(variables: &BTreeMap<String, OsString>, root: bool) -> Vec<PathBuf> {
    if let Some(path) = variables.get("MOTET_PROFILE") {
        return if path == "/dev/null" { Vec::new() } else { vec![path.into()] };
    }
    let own = if root { None } else { file::folder(variables, "XDG_CACHE_HOME", ".cache") };
    own.map(|f| f.join(USER_PROFILE_PATH)).into_iter().chain([SYSTEM_PROFILE_PATH.into()]).collect()
}

/// Finds the profile of this machine: the first valid file, else the first that was ignored.
pub fn find(
    candidates: &[PathBuf],
    read: impl Fn(&Path) -> io::Result<Option<String>>,
    machine: impl Fn() -> Machine,
) -> ProfileLookup {
    let mut found = ProfileLookup::Missing;
    for path in candidates {
        let valid = match read(path) {
            Ok(None) => continue,
            Ok(Some(text)) => Profile::parse(&text).and_then(|profile| match machine() {
                here if here == profile.machine => Ok(profile),
                here => Err(difference(&profile.machine, &here)),
            }),
            Err(e) => Err(e.to_string()),
        };
        match valid {
            Ok(profile) => return ProfileLookup::Valid { path: path.clone(), profile },
            Err(why) if found == ProfileLookup::Missing => found = ProfileLookup::Ignored { path: path.clone(), why },
            Err(_) => {}
        }
    }
    found
}

fn difference(there: &Machine, here: &Machine) -> String {
    if there.processor != here.processor {
        format!("measured on another machine ({}, here {})", there.processor, here.processor)
    } else if there.cpus != here.cpus {
        format!("measured with {} CPUs, here are {}", there.cpus, here.cpus)
    } else {
        format!("measured under kernel {}, here is {}", there.kernel, here.kernel)
    }
}

/// The text of a trusted profile; `None` when there is none. A symbolic link is not followed.
///
/// # Errors
/// The file belongs to another user, other users can write it, it is not a regular file, or a system call failed.
pub fn read(path: &Path) -> io::Result<Option<String>> {
    let Some(file) = file::open(path, OFlags::NOFOLLOW)? else { return Ok(None) };
    let stat = rustix::fs::fstat(&file)?;
    if stat.st_uid != 0 && stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it belongs to another user"));
    }
    if stat.st_mode & 0o022 != 0 {
        return Err(io::Error::other("other users can write it"));
    }
    file::text(&file, MAX_FILE_BYTES).map(Some)
}

/// Writes a profile: a new file, renamed over the old one. A missing folder is created.
///
/// # Errors
/// A system call failed, or the folder belongs to another user.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let root = is_root();
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::other("it is not the name of a file"));
    };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    if !folder.exists() {
        std::fs::DirBuilder::new().recursive(true).mode(if root { 0o755 } else { 0o700 }).create(folder)?;
    }
    let folder = rustix::fs::open(
        folder,
        OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY,
        Mode::empty(),
    )?;
    let owner = rustix::fs::fstat(&folder)?.st_uid;
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("its folder belongs to another user"));
    }
    let temporary = format!(".{}.{}", name.to_string_lossy(), std::process::id());
    let _ = rustix::fs::unlinkat(&folder, &temporary, AtFlags::empty()); // left by a process that died here
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(if root { 0o644 } else { 0o600 });
    let file = rustix::fs::openat(&folder, &temporary, flags, mode)?;
    let whole = || -> io::Result<()> {
        rustix::fs::fchmod(&file, mode)?; // independent of the umask
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            match rustix::io::write(&file, rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => rest = &rest[n..],
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(rustix::fs::renameat(&folder, &temporary, &folder, name)?)
    };
    whole().inspect_err(|_| {
        let _ = rustix::fs::unlinkat(&folder, &temporary, AtFlags::empty());
    })
}

/// Whether this process runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests;
