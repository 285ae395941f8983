//! Black-box tests of the sockets adapter.
//!
//! What it is: a harness that compiles the socket programs of `tests/programs` with the system's C compiler, runs each without Motet and then with
//! `libmotet_sockets.so` preloaded, and compares the output. A test may require that payload takes the fast path, by the counters that the adapter
//! reports at exit. Such a run keeps its gates open (`MOTET_PATIENCE`), so the result does not depend on the load of the CPUs.
//!
//! What it is not: a benchmark. It measures no time. A run that takes longer than [`TIMEOUT`] has hung.
#![forbid(unsafe_code)]

pub mod cpu_steal;
mod cpu_turns;
pub mod mpi;
pub mod native;
pub mod omniorb;
pub mod programs;
pub mod session;
pub mod slurm;
pub mod temporary;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};
use temporary::Temporary;

/// The setting of [`Program::with_open_gates`] and its value, which is longer than any wait of a test program.
pub(crate) const OPEN_GATES: (&str, &str) = ("MOTET_PATIENCE", "300ms");

/// Time limit of a run.
pub const TIMEOUT: Duration = Duration::from_secs(40);

/// A program with its arguments and settings.
#[derive(Debug, Clone)]
pub struct Program {
    command: Vec<OsString>,
    environment: Vec<(String, String)>,
    limit: Duration,
    user: Option<u32>,
    counted: bool,
}

/// Runs a C program without and with Motet: both runs must succeed and print the same. Returns the run under Motet.
#[track_caller]
pub fn both(name: &str, arguments: &[&str]) -> Outcome {
    Program::c(name, arguments).same_both_ways()
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Standard output.
    pub printed: String,
    /// Standard error.
    pub stderr: String,
    /// Whether it exited by itself, with status 0.
    pub succeeded: bool,
    /// The counters of each stream that the engine took over.
    pub streams: Vec<Stream>,
    /// The counters of each process, a line of JSON each, as `MOTET_STATS` writes them. Only of a [`counted`](Program::counted) program.
    pub counts: String,
    /// The program that ran.
    program: Program,
}

/// The counters of one stream at its end.
#[derive(Debug, Clone, Default)]
pub struct Stream {
    /// Bytes sent over shared memory.
    pub sent_fast: u64,
    /// Bytes sent over TCP.
    pub sent_tcp: u64,
    /// The reason code of `motet why`.
    pub reason: u64,
}

/// How to run a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Without Motet.
    WithoutMotet,
    /// With the adapter preloaded.
    WithMotet,
}

impl Program {
    /// A C program of `tests/programs`.
    pub fn c(name: &str, arguments: &[&str]) -> Self {
        Self::new(compiled(name), arguments)
    }

    /// A Python script of `tests/programs`. `None`, with a message, if Python is not installed.
    pub fn python(name: &str) -> Option<Self> {
        if Command::new("python3").arg("--version").output().is_err() {
            eprintln!("SKIPPED {name}: python3 is not installed");
            return None;
        }
        Some(Self::of(vec!["python3".into(), script(name).into()]))
    }

    /// A program built by [`Built::program`].
    pub fn built(path: &Path, arguments: &[&str]) -> Self {
        Self::new(path.to_path_buf(), arguments)
    }

    fn new(path: PathBuf, arguments: &[&str]) -> Self {
        let mut command = vec![path.into_os_string()];
        command.extend(arguments.iter().map(OsString::from));
        Self::of(command)
    }

    fn of(command: Vec<OsString>) -> Self {
        Self { command, environment: Vec::new(), limit: TIMEOUT, user: None, counted: false }
    }

    /// Sets another time limit.
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Sets an environment variable.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Keeps gates open, so that payload takes the fast path under any load.
    pub fn with_open_gates(self) -> Self {
        if self.is_open() { self } else { self.with(OPEN_GATES.0, OPEN_GATES.1) }
    }

    fn is_open(&self) -> bool {
        self.environment.iter().any(|(name, _)| name == OPEN_GATES.0)
    }

    /// Starts the program by another command, which these words begin.
    pub fn by(mut self, words: &[&str]) -> Self {
        self.command.splice(0..0, words.iter().map(OsString::from));
        self
    }

