//! The folder of a session on a host, which only its user may enter.
//!
//! It is `$MOTET_SESSION_DIR/NAME`, or `$XDG_RUNTIME_DIR/motet/NAME` if that folder is the user's, or `/tmp/motet-UID/NAME`. Its mode and owner are checked at each use, because `/tmp` is
//! open to everybody.

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, RawMode, flock, mkdir, statat};
use rustix::process::getuid;
use std::fmt;
use std::path::{Path, PathBuf};

/// The variable that names the folder of all sessions.
pub const DIR_VARIABLE: &str = "MOTET_SESSION_DIR";
/// The variable that names the session.
pub const NAME_VARIABLE: &str = "MOTET_SESSION";
/// The name of a session that is given none.
pub const DEFAULT_NAME: &str = "default";
/// The longest name of a session, group or host, bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// The longest path of a Unix socket, bytes: `sun_path` less its ending zero.
const MAX_SOCKET_BYTES: usize = 107;

/// Why the folder of a session cannot be used. The text says what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathError(pub String);

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PathError {}

/// Whether `name` may name a session, a group or a host: 1 to 64 letters, digits and `. _ -`, the first one a letter or digit.
fn is_name(name: &str) -> bool {
    name.len() <= MAX_NAME_BYTES
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// Checks the name of a session, a group or a host, `what`: which of them.
pub fn check_name(what: &str, name: &str) -> Result<(), PathError> {
    if is_name(name) {
        return Ok(());
    }
    let shown: String = name.chars().take(MAX_NAME_BYTES + 16).collect();
    let article = if what.starts_with(['a', 'e', 'i', 'o', 'u']) && what != "user" { "an" } else { "a" };
    Err(PathError(format!("{shown:?} is no name of {article} {what}: use 1 to 64 letters, digits and . _ -")))
}

/// The files of one session on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionPaths {
    name: String,
    dir: PathBuf,
}

impl SessionPaths {
    /// The session that the environment names, or the default one. Creates nothing.
    pub fn from_env() -> Result<Self, PathError> {
        Self::of(&std::env::var(NAME_VARIABLE).unwrap_or_else(|_| DEFAULT_NAME.to_owned()))
    }

    /// The session of this name.
    pub fn of(name: &str) -> Result<Self, PathError> {
        Self::within(&own_base(), name)
    }

    /// The session of this name, in this folder of sessions.
    pub fn within(base: &Path, name: &str) -> Result<Self, PathError> {
        check_name("session", name)?;
        Ok(Self { name: name.to_owned(), dir: base.join(name) })
    }

    /// The session's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The gatekeeper's Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("gatekeeper.sock")
    }

    /// The gatekeeper's Unix socket for registrations without an answer.
    pub fn programs_socket(&self) -> PathBuf {
        self.dir.join("programs.sock")
    }

    /// What programs have to know before they start.
    pub fn announcement(&self) -> PathBuf {
        self.dir.join("session")
    }

    /// The session's key, which only its user can read.
    pub fn key(&self) -> PathBuf {
        self.dir.join("key")
    }

    /// The journal of the embedded directory.
    pub fn journal(&self) -> PathBuf {
        self.dir.join("directory.journal")
    }

    /// What the gatekeeper logs.
    pub fn log(&self) -> PathBuf {
        self.dir.join("gatekeeper.log")
    }

    /// What the default node and its modules print.
    pub fn node_log(&self) -> PathBuf {
        self.dir.join("node.log")
    }

    /// The gatekeeper's own options, for the one that replaces it.
    pub fn options(&self) -> PathBuf {
        self.dir.join("gatekeeper.options")
    }

    /// The certificates of a gatekeeper that other hosts connect to, with their key.
    pub fn certificates(&self) -> PathBuf {
        self.dir.join("certificates")
    }

    /// How a gatekeeper reaches the primary one.
    pub fn join_config(&self) -> PathBuf {
        self.dir.join("join")
    }

    /// The folder in which nodes of this host meet, also those of other network namespaces. It exists if the session allows that.
    pub fn nodes(&self) -> PathBuf {
        self.dir.join("nodes")
    }

    /// The file that a gatekeeper locks while it runs.
    pub fn lock(&self) -> PathBuf {
        self.dir.join("gatekeeper.lock")
    }

    /// Creates the folder and the folder of all sessions, and checks both.
    pub fn create(&self) -> Result<(), PathError> {
        let socket = self.socket();
        let length = socket.as_os_str().len();
        if length > MAX_SOCKET_BYTES {
            let why = format!(
                "{}: the path of a Unix socket has at most {MAX_SOCKET_BYTES} bytes, and this one has {length}: choose a shorter {DIR_VARIABLE} or name",
                socket.display()
            );
            return Err(PathError(why));
        }
        for dir in [self.dir.parent().unwrap_or(Path::new("/")), &self.dir] {
            create_private(dir)?;
        }
        Ok(())
    }

    /// Removes the folder of a session that has not begun. It stays if a gatekeeper runs in it.
    pub fn remove_unbegun(&self) {
        let Ok(lock) = std::fs::File::create(self.lock()) else { return };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // Aside first: a gatekeeper that starts now makes a new one.
            let aside = self.dir.with_extension(format!("unbegun-{}", std::process::id()));
            let _ = std::fs::rename(&self.dir, &aside).and_then(|()| std::fs::remove_dir_all(&aside));
        }
    }

    /// Checks that the folder and the folder of all sessions exist and are this user's alone.
    pub fn check(&self) -> Result<(), PathError> {
        check_private(self.dir.parent().unwrap_or(Path::new("/")))?;
        check_private(&self.dir)
    }
}

