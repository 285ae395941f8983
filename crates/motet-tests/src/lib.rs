//! Black-box tests of the sockets adapter.
//!
//! What it is: a harness that compiles the socket programs of `tests/programs` with the system's C compiler, runs each one
//! without Motet and then with `libmotet_sockets.so` preloaded, and compares what they print. The run under Motet may be asked to
//! prove that payload took the fast path, from the counters that the adapter reports at exit: then it is run with gates that
//! stay open (`MOTET_PATIENCE`), so the proof is no matter of who has the CPUs.
//!
//! What it is not: a benchmark. Nothing here measures time; a run that takes longer than [`LIMIT`] has hung.
#![forbid(unsafe_code)]

pub mod machine;
pub mod mpi;
pub mod native;
pub mod omniorb;
pub mod programs;
pub mod slurm;
pub mod temporary;
mod turns;

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

/// The setting of [`Program::open`], and its value: a wait that is so long has nothing to wait for.
pub(crate) const PATIENCE: (&str, &str) = ("MOTET_PATIENCE", "300ms");

/// A run that takes longer has hung.
pub const LIMIT: Duration = Duration::from_secs(40);

/// One program with its arguments.
#[derive(Debug, Clone)]
pub struct Program {
    command: Vec<OsString>,
    environment: Vec<(String, String)>,
    limit: Duration,
    user: Option<u32>,
    counted: bool,
}

/// The C program runs without and with Motet: both must succeed and print the same. Returns the run under Motet.
#[track_caller]
pub fn both(name: &str, arguments: &[&str]) -> Outcome {
    Program::c(name, arguments).same_both_ways()
}

/// What a run left behind.
#[derive(Debug)]
pub struct Outcome {
    /// Standard output.
    pub printed: String,
    /// Standard error.
    pub complaints: String,
    /// Whether it ended by itself, with status 0.
    pub succeeded: bool,
    /// One entry per stream that the engine took over.
    pub streams: Vec<Stream>,
    /// Of a program that is [`counted`](Program::counted): a line of JSON for each process of this run, as `MOTET_STATS` has them.
    pub counts: String,
    /// What ran.
    program: Program,
}

/// The counters of one stream at its end.
#[derive(Debug, Clone, Default)]
pub struct Stream {
    /// Bytes sent over shared memory.
    pub sent_fast: u64,
    /// Bytes sent over TCP.
    pub sent_tcp: u64,
    /// The code of `motet why`.
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
    /// A C program of `tests/programs`, with arguments.
    pub fn c(name: &str, arguments: &[&str]) -> Self {
        Self::new(compiled(name), arguments)
    }

    /// A Python script of `tests/programs`; `None`, loudly, where there is no Python.
    pub fn python(name: &str) -> Option<Self> {
        if Command::new("python3").arg("--version").output().is_err() {
            eprintln!("SKIPPED {name}: python3 is not installed");
            return None;
        }
        Some(Self::of(vec!["python3".into(), script(name).into()]))
    }

    /// A program that [`Built::program`] made, with arguments.
    pub fn built(path: &Path, arguments: &[&str]) -> Self {
        Self::new(path.to_path_buf(), arguments)
    }

    fn new(path: PathBuf, arguments: &[&str]) -> Self {
        let mut command = vec![path.into_os_string()];
        command.extend(arguments.iter().map(OsString::from));
        Self::of(command)
    }

    fn of(command: Vec<OsString>) -> Self {
        Self { command, environment: Vec::new(), limit: LIMIT, user: None, counted: false }
    }

    /// With another limit, for a run that has very much to do.
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// With an environment variable.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// With gates that stay open: payload of the run under Motet takes the fast path whatever else this machine does.
    pub fn open(self) -> Self {
        if self.is_open() { self } else { self.with(PATIENCE.0, PATIENCE.1) }
    }

    fn is_open(&self) -> bool {
        self.environment.iter().any(|(name, _)| name == PATIENCE.0)
    }

    /// Started by another command, which these words begin.
    pub fn by(mut self, words: &[&str]) -> Self {
        self.command.splice(0..0, words.iter().map(OsString::from));
        self
    }

    /// As another user, which only root can do: with copies of program and libraries that everybody may read.
    pub fn for_user(mut self, user: u32) -> Self {
        self.user = Some(user);
        self
    }

    /// With lines of counters ([`Outcome::counts`]), in a file that each run has of its own.
    pub fn counted(mut self) -> Self {
        self.counted = true;
        self
    }