    /// Runs as another user, which requires root. Program and libraries are copied to where every user may read them.
    pub fn for_user(mut self, user: u32) -> Self {
        self.user = Some(user);
        self
    }

    /// Collects the counters of each process ([`Outcome::counts`]), in a file of this run.
    pub fn counted(mut self) -> Self {
        self.counted = true;
        self
    }

    /// Starts the program in a process group of its own.
    pub fn start(&self, mode: Mode) -> Running {
        let files = Files::new(self.user);
        let here = |path: &Path| if self.user.is_some() { files.copy(path) } else { path.to_path_buf() };
        let mut command = Command::new(here(Path::new(&self.command[0])));
        if let Some(user) = self.user {
            command.uid(user).gid(user).current_dir("/");
        }
        command.args(&self.command[1..]).process_group(0).stdin(Stdio::null());
        command.stdout(files.create("out")).stderr(files.create("err"));
        for name in ["LD_PRELOAD", "MOTET_DISABLE", "MOTET_LIBRARY", "MOTET_SHIM_REPORT", OPEN_GATES.0] {
            command.env_remove(name);
        }
        if mode == Mode::WithMotet {
            command.env("LD_PRELOAD", here(adapter())).env("MOTET_SHIM_REPORT", files.path("report"));
            if let Some(engine) = engine() {
                command.env("MOTET_LIBRARY", here(engine));
            }
        }
        command.envs(self.environment.iter().map(|(n, v)| (n, v)));
        if self.counted {
            command.env("MOTET_STATS", files.path("counts"));
        }
        let child = command.spawn().unwrap_or_else(|e| panic!("cannot start {:?}: {e}", self.command));
        Running { program: self.clone(), child, files, began: Instant::now() }
    }

    /// Runs the program until it exits.
    pub fn run(&self, mode: Mode) -> Outcome {
        self.start(mode).finish()
    }

    /// Runs the program without and with Motet: both runs must succeed and print the same. Returns the run under Motet. A failure while the host took
    /// CPU time ([`cpu_steal`]) is retried, with three times the limit.
    #[track_caller]
    pub fn same_both_ways(&self) -> Outcome {
        let (name, mut limit) = (&self.command, self.limit);
        let same = cpu_steal::retry_on_steal(&format!("{name:?}"), || {
            let program = self.clone().within(limit);
            limit = self.limit * 3;
            let (without_motet, with_motet) = (program.run(Mode::WithoutMotet), program.run(Mode::WithMotet));
            for (how, run) in [("without Motet", &without_motet), ("with Motet", &with_motet)] {
                if !run.succeeded {
                    return Err(format!("{how}, {name:?} failed: {}{}", run.printed, run.stderr));
                }
            }
            let differ = |what: &str, one: &str, other: &str| {
                let message = format!("{name:?} {what} with Motet:\nwithout: {one:?}\n   with: {other:?}");
                if one == other { Ok(()) } else { Err(message) }
            };
            differ("prints something else", &without_motet.printed, &with_motet.printed)?;
            differ("writes other errors", &without_motet.stderr, &with_motet.stderr)?;
            Ok(with_motet)
        });
        same.unwrap_or_else(|failed| panic!("{failed}"))
    }
}

impl Outcome {
    /// Bytes sent over shared memory by all streams.
    pub fn sent_fast(&self) -> u64 {
        self.streams.iter().map(|s| s.sent_fast).sum()
    }

    /// Asserts that at least `bytes` of payload take the fast path when gates stay open. Uses this run if its gates were open, else one more run,
    /// which must succeed and print the same. Prints a message and returns if no engine is built.
    #[track_caller]
    pub fn took_the_fast_path(&self, bytes: u64) {
        if engine().is_none() {
            eprintln!("SKIPPED the proof of the fast path: libmotet.so.0 is not built (make build)");
            return;
        }
        let name = &self.program.command;
        let forced = || {
            let run = self.program.clone().with_open_gates().run(Mode::WithMotet);
            if !run.succeeded {
                return Err(format!("with open gates, {name:?} failed: {}{}", run.printed, run.stderr));
            }
            if (&run.printed, &run.stderr) != (&self.printed, &self.stderr) {
                return Err(format!("with open gates, {name:?} prints something else: {run:?}\nthan: {self:?}"));
            }
            run.check_fast_bytes(bytes)
        };
        let checked = match self.program.is_open() {
            true => self.check_fast_bytes(bytes),
            false => cpu_steal::retry_on_steal(&format!("{name:?} with open gates"), forced),
        };
        checked.unwrap_or_else(|failed| panic!("{failed}"));
    }

