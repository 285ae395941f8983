//! Real programs, run without Motet and under `motet run`, as an unprivileged user, in a folder of their own.
//!
//! A test passes [`both_ways`] a closure that starts servers, runs clients and returns its observations as text that does not depend on timing. The
//! closure is called for each mode and must return the same text. The counters of the run under Motet (`MOTET_STATS`) are returned. A missing program
//! skips the test with a message.

use crate::cpu_steal::retry_on_steal;
pub use crate::cpu_turns::Exclusive;
use crate::temporary::Temporary;
use crate::{Mode, OPEN_GATES};
pub use motet_programs::{builds, find, is_root, servers, services, shares};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of a client, of a server's start and of its end.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// The folders of one run: one of the test's user, and in it one of the programs' user.
#[derive(Debug)]
pub struct Sandbox {
    mode: Mode,
    gates: Gates,
    /// The folder that the programs' user may read but not change: the build, copies, logs.
    readonly: Temporary,
    folder: PathBuf,
}

/// A server or a client in the background. Dropping it kills its process group.
#[derive(Debug)]
pub struct Started {
    child: Child,
    name: String,
    log: PathBuf,
}

/// Counters of the processes of a run under Motet, summed over all processes.
#[derive(Debug, Clone, Default)]
pub struct Counters {
    /// Streams that were upgraded to shared memory.
    pub upgraded: u64,
    /// Bytes that upgraded streams sent over shared memory.
    pub sent_fast: u64,
    /// Bytes that upgraded streams sent over TCP.
    pub sent_tcp: u64,
    /// The counters of each process, a line each, for messages.
    pub lines: String,
}

/// Runs a case with [`both_ways_with`]; the run under Motet is exclusive.
#[track_caller]
pub fn both_ways(test: &str, needs: &[&str], case: impl Fn(&Sandbox) -> String) -> Option<Counters> {
    both_ways_with(test, needs, Exclusive::WithMotet, case)
}

/// Runs a case without and with Motet; both runs must return the same text. `None`, with a message, if a program or the build is missing.
///
/// If all readers of the run under Motet slept, as they do on busy CPUs (docs/adr/0024), it is followed by a run with open gates, which must return
/// the same text; the counters are then those of this run. A failure while the host took CPU time ([`crate::cpu_steal`]) repeats all of it.
#[track_caller]
pub fn both_ways_with(
    test: &str,
    needs: &[&str],
    exclusive: Exclusive,
    case: impl Fn(&Sandbox) -> String,
) -> Option<Counters> {
    run_case(test, needs, exclusive, Gates::Auto, case)
}

/// Runs a case without and with Motet, with gates that stay open from the start, so that payload takes the fast path under any load.
#[track_caller]
pub fn both_ways_open(
    test: &str,
    needs: &[&str],
    exclusive: Exclusive,
    case: impl Fn(&Sandbox) -> String,
) -> Option<Counters> {
    run_case(test, needs, exclusive, Gates::Open, case)
}

/// The setting `patience` of a run under Motet: the default, or longer than any wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gates {
    Auto,
    Open,
}

