//! Helpers of the tests of the command: a clean environment, temporary folders, dummy libraries.
#![allow(dead_code)] // each test file uses its own part

pub mod exported;
pub mod module_session;
pub mod test_hosts;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A folder that is removed when dropped.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new(name: &str) -> Self {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        let within = std::env::temp_dir().canonicalize().unwrap();
        let folder =
            tempfile::Builder::new().prefix(&format!("motet-cli-{name}-")).permissions(mode).tempdir_in(within);
        Self(folder.unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn file(&self, name: &str, contents: &str, mode: u32) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = self.path().join(name);
        std::fs::write(&path, contents).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    /// Compiles a C program or library.
    pub fn compile(&self, name: &str, source: &str, options: &[&str]) -> PathBuf {
        let (path, input) = (self.path().join(name), self.file(&format!("{name}.c"), source, 0o644));
        let done = Command::new("cc").arg("-o").arg(&path).arg(input).args(options).output().expect("cc is installed");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        path
    }

    /// Empty shared objects under the names of Motet's libraries: `motet run` only finds and preloads them.
    pub fn libraries(&self) -> &Path {
        self.compile("libmotet_sockets.so", "int motet_dummy;", &["-shared", "-fPIC"]);
        self.compile("libmotet.so.0", "int motet_dummy;", &["-shared", "-fPIC"]);
        self.path()
    }
}

/// The command, without any setting of the tester.
pub fn motet<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_motet"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MOTET_") {
            command.env_remove(name);
        }
    }
    command
        .env_remove("LD_PRELOAD")
        .env("MOTET_CONFIG", "/dev/null")
        .env("MOTET_PROFILE", "/dev/null")
        .args(arguments)
        .stdin(Stdio::null());
    command
}

/// Nothing that a test waits for takes so long.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Waits for a condition.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < LIMIT, "never happens: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Says, and logs for the summary of all tests, that a test is skipped.
pub fn skipped(test: &str, why: &str) {
    eprintln!("SKIPPED {test}: {why}");
    if let Some(log) = std::env::var_os("MOTET_SKIP_LOG")
        && let Ok(mut log) = std::fs::OpenOptions::new().append(true).create(true).open(log)
    {
        // One write: other tests append at the same time.
        let _ = std::io::Write::write_all(&mut log, format!("SKIP {test}: {why}\n").as_bytes());
    }
}

/// Exit code (-N for signal N), standard output and standard error.
pub fn finish(command: &mut Command) -> (i32, String, String) {
    use std::os::unix::process::ExitStatusExt;
    let Output { status, stdout, stderr } = command.output().unwrap();
    let code = status.code().unwrap_or_else(|| -status.signal().unwrap());
    (code, String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// A command that fails with this code and one line on standard error, which is returned.
#[track_caller]
pub fn refused(command: &mut Command, code: i32) -> String {
    let (got, out, err) = finish(command);
    assert_eq!((got, out.as_str()), (code, ""), "{err}");
    assert!(err.starts_with("motet: ") && err.ends_with('\n') && err.lines().count() == 1, "{err}");
    err
}

pub fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Whether file systems can be mounted here. Says that a test is skipped otherwise.
pub fn can_mount(test: &str) -> bool {
    let able = Path::new("/dev/fuse").exists() && rustix::process::getuid().is_root();
    if !able {
        skipped(test, "no /dev/fuse, or not root");
    }
    able
}

/// A command as a shell starts it whose soft limit on open files is low.
pub fn with_few_descriptors(command: &Command) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -Sn 256; exec \"$@\"", "sh"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited
}

/// The soft and the hard limit on open files of a process.
pub fn descriptor_limits(process: u32) -> (String, String) {
    let limits = std::fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let mut words = line.split_whitespace().map(str::to_owned);
    (words.next().unwrap(), words.next().unwrap())
}