    fn check_fast_bytes(&self, bytes: u64) -> Result<(), String> {
        let (fast, some) = (self.sent_fast(), &self.streams[..self.streams.len().min(8)]);
        let message =
            || format!("only {fast} bytes of {:?} over shared memory, not {bytes}: {some:?}", self.program.command);
        if fast >= bytes { Ok(()) } else { Err(message()) }
    }
}

/// A running program. Dropping it kills the process group.
#[derive(Debug)]
pub struct Running {
    program: Program,
    child: Child,
    files: Files,
    began: Instant,
}

impl Running {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The first line that it prints.
    pub fn first_line(&self) -> String {
        while self.began.elapsed() < self.program.limit {
            let text = self.files.read("out");
            if let Some((line, _)) = text.split_once('\n') {
                return line.to_owned();
            }
            thread::sleep(Duration::from_millis(2));
        }
        panic!("nothing was printed: {}", self.files.read("err"));
    }

    /// Waits until the program exits or its time limit passes.
    pub fn finish(mut self) -> Outcome {
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if self.began.elapsed() > self.program.limit => break None,
                Ok(None) => thread::sleep(Duration::from_millis(2)),
                Err(e) => panic!("cannot wait: {e}"),
            }
        };
        let mut stderr = self.files.read("err");
        match status {
            None => stderr.push_str("\nhung: killed after the limit"),
            Some(status) if !status.success() => stderr.push_str(&format!("\n{status}")),
            Some(_) => {}
        }
        Outcome {
            printed: self.files.read("out"),
            stderr,
            succeeded: status.is_some_and(|s| s.success()),
            streams: self.files.read("report").lines().map(Stream::parse).collect(),
            counts: self.files.read("counts"),
            program: self.program.clone(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The whole group: processes that the program forked must not outlive the test.
        let _ =
            Command::new("kill").args(["-KILL", "--", &format!("-{}", self.child.id())]).stderr(Stdio::null()).status();
        let _ = self.child.wait();
    }
}

impl Stream {
    fn parse(line: &str) -> Self {
        let fields: HashMap<_, _> = line.split_whitespace().filter_map(|f| f.split_once('=')).collect();
        let number = |name: &str| fields.get(name).and_then(|v| v.parse().ok()).unwrap_or(0);
        Self { sent_fast: number("sent_fast"), sent_tcp: number("sent_tcp"), reason: number("reason") }
    }
}

/// The files of one run, removed with it.
#[derive(Debug)]
struct Files(Temporary);

impl Files {
    /// For this user or another one. The other user owns only the files that its program writes.
    fn new(user: Option<u32>) -> Self {
        let Some(user) = user else { return Self(Temporary::within(&scratch(), "run-")) };
        let files = Self(Temporary::new("run").pass());
        for name in ["report", "counts"] {
            drop(files.create(name));
            std::os::unix::fs::chown(files.path(name), Some(user), Some(user)).expect("a file for the user");
        }
        files
    }