#[track_caller]
fn run_case(
    test: &str,
    needs: &[&str],
    exclusive: Exclusive,
    gates: Gates,
    case: impl Fn(&Sandbox) -> String,
) -> Option<Counters> {
    for program in needs {
        if find(program).is_none() {
            return skip(
                test,
                &format!("{program} is not installed (tests/programs/packages.txt, tests/packages.txt)"),
            );
        }
    }
    let Some(libraries) = libraries() else { return skip(test, "motet is not built (make build)") };
    let without_motet =
        || exclusive.run_in_turn(Mode::WithoutMotet, || case(&Sandbox::new(Mode::WithoutMotet, gates, libraries)));
    let run_with_motet = |without_motet: &str, gates: Gates| {
        let sandbox = Sandbox::new(Mode::WithMotet, gates, libraries);
        assert_eq!(without_motet, case(&sandbox), "{test}: something else under Motet, gates {gates:?}");
        let counters = sandbox.counters();
        eprintln!(
            "{test}: gates {gates:?}, {} streams upgraded, {} bytes fast\n{}",
            counters.upgraded, counters.sent_fast, counters.lines
        );
        counters
    };
    let with_motet = |without_motet: &str, gates: Gates| {
        exclusive.run_in_turn(Mode::WithMotet, || run_with_motet(without_motet, gates))
    };
    let cases = || {
        let without_motet = without_motet();
        let counters = with_motet(&without_motet, gates);
        let slept = counters.upgraded > 0 && counters.sent_fast == 0 && gates == Gates::Auto;
        if slept { with_motet(&without_motet, Gates::Open) } else { counters }
    };
    // Nothing half done is visible to another call: the sandbox and its processes are dropped with the panic.
    let played = retry_on_steal(test, || catch_unwind(AssertUnwindSafe(&cases)));
    Some(played.unwrap_or_else(|panic| resume_unwind(panic)))
}

/// Prints and logs that a test is skipped.
pub fn skip<T>(test: &str, reason: &str) -> Option<T> {
    eprintln!("SKIPPED {test}: {reason}");
    append("MOTET_SKIP_LOG", &format!("SKIP {test}: {reason}"));
    None
}