    /// Starts it in a process group of its own; see [`Running`].
    pub fn start(&self, mode: Mode) -> Running {
        let files = Files::new(self.user);
        let here = |path: &Path| if self.user.is_some() { files.copy(path) } else { path.to_path_buf() };
        let mut command = Command::new(here(Path::new(&self.command[0])));
        if let Some(user) = self.user {
            command.uid(user).gid(user).current_dir("/");
        }
        command.args(&self.command[1..]).process_group(0).stdin(Stdio::null());
        command.stdout(files.create("out")).stderr(files.create("err"));
        for name in ["LD_PRELOAD", "MOTET_DISABLE", "MOTET_LIBRARY", "MOTET_SHIM_REPORT", PATIENCE.0] {
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

    /// Runs it to its end.
    pub fn run(&self, mode: Mode) -> Outcome {
        self.start(mode).finish()
    }

    /// Runs it without and with Motet: both must succeed and print the same. Returns the run under Motet. Where they do not while the host took the
    /// CPUs ([`machine`]), both are run again, with three times the limit.
    #[track_caller]
    pub fn same_both_ways(&self) -> Outcome {
        let (name, mut limit) = (&self.command, self.limit);
        let same = machine::tried_again(&format!("{name:?}"), || {
            let program = self.clone().within(limit);
            limit = self.limit * 3;
            let (plain, with_motet) = (program.run(Mode::WithoutMotet), program.run(Mode::WithMotet));
            for (how, run) in [("without Motet", &plain), ("with Motet", &with_motet)] {
                if !run.succeeded {
                    return Err(format!("{how}, {name:?} failed: {}{}", run.printed, run.complaints));
                }
            }
            let differ = |what: &str, one: &str, other: &str| {
                let told = format!("{name:?} {what} with Motet:\nwithout: {one:?}\n   with: {other:?}");
                if one == other { Ok(()) } else { Err(told) }
            };
            differ("prints something else", &plain.printed, &with_motet.printed)?;
            differ("complains differently", &plain.complaints, &with_motet.complaints)?;
            Ok(with_motet)
        });
        same.unwrap_or_else(|failed| panic!("{failed}"))
    }
}

impl Outcome {
    /// Bytes sent over shared memory, all streams.
    pub fn sent_fast(&self) -> u64 {
        self.streams.iter().map(|s| s.sent_fast).sum()
    }

    /// Asserts that at least `bytes` of the program take the fast path while gates stay open: in this run, if it was such a one, or in one more that
    /// must succeed and print the same as this. Skips loudly where no engine has been built.
    #[track_caller]
    pub fn took_the_fast_path(&self, bytes: u64) {
        if engine().is_none() {
            eprintln!("SKIPPED the proof of the fast path: libmotet.so.0 is not built (make build)");
            return;
        }
        let name = &self.program.command;
        let forced = || {
            let run = self.program.clone().open().run(Mode::WithMotet);
            if !run.succeeded {
                return Err(format!("with open gates, {name:?} failed: {}{}", run.printed, run.complaints));
            }
            if (&run.printed, &run.complaints) != (&self.printed, &self.complaints) {
                return Err(format!("with open gates, {name:?} prints something else: {run:?}\nthan: {self:?}"));
            }
            run.carried(bytes)
        };
        let carried = match self.program.is_open() {
            true => self.carried(bytes),
            false => machine::tried_again(&format!("{name:?} with open gates"), forced),
        };
        carried.unwrap_or_else(|failed| panic!("{failed}"));
    }

    fn carried(&self, bytes: u64) -> Result<(), String> {
        let (fast, some) = (self.sent_fast(), &self.streams[..self.streams.len().min(8)]);
        let told =
            || format!("only {fast} bytes of {:?} over shared memory, not {bytes}: {some:?}", self.program.command);
        if fast >= bytes { Ok(()) } else { Err(told()) }
    }
}

/// A program that runs; killed, with all its children, when it is dropped or has hung.
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

    /// Waits for its end.
    pub fn finish(mut self) -> Outcome {
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if self.began.elapsed() > self.program.limit => break None,
                Ok(None) => thread::sleep(Duration::from_millis(2)),
                Err(e) => panic!("cannot wait: {e}"),
            }
        };
        let mut complaints = self.files.read("err");
        match status {
            None => complaints.push_str("\nhung: killed after the limit"),
            Some(status) if !status.success() => complaints.push_str(&format!("\n{status}")),
            Some(_) => {}
        }
        Outcome {
            printed: self.files.read("out"),
            complaints,
            succeeded: status.is_some_and(|s| s.success()),
            streams: self.files.read("report").lines().map(Stream::parse).collect(),
            counts: self.files.read("counts"),
            program: self.program.clone(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The whole group: what the program forked must not outlive the test.
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
    /// For this user, or for another, wherever the build folder is: that one owns the files that it writes, and nothing else.
    fn new(user: Option<u32>) -> Self {
        let Some(user) = user else { return Self(Temporary::within(&scratch(), "run-")) };
        let files = Self(Temporary::new("run").pass());
        for name in ["report", "counts"] {
            drop(files.create(name));
            std::os::unix::fs::chown(files.path(name), Some(user), Some(user)).expect("a file of the user's");
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

// ---- what must be built ----------------------------------------------------------------------------------------------

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace").to_path_buf()
}

fn sources() -> PathBuf {
    root().join("tests/programs")
}

/// A script of `tests/programs`.
pub fn script(name: &str) -> PathBuf {
    sources().join(name)
}

/// The build folder, of which this test is a part.
fn target() -> PathBuf {
    let target = std::env::current_exe().ok().and_then(|exe| Some(exe.ancestors().nth(3)?.to_path_buf()));
    target.unwrap_or_else(|| root().join("target"))
}

/// The folder of what `scripts/setup` fetched under this name because Debian has no package of it, if it did.
pub fn tool(name: &str) -> Option<PathBuf> {
    Some(target().join("tools").join(name)).filter(|folder| folder.exists())
}

fn scratch() -> PathBuf {
    let folder = target().join("socket-tests");
    fs::create_dir_all(&folder).expect("a folder for the tests");
    folder
}

/// The engine: MOTET_LIBRARY, else beside this test's own build, else `target/release`.
pub fn engine() -> Option<&'static Path> {
    static ENGINE: OnceLock<Option<PathBuf>> = OnceLock::new();
    ENGINE
        .get_or_init(|| {
            let given = std::env::var_os("MOTET_LIBRARY").map(PathBuf::from);
            let build = std::env::current_exe().ok().and_then(|exe| Some(exe.ancestors().nth(2)?.to_path_buf()));
            let own = build.as_ref().map(|folder| folder.join("libmotet.so.0"));
            let beside = build.as_ref().map(|folder| folder.join("../release/libmotet.so.0"));
            let release = Some(root().join("target/release/libmotet.so.0"));
            [given, own, beside, release].into_iter().flatten().find(|path| path.exists())
        })
        .as_deref()
}

/// The adapter, built from the sources at hand.
fn adapter() -> &'static Path {
    static VOICE: OnceLock<PathBuf> = OnceLock::new();
    VOICE.get_or_init(|| {
        let folder = scratch();
        let out = format!("OUT={}", folder.display());
        // One make at a time: test binaries run one after another, their threads share this cell.
        let built = Command::new("make").arg("-s").arg("-C").arg(root().join("adapters/sockets")).arg(out).output();
        let built = built.expect("make is needed to build the sockets adapter");
        assert!(built.status.success(), "the sockets adapter does not build: {}", String::from_utf8_lossy(&built.stderr));
        folder.join("libmotet_sockets.so")
    })
}

/// A compiled program; compiled once per test process.
fn compiled(name: &str) -> PathBuf {
    static DONE: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);
    let mut done = DONE.lock().unwrap_or_else(|e| e.into_inner());
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

/// Programs and shared libraries of `tests/programs` with options of their own, built anew in a folder of a test's own.
#[derive(Debug)]
pub struct Built;

impl Built {
    /// The program `name.c`; options come behind the source.
    pub fn program(name: &str, folder: &Path, options: &[&str]) -> PathBuf {
        let path = folder.join(name);
        compile(name, &path, options);
        path
    }

    /// The library `name.c`, as `libname.so`.
    pub fn library(name: &str, folder: &Path, options: &[&str]) -> PathBuf {
        let path = folder.join(format!("lib{name}.so"));
        let all: Vec<&str> = ["-shared", "-fPIC", "-fvisibility=hidden"].iter().chain(options).copied().collect();
        compile(name, &path, &all);
        path
    }
}

/// A folder for a test's own files; empty ones are not promised.
pub fn folder(name: &str) -> PathBuf {
    let folder = scratch().join(name);
    fs::create_dir_all(&folder).expect("a folder for the test");
    folder
}