    fn copy(&self, path: &Path) -> PathBuf {
        let to = self.path(path.file_name().and_then(|name| name.to_str()).expect("a file"));
        programs::copy(path, &to);
        to
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn create(&self, name: &str) -> File {
        File::create(self.path(name)).expect("a file for the output")
    }

    fn read(&self, name: &str) -> String {
        fs::read(self.path(name)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }
}

// ---- build artifacts -------------------------------------------------------------------------------------------------

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace").to_path_buf()
}

fn sources() -> PathBuf {
    root().join("tests/programs")
}

/// The path of a script of `tests/programs`.
pub fn script(name: &str) -> PathBuf {
    sources().join(name)
}

/// The build folder that contains this test.
fn target() -> PathBuf {
    let target = std::env::current_exe().ok().and_then(|exe| Some(exe.ancestors().nth(3)?.to_path_buf()));
    target.unwrap_or_else(|| root().join("target"))
}

/// The folder of a tool that `scripts/setup` fetched because Debian has no package of it; `None` if it was not fetched.
pub fn tool(name: &str) -> Option<PathBuf> {
    Some(target().join("tools").join(name)).filter(|folder| folder.exists())
}

fn scratch() -> PathBuf {
    let folder = target().join("socket-tests");
    fs::create_dir_all(&folder).expect("a folder for the tests");
    folder
}

/// The engine: `MOTET_LIBRARY`, else the one beside this test's build, else the one in `target/release`.
pub fn engine() -> Option<&'static Path> {
    static ENGINE: OnceLock<Option<PathBuf>> = OnceLock::new();
    ENGINE
        .get_or_init(|| {
            let given = std::env::var_os("MOTET_LIBRARY").map(PathBuf::from);
            let build = std::env::current_exe().ok().and_then(|exe| Some(exe.ancestors().nth(2)?.to_path_buf()));
            let own = build.as_ref().map(|folder| folder.join("libmotet.so.0"));
            let release_beside = build.as_ref().map(|folder| folder.join("../release/libmotet.so.0"));
            let release = Some(root().join("target/release/libmotet.so.0"));
            [given, own, release_beside, release].into_iter().flatten().find(|path| path.exists())
        })
        .as_deref()
}

/// The sockets adapter, built from this checkout.
fn adapter() -> &'static Path {
    static ADAPTER: OnceLock<PathBuf> = OnceLock::new();
    ADAPTER.get_or_init(|| {
        let folder = scratch();
        let out = format!("OUT={}", folder.display());
        // One make at a time: test binaries run one after another, and their threads share this cell.
        let built = Command::new("make").arg("-s").arg("-C").arg(root().join("adapters/sockets")).arg(out).output();
        let built = built.expect("make is needed to build the sockets adapter");
        assert!(
            built.status.success(),
            "the sockets adapter does not build: {}",
            String::from_utf8_lossy(&built.stderr)
        );
        folder.join("libmotet_sockets.so")
    })
}

/// The path of a compiled program of `tests/programs`; each is compiled once per test process.
pub fn compiled(name: &str) -> PathBuf {
    static COMPILED: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);
    let mut done = COMPILED.lock().unwrap_or_else(|e| e.into_inner());
    let done = done.get_or_insert_default();
    if let Some(path) = done.get(name) {
        return path.clone();
    }
    let folder = scratch().join("programs");
    fs::create_dir_all(&folder).expect("a folder for the programs");
    let (path, fresh) = (folder.join(name), folder.join(format!("{name}.{}", std::process::id())));
    compile(name, &fresh, &[]);
    fs::rename(&fresh, &path).expect("the compiled program in its place");
    done.insert(name.to_owned(), path.clone());
    path
}

fn compile(name: &str, path: &Path, options: &[&str]) {
    let flags = ["-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread", "-D_FORTIFY_SOURCE=2", "-o"];
    let source = sources().join(format!("{name}.c"));
    let compiled = Command::new("cc")
        .args(flags)
        .arg(path)
        .arg(source)
        .arg("-I")
        .arg(root().join("include"))
        .args(options)
        .output();
    let compiled = compiled.expect("a C compiler (cc) is needed for the test programs");
    assert!(compiled.status.success(), "{name}.c does not compile: {}", String::from_utf8_lossy(&compiled.stderr));
}

/// Programs and shared libraries of `tests/programs`, built with their own options in a test's own folder.
#[derive(Debug)]
pub struct Built;

impl Built {
    /// Builds the program `name.c`. The options follow the source.
    pub fn program(name: &str, folder: &Path, options: &[&str]) -> PathBuf {
        let path = folder.join(name);
        compile(name, &path, options);
        path
    }

    /// Builds the library `name.c` as `libname.so`.
    pub fn library(name: &str, folder: &Path, options: &[&str]) -> PathBuf {
        let path = folder.join(format!("lib{name}.so"));
        let all: Vec<&str> = ["-shared", "-fPIC", "-fvisibility=hidden"].iter().chain(options).copied().collect();
        compile(name, &path, &all);
        path
    }
}

/// A folder for a test's files. It may contain files of earlier runs.
pub fn folder(name: &str) -> PathBuf {
    let folder = scratch().join(name);
    fs::create_dir_all(&folder).expect("a folder for the test");
    folder
}