/// Appends a line to the file that this environment variable names, if it names one.
pub(crate) fn append(variable: &str, line: &str) {
    if let Some(log) = std::env::var_os(variable)
        && let Ok(mut file) = fs::OpenOptions::new().append(true).create(true).open(log)
    {
        // One write: other tests of this process append at the same time.
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}

impl Counters {
    /// Asserts that `streams` streams were upgraded and that payload went over shared memory. How much depends on the load of the machine.
    #[track_caller]
    pub fn went_over_shared_memory(&self, streams: u64) {
        assert!(self.upgraded >= streams, "only {} streams were upgraded:\n{}", self.upgraded, self.lines);
        assert!(self.sent_fast > 0, "nothing went over shared memory:\n{}", self.lines);
    }
}

impl Sandbox {
    fn new(mode: Mode, gates: Gates, libraries: &Path) -> Self {
        let readonly = Temporary::new("programs").pass();
        let [folder, own, readable] = ["sandbox", "motet", "readable"].map(|name| readonly.join(name));
        for folder in [&folder, &own, &readable] {
            fs::create_dir(folder).expect("a folder for the programs");
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("its mode");
        }
        give_away(&folder);
        if is_root() && mode == Mode::WithMotet {
            // Only root may be able to read the build.
            let adapters =
                ["libmotet_sockets.so", "libmotet_omniorb.so", "libmotet_omniorb42.so", "libmotet_omniorb43.so"];
            for file in ["motet", "libmotet.so.0"].iter().chain(&adapters).filter(|file| libraries.join(file).exists())
            {
                copy(&libraries.join(file), &own.join(file));
            }
        }
        Self { mode, gates, readonly, folder }
    }

    /// An unused name in the folder that the programs' user cannot change. Files are completed there and then moved to the programs' folder, where
    /// that user could put a link in their place.
    fn fresh(&self, what: &str) -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        self.readonly.join(&format!("{what}-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// Returns whether this is the run under Motet.
    pub fn has_motet(&self) -> bool {
        self.mode == Mode::WithMotet
    }

    /// The programs' folder. It is empty at first and removed at the end.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes a file in the programs' folder. Returns its path.
    pub fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        let (fresh, path) = (self.fresh("file"), self.folder.join(name));
        fs::write(&fresh, contents).expect("a file for the run");
        give_away(&fresh);
        fs::rename(&fresh, &path).expect("the file in its place");
        path.to_str().expect("a path in UTF-8").to_owned()
    }

    /// A file or folder of the build that the programs' user can read: the original, or a copy for this run.
    pub fn readable(&self, from: &Path) -> PathBuf {
        let open = |folder: &Path| folder.metadata().is_ok_and(|data| data.permissions().mode() & 0o5 == 0o5);
        if !is_root() || from.ancestors().all(open) {
            return from.to_path_buf();
        }
        let to = self.readonly.join("readable").join(from.file_name().expect("a name"));
        if to.exists() {
            return to;
        }
        let done = Command::new("cp").args(["-a", "--reflink=auto"]).arg(from).arg(&to).status().expect("cp");
        assert!(done.success(), "{} is not copied", from.display());
        to
    }

    /// The path of a name in the programs' folder.
    pub fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().expect("a path in UTF-8").to_owned()
    }

    fn command(&self, words: &[&str], user: Vec<String>) -> Command {
        let mut all: Vec<OsString> = Vec::new();
        let own = self.readonly.join("motet");
        let folder = if is_root() { own.as_path() } else { libraries().expect("checked before") };
        if self.mode == Mode::WithMotet {
            all.extend([folder.join("motet").into_os_string(), "run".into(), "--".into()]);
        }
        if !user.is_empty() {
            all.push("setpriv".into());
            all.extend(user.into_iter().map(OsString::from));
            all.push("--".into());
        }
        all.push(find(words[0]).map_or_else(|| words[0].into(), PathBuf::into_os_string));
        all.extend(words[1..].iter().map(OsString::from));
        let mut command = Command::new(&all[0]);
        command.args(&all[1..]).process_group(0).stdin(Stdio::null()).current_dir(&self.folder);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("MOTET_") || name == "LD_PRELOAD" {
                command.env_remove(name);
            }
        }
        command.env("HOME", &self.folder).env("LC_ALL", "C.UTF-8").env("MOTET_CONFIG", "/dev/null");
        command.env("MOTET_LIBDIR", folder).env("MOTET_STATS", self.folder.join("stats.%p"));
        if self.gates == Gates::Open {
            command.env(OPEN_GATES.0, OPEN_GATES.1);
        }
        command
    }

    /// Starts a server, or a client in the background.
    #[track_caller]
    pub fn start(&self, words: &[&str]) -> Started {
        self.start_with(words, &[])
    }

    /// Starts a program in the background with environment variables.
    #[track_caller]
    pub fn start_with(&self, words: &[&str], environment: &[(&str, &str)]) -> Started {
        self.started(words, self.command(words, motet_programs::unprivileged()), environment)
    }

    /// Starts a program as the user who runs the tests: a program that changes its user must be root.
    #[track_caller]
    pub fn start_as_root(&self, words: &[&str]) -> Started {
        self.started(words, self.command(words, Vec::new()), &[])
    }

    #[track_caller]
    fn started(&self, words: &[&str], mut command: Command, environment: &[(&str, &str)]) -> Started {
        let log = self.fresh("log");
        let file = File::create(&log).expect("a file for the output");
        command.envs(environment.iter().copied());
        command.stdout(file.try_clone().expect("the same file")).stderr(file);
        let child = command.spawn().unwrap_or_else(|e| panic!("cannot start {words:?}: {e}"));
        Started { child, name: words.join(" "), log }
    }

    /// Starts a command of `motet-programs` with environment variables.
    #[track_caller]
    pub fn follow(&self, recipe: &[String], environment: &[(&str, &str)]) -> Started {
        self.start_with(&recipe.iter().map(String::as_str).collect::<Vec<_>>(), environment)
    }

    /// Runs a client, which must succeed. Returns its output.
    #[track_caller]
    pub fn run(&self, words: &[&str]) -> String {
        self.start(words).finish()
    }

    fn counters(&self) -> Counters {
        let mut all = Counters::default();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if !entry.file_name().to_string_lossy().starts_with("stats.") {
                continue;
            }
            for line in fs::read_to_string(entry.path()).unwrap_or_default().lines() {
                let number = |name: &str| {
                    let rest = line.split_once(&format!("\"{name}\":")).map_or("", |(_, rest)| rest);
                    rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0)
                };
                all.upgraded += number("upgraded");
                all.sent_fast += number("sent_fast");
                all.sent_tcp += number("sent_tcp");
                all.lines += &format!("  {line}\n");
            }
        }
        all
    }
}