/// The names of folders that are no session's.
const EXPORTS: &str = ".exports";
const LIBRARIES: &str = ".libraries";

/// The folder in which servers of exported folders have their sockets. It is created if need be, and checked.
pub fn exports_folder() -> Result<PathBuf, PathError> {
    private_folder(EXPORTS)
}

/// The same folder if it exists and is private to this user. It is not created.
pub fn existing_exports_folder() -> Option<PathBuf> {
    let base = own_base();
    let folder = base.join(EXPORTS);
    (check_private(&base).is_ok() && check_private(&folder).is_ok()).then_some(folder)
}

/// The folder for links to libraries whose own path cannot be preloaded. It is created if need be, and checked.
pub fn libraries_folder() -> Result<PathBuf, PathError> {
    private_folder(LIBRARIES)
}

fn private_folder(name: &str) -> Result<PathBuf, PathError> {
    let base = own_base();
    let folder = base.join(name);
    create_private(&base)?;
    create_private(&folder)?;
    Ok(folder)
}

/// The folder of all sessions of this process.
fn own_base() -> PathBuf {
    base(|variable| std::env::var_os(variable).map(PathBuf::from))
}

/// Creates a folder of this user that others cannot enter, or checks the one that exists.
fn create_private(dir: &Path) -> Result<(), PathError> {
    match mkdir(dir, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => check_private(dir),
        Err(error) => Err(PathError(format!("{} cannot be created: {error}", dir.display()))),
    }
}

/// The folder of all sessions, from the variables that `variable` returns.
fn base(variable: impl Fn(&str) -> Option<PathBuf>) -> PathBuf {
    let set = |name: &str| variable(name).filter(|path| path.is_absolute());
    set(DIR_VARIABLE)
        .or_else(|| set("XDG_RUNTIME_DIR").filter(|dir| is_own(dir)).map(|dir| dir.join("motet")))
        .unwrap_or_else(|| PathBuf::from(format!("/tmp/motet-{}", getuid().as_raw())))
}

/// Whether a folder is this user's and no other user can exchange what is in it. `su` keeps the variables of the user before: such a folder is not used.
fn is_own(dir: &Path) -> bool {
    statat(CWD, dir, AtFlags::empty()).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode as RawMode) == FileType::Directory
            && stat.st_uid == getuid().as_raw()
            && stat.st_mode & 0o022 == 0
    })
}

/// Checks that `dir` is a folder of this user that others cannot enter. A symbolic link is refused.
fn check_private(dir: &Path) -> Result<(), PathError> {
    let refuse = |why: String| Err(PathError(format!("{}: {why}", dir.display())));
    let stat = match statat(CWD, dir, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(error) => return refuse(error.to_string()),
    };
    if FileType::from_raw_mode(stat.st_mode as RawMode) != FileType::Directory {
        return refuse("is no folder: remove it, or set MOTET_SESSION_DIR".to_owned());
    }
    if stat.st_uid != getuid().as_raw() {
        return refuse(format!("belongs to user {}: set MOTET_SESSION_DIR to a folder of yours", stat.st_uid));
    }
    if stat.st_mode & 0o077 != 0 {
        return refuse("others may enter: chmod 700 it, or set MOTET_SESSION_DIR".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn names_are_plain() {
        assert!(["a", "default", "run-3", "x.y_z", &"n".repeat(64)].iter().all(|name| is_name(name)));
        assert!(["", ".", "..", "a/b", "-x", "ä", "a b", &"n".repeat(65)].iter().all(|name| !is_name(name)));
    }

    #[test]
    fn base_is_taken_from_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        let runtime = dir.path().to_owned();
        let of = |wanted: &'static str, path: PathBuf| base(move |name| (name == wanted).then(|| path.clone()));
        assert_eq!(of(DIR_VARIABLE, "/s".into()), Path::new("/s"));
        assert_eq!(of("XDG_RUNTIME_DIR", runtime.clone()), runtime.join("motet"));
        let fallback = PathBuf::from(format!("/tmp/motet-{}", getuid().as_raw()));
        assert_eq!(of("XDG_RUNTIME_DIR", "/does/not/exist".into()), fallback);
        assert_eq!(of(DIR_VARIABLE, "relative".into()), fallback);
        std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(of("XDG_RUNTIME_DIR", runtime.clone()), fallback, "others can exchange what is in it");
        std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o700)).unwrap();
        if getuid().is_root() {
            std::os::unix::fs::chown(&runtime, Some(65_534), None).unwrap();
            assert_eq!(of("XDG_RUNTIME_DIR", runtime), fallback, "it is another user's, as after su");
        }
    }

    #[test]
    fn folder_that_others_may_enter_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let paths = SessionPaths::within(&dir.path().join("sessions"), "one").unwrap();
        paths.create().unwrap();
        paths.create().unwrap();
        paths.check().unwrap();
        std::fs::set_permissions(paths.dir(), std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(paths.check().unwrap_err().0.contains("others may enter"));
        assert!(paths.create().is_err());
    }

    #[test]
    fn symbolic_link_in_place_of_the_folder_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = dir.path().join("sessions");
        symlink(dir.path(), &sessions).unwrap();
        let paths = SessionPaths::within(&sessions, "one").unwrap();
        assert!(paths.create().unwrap_err().0.contains("is no folder"));
    }
}
