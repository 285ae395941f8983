//! Black-box tests of the sockets voice.
//!
//! What it is: a harness that compiles the socket programs of `tests/programs` with the system's C compiler, runs each one
//! plainly and then with `libmotet_sockets.so` preloaded, and compares what they print. The equipped run may be asked to
//! prove that payload took the fast path, from the counters that the voice reports at exit.
//!
//! What it is not: a benchmark. Nothing here measures time; a run that takes longer than [`LIMIT`] has hung.
#![forbid(unsafe_code)]

pub mod machine;
pub mod mpi;
pub mod native;
pub mod omniorb;
pub mod programs;
pub mod slurm;
mod turns;

use machine::{MUCH_LATER, Watch};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

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

/// The C program runs plainly and equipped: both must succeed and print the same. Returns the equipped run.
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
    /// Since its start.
    watch: Watch,
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
    /// As it is.
    Plain,
    /// With the voice preloaded.
    Equipped,
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
        let watch = Watch::start();
        let files = Files::new(self.user.is_some());
        let here = |path: &Path| if self.user.is_some() { files.copy(path) } else { path.to_path_buf() };
        let mut command = Command::new(here(Path::new(&self.command[0])));
        if let Some(user) = self.user {
            command.uid(user).gid(user).current_dir("/");
        }
        command.args(&self.command[1..]).process_group(0).stdin(Stdio::null());
        command.stdout(files.create("out")).stderr(files.create("err"));
        for name in ["LD_PRELOAD", "MOTET_DISABLE", "MOTET_LIBRARY", "MOTET_SHIM_REPORT"] {
            command.env_remove(name);
        }
        if mode == Mode::Equipped {
            command.env("LD_PRELOAD", here(voice())).env("MOTET_SHIM_REPORT", files.path("report"));
            if let Some(engine) = engine() {
                command.env("MOTET_LIBRARY", here(engine));
            }
        }
        command.envs(self.environment.iter().map(|(n, v)| (n, v)));
        if self.counted {
            command.env("MOTET_STATS", files.path("counts"));
        }
        let child = command.spawn().unwrap_or_else(|e| panic!("cannot start {:?}: {e}", self.command));
        Running { program: self.clone(), child, files, began: Instant::now(), watch }
    }

    /// Runs it to its end.
    pub fn run(&self, mode: Mode) -> Outcome {
        self.start(mode).finish()
    }

    /// Runs it plainly and equipped: both must succeed and print the same. Returns the equipped run. Where they do not while this machine
    /// was robbed, both are run again, later, with three times the limit.
    #[track_caller]
    pub fn same_both_ways(&self) -> Outcome {
        let (name, mut limit) = (&self.command, self.limit);
        let same = machine::tried_again(&format!("{name:?}"), || {
            let program = self.clone().within(limit);
            limit = self.limit * 3;
            let (plain, equipped) = (program.run(Mode::Plain), program.run(Mode::Equipped));
            for (how, run) in [("plainly", &plain), ("equipped", &equipped)] {
                if !run.succeeded {
                    return Err(format!("{how}, {name:?} failed: {}{}", run.printed, run.complaints));
                }
            }
            let differ = |what: &str, one: &str, other: &str| {
                let told = format!("{name:?} {what} when equipped:\n plainly: {one:?}\nequipped: {other:?}");
                if one == other { Ok(()) } else { Err(told) }
            };
            differ("prints something else", &plain.printed, &equipped.printed)?;
            differ("complains differently", &plain.complaints, &equipped.complaints)?;
            Ok(equipped)
        });
        same.unwrap_or_else(|failed| panic!("{failed}"))
    }
}

impl Outcome {
    /// Bytes sent over shared memory, all streams.
    pub fn sent_fast(&self) -> u64 {
        self.streams.iter().map(|s| s.sent_fast).sum()
    }

    /// Asserts that at least `bytes` took the fast path, in this run or in one of six more: a short one may pass while others compute
    /// and its readers sleep (docs/adr/0024); where this machine was robbed, in one of some more, later. Skips loudly where no engine has
    /// been built.
    #[track_caller]
    pub fn took_the_fast_path(&self, bytes: u64) {
        if engine().is_none() {
            eprintln!("SKIPPED the proof of the fast path: libmotet.so.0 is not built (make build)");
            return;
        }
        let again = || self.program.run(Mode::Equipped).sent_fast() >= bytes;
        let taken = self.sent_fast() >= bytes
            || machine::succeeds_at_times(self.watch, &[0, 30, 100, 300, 1000, 3000], &MUCH_LATER, again);
        let some = &self.streams[..self.streams.len().min(8)];
        assert!(taken, "only {} bytes over shared memory, and no more later: {some:?}", self.sent_fast());
    }
}

/// Asserts that so many bytes of a run took the fast path: of one of eight, where connections are short and the machine may be busy (with
/// another test, say, so the next ones wait for a while), or so idle that its CPUs take longer to wake up than readers look; or of one of
/// some more, later, where it was robbed.
#[track_caller]
pub fn takes_the_fast_path_at_times(least: u64, run: impl Fn() -> u64) {
    let mut sums = Vec::new();
    let pauses = [0, 0, 100, 300, 1000, 2000, 4000, 8000];
    let taken = machine::succeeds_at_times(Watch::start(), &pauses, &MUCH_LATER, || {
        sums.push(run());
        engine().is_none() || sums.last() >= Some(&least)
    });
    assert!(taken, "only {sums:?} bytes over shared memory");
}

/// A program that runs; killed, with all its children, when it is dropped or has hung.
#[derive(Debug)]
pub struct Running {
    program: Program,
    child: Child,
    files: Files,
    began: Instant,
    watch: Watch,
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
            watch: self.watch,
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
struct Files(PathBuf);

impl Files {
    /// `open`: to everybody, wherever the build folder is.
    fn new(open: bool) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("run-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = if open { std::env::temp_dir().join(format!("motet-{name}")) } else { scratch().join(name) };
        fs::create_dir_all(&folder).expect("a folder for the run");
        if open {
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("a folder for everybody");
        }
        Self(folder)
    }

    fn copy(&self, path: &Path) -> PathBuf {
        // Not where everybody could put something else in their place: such a library is not loaded.
        let own = self.0.join("own");
        if !own.exists() {
            fs::create_dir(&own).expect("a folder for copies");
            fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).expect("a folder that everybody can read");
        }
        let to = own.join(path.file_name().expect("a file"));
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

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
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

/// The voice, built from the sources at hand.
fn voice() -> &'static Path {
    static VOICE: OnceLock<PathBuf> = OnceLock::new();
    VOICE.get_or_init(|| {
        let folder = scratch();
        let out = format!("OUT={}", folder.display());
        // One make at a time: test binaries run one after another, their threads share this cell.
        let built = Command::new("make").arg("-s").arg("-C").arg(root().join("adapters/sockets")).arg(out).output();
        let built = built.expect("make is needed to build the sockets voice");
        assert!(built.status.success(), "the sockets voice does not build: {}", String::from_utf8_lossy(&built.stderr));
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