impl Started {
    /// The process id. It is the same for the commands in front of the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The output so far, both streams.
    pub fn printed(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Waits until a process listens on the port.
    #[track_caller]
    pub fn listens(mut self, port: u16) -> Self {
        self.until(&format!("listens on port {port}"), |_| TcpStream::connect(("127.0.0.1", port)).is_ok());
        self
    }

    /// Waits until the output contains a text.
    #[track_caller]
    pub fn says(mut self, text: &str) -> Self {
        self.until(&format!("says '{text}'"), |printed| printed.contains(text));
        self
    }

    #[track_caller]
    fn until(&mut self, what: &str, mut reached: impl FnMut(&str) -> bool) {
        let began = Instant::now();
        while !reached(&self.printed()) {
            let ended = self.child.try_wait().expect("its status");
            assert!(ended.is_none(), "{} ended: before it {what}: {ended:?}\n{}", self.name, self.printed());
            assert!(began.elapsed() < TIMEOUT, "{}: never {what}:\n{}", self.name, self.printed());
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[track_caller]
    fn wait(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("its status") {
                return status;
            }
            assert!(began.elapsed() < TIMEOUT, "{} hung:\n{}", self.name, self.printed());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the process exits, which must succeed. Returns its output.
    #[track_caller]
    pub fn finish(mut self) -> String {
        let status = self.wait();
        assert!(status.success(), "{} failed ({status}):\n{}", self.name, self.printed());
        self.printed()
    }

    /// Waits until the process exits, with any status. Returns its output.
    #[track_caller]
    pub fn ended(mut self) -> String {
        self.wait();
        self.printed()
    }

    /// Sends a signal and waits until the process exits. It must exit with status 0, with status 128 plus the signal, or by that signal.
    #[track_caller]
    pub fn stop(mut self, signal: i32) -> String {
        let _ = Command::new("kill").arg(format!("-{signal}")).arg(self.child.id().to_string()).status();
        let status = self.wait();
        let expected = status.success() || status.signal() == Some(signal) || status.code() == Some(128 + signal);
        assert!(expected, "{} ended with {status}:\n{}", self.name, self.printed());
        self.printed()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // The whole group: forked processes must not outlive the test.
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.child.wait();
    }
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    motet_programs::free_port().expect("a free port")
}

/// Copies a script or source of `tests/programs` to the programs' folder.
pub fn source(sandbox: &Sandbox, name: &str) -> String {
    let contents = fs::read(crate::sources().join(name)).expect("a source of tests/programs");
    sandbox.file(name.rsplit('/').next().unwrap_or(name), contents)
}

/// Copies a compiled program to the programs' folder.
pub fn placed(sandbox: &Sandbox, program: &Path) -> String {
    let path = sandbox.path(program.file_name().and_then(|n| n.to_str()).expect("a name"));
    let fresh = sandbox.fresh("program");
    copy(program, &fresh);
    fs::rename(&fresh, &path).expect("the program in its place");
    path
}

fn give_away(path: &Path) {
    motet_programs::give_away(path).expect("root may give a file away");
}

/// Copies a program by cp. A descriptor of this process would be inherited by a child that another test forks, and the program would be "text file
/// busy". A running program is replaced, not overwritten.
pub fn copy(from: &Path, to: &Path) {
    let fresh = to.with_extension("new");
    let done = Command::new("cp").arg("-L").arg(from).arg(&fresh).status().expect("cp");
    assert!(done.success(), "{} is not copied", from.display());
    fs::rename(&fresh, to).expect("the copy moved into place");
}

/// The folder of a complete build: command, engine and sockets adapter.
fn libraries() -> Option<&'static Path> {
    let folder = crate::engine()?.parent()?;
    let all = ["motet", "libmotet.so.0", "libmotet_sockets.so"];
    all.iter().all(|file| folder.join(file).exists()).then_some(folder)
}
