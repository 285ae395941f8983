//! Real programs, run without and under `motet run`, as one unprivileged user, in a folder of their own.
//!
//! A test gives [`both_ways`] a closure that starts servers, runs clients and returns what it observed, in words that do not
//! depend on timing; it is called once for each mode and must return the same. Of the run under Motet the counters remain,
//! as `MOTET_STATS` collected them. A program that is missing skips the test, loudly.

use crate::machine::tried_again;
use crate::temporary::Temporary;
pub use crate::turns::Alone;
use crate::{Mode, PATIENCE};
pub use motet_programs::{builds, find, is_root, servers, services};
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

/// A client that takes longer, or a server that is not ready or gone by then, has hung.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Where one run of a test takes place: in a folder of this user's, one of the programs' user.
#[derive(Debug)]
pub struct Stage {
    mode: Mode,
    gates: Gates,
    /// What the programs' user may read and run, and not change: the build, copies, logs.
    house: Temporary,
    folder: PathBuf,
}

/// A server or a client in the background: its process group is killed when it is dropped.
#[derive(Debug)]
pub struct Started {
    child: Child,
    name: String,
    log: PathBuf,
}

/// What the processes of a run under Motet counted: the sum of their lines.
#[derive(Debug, Clone, Default)]
pub struct Counters {
    /// Streams whose wire came up.
    pub upgraded: u64,
    /// Bytes sent over shared memory, and over TCP by streams whose wire came up.
    pub sent_fast: u64,
    /// See above.
    pub sent_tcp: u64,
    /// The lines themselves, for messages.
    pub lines: String,
}

/// [`both_ways_with`], the run under Motet alone.
#[track_caller]
pub fn both_ways(test: &str, needs: &[&str], scene: impl Fn(&Stage) -> String) -> Option<Counters> {
    both_ways_with(test, needs, Alone::WithMotet, scene)
}

/// Runs the scene without Motet, then under it; both must tell the same. `None`, loudly, when a program or the build is missing. A run under Motet whose
/// readers all slept, as they do while others compute (docs/adr/0024), is followed by one with gates that stay open, which must tell the same, too:
/// its counters are returned. Where any of this fails while the host took the CPUs ([`crate::machine`]), all of it is run again.
#[track_caller]
pub fn both_ways_with(test: &str, needs: &[&str], alone: Alone, scene: impl Fn(&Stage) -> String) -> Option<Counters> {
    play(test, needs, alone, Gates::Auto, scene)
}

/// The same with gates that stay open from the first: what takes the fast path does so whatever else this machine does.
#[track_caller]
pub fn both_ways_open(test: &str, needs: &[&str], alone: Alone, scene: impl Fn(&Stage) -> String) -> Option<Counters> {
    play(test, needs, alone, Gates::Open, scene)
}

/// The setting `patience` of a run under Motet: none, or enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gates {
    Auto,
    Open,
}

#[track_caller]
fn play(test: &str, needs: &[&str], alone: Alone, gates: Gates, scene: impl Fn(&Stage) -> String) -> Option<Counters> {
    for program in needs {
        if find(program).is_none() {
            return skip(
                test,
                &format!("{program} is not installed (tests/programs/packages.txt, tests/packages.txt)"),
            );
        }
    }
    let Some(libraries) = libraries() else { return skip(test, "motet is not built (make build)") };
    let without_motet = || alone.turn(Mode::WithoutMotet, || scene(&Stage::new(Mode::WithoutMotet, gates, libraries)));
    let in_its_turn = |without_motet: &str, gates: Gates| {
        let stage = Stage::new(Mode::WithMotet, gates, libraries);
        assert_eq!(without_motet, scene(&stage), "{test}: something else under Motet, gates {gates:?}");
        let counters = stage.counters();
        eprintln!(
            "{test}: gates {gates:?}, {} streams upgraded, {} bytes fast\n{}",
            counters.upgraded, counters.sent_fast, counters.lines
        );
        counters
    };
    let with_motet = |without_motet: &str, gates: Gates| alone.turn(Mode::WithMotet, || in_its_turn(without_motet, gates));
    let scenes = || {
        let without_motet = without_motet();
        let counters = with_motet(&without_motet, gates);
        let slept = counters.upgraded > 0 && counters.sent_fast == 0 && gates == Gates::Auto;
        if slept { with_motet(&without_motet, Gates::Open) } else { counters }
    };
    // Nothing is left half done that another call would see: the stage, with what runs on it, goes with the panic.
    let played = tried_again(test, || catch_unwind(AssertUnwindSafe(&scenes)));
    Some(played.unwrap_or_else(|panic| resume_unwind(panic)))
}

/// Says that a test did not run.
pub fn skip<T>(test: &str, reason: &str) -> Option<T> {
    eprintln!("SKIPPED {test}: {reason}");
    append("MOTET_SKIP_LOG", &format!("SKIP {test}: {reason}"));
    None
}

/// Appends a line to the file that this variable names, if it names one.
pub(crate) fn append(variable: &str, line: &str) {
    if let Some(log) = std::env::var_os(variable)
        && let Ok(mut file) = fs::OpenOptions::new().append(true).create(true).open(log)
    {
        // One write: other tests of this process append at the same time.
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}

impl Counters {
    /// Asserts that `streams` found their peer and that payload took the wire. How much of it did depends on how busy the machine is.
    #[track_caller]
    pub fn went_over_shared_memory(&self, streams: u64) {
        assert!(self.upgraded >= streams, "only {} streams found their peer:\n{}", self.upgraded, self.lines);
        assert!(self.sent_fast > 0, "nothing went over shared memory:\n{}", self.lines);
    }
}

impl Stage {
    fn new(mode: Mode, gates: Gates, libraries: &Path) -> Self {
        let house = Temporary::new("programs").pass();
        let [folder, own, lent] = ["stage", "motet", "lent"].map(|name| house.join(name));
        for folder in [&folder, &own, &lent] {
            fs::create_dir(folder).expect("a folder for the programs");
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("its mode");
        }
        give_away(&folder);
        if is_root() && mode == Mode::WithMotet {
            // The build may lie where only root can read it.
            let adapters =
                ["libmotet_sockets.so", "libmotet_omniorb.so", "libmotet_omniorb42.so", "libmotet_omniorb43.so"];
            for file in ["motet", "libmotet.so.0"].iter().chain(&adapters).filter(|file| libraries.join(file).exists()) {
                copy(&libraries.join(file), &own.join(file));
            }
        }
        Self { mode, gates, house, folder }
    }

    /// A name in the house that nothing has: for what is moved into the folder when it is whole. In the folder itself the programs' user could
    /// put a link in its place.
    fn fresh(&self, what: &str) -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        self.house.join(&format!("{what}-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// Whether this run is the one under Motet.
    pub fn has_motet(&self) -> bool {
        self.mode == Mode::WithMotet
    }

    /// The folder of the run, empty at its beginning and removed at its end.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A file in the folder, with contents.
    pub fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        let (fresh, path) = (self.fresh("file"), self.folder.join(name));
        fs::write(&fresh, contents).expect("a file for the run");
        give_away(&fresh);
        fs::rename(&fresh, &path).expect("the file in its place");
        path.to_str().expect("a path in UTF-8").to_owned()
    }

    /// A file or folder of the build where the programs' user can read it: as it is, or a copy for this run.
    pub fn lent(&self, from: &Path) -> PathBuf {
        let open = |folder: &Path| folder.metadata().is_ok_and(|data| data.permissions().mode() & 0o5 == 0o5);
        if !is_root() || from.ancestors().all(open) {
            return from.to_path_buf();
        }
        let to = self.house.join("lent").join(from.file_name().expect("a name"));
        if to.exists() {
            return to;
        }
        let done = Command::new("cp").args(["-a", "--reflink=auto"]).arg(from).arg(&to).status().expect("cp");
        assert!(done.success(), "{} is not copied", from.display());
        to
    }

    /// The path of a file in the folder.
    pub fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().expect("a path in UTF-8").to_owned()
    }

    fn command(&self, words: &[&str], user: Vec<String>) -> Command {
        let mut all: Vec<OsString> = Vec::new();
        let own = self.house.join("motet");
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
            command.env(PATIENCE.0, PATIENCE.1);
        }
        command
    }

    /// Starts something that stays: a server, or a client in the background.
    #[track_caller]
    pub fn start(&self, words: &[&str]) -> Started {
        self.start_with(words, &[])
    }

    /// The same, with environment variables.
    #[track_caller]
    pub fn start_with(&self, words: &[&str], environment: &[(&str, &str)]) -> Started {
        self.started(words, self.command(words, motet_programs::unprivileged()), environment)
    }

    /// The same as the user who runs the tests: a program that changes its user must be root.
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

    /// Starts what a recipe of `motet-programs` says, with environment variables.
    #[track_caller]
    pub fn follow(&self, recipe: &[String], environment: &[(&str, &str)]) -> Started {
        self.start_with(&recipe.iter().map(String::as_str).collect::<Vec<_>>(), environment)
    }

    /// Runs a client to its end; it must succeed. Returns what it printed.
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
    /// Its process id, which stays the same through all that stands in front of the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed until now, both streams.
    pub fn printed(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Waits until somebody listens on the port.
    #[track_caller]
    pub fn listens(mut self, port: u16) -> Self {
        self.until(&format!("listens on port {port}"), |_| TcpStream::connect(("127.0.0.1", port)).is_ok());
        self
    }

    /// Waits until it has printed a text.
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
            assert!(ended.is_none(), "{} ended before it {what}: {ended:?}\n{}", self.name, self.printed());
            assert!(began.elapsed() < LIMIT, "{} never {what}:\n{}", self.name, self.printed());
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
            assert!(began.elapsed() < LIMIT, "{} hung:\n{}", self.name, self.printed());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end, which must be a success. Returns what it printed.
    #[track_caller]
    pub fn finish(mut self) -> String {
        let status = self.wait();
        assert!(status.success(), "{} failed ({status}):\n{}", self.name, self.printed());
        self.printed()
    }

    /// Waits for its end, whatever that is. Returns what it printed.
    #[track_caller]
    pub fn ended(mut self) -> String {
        self.wait();
        self.printed()
    }

    /// Asks it to end with a signal; it must end by itself, with status 0 or, as many programs do, by that signal.
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
        // The whole group: what it forked must not outlive the test.
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.child.wait();
    }
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    motet_programs::free_port().expect("a free port")
}

/// A script or source of `tests/programs`, copied to where the program's user can read it.
pub fn source(stage: &Stage, name: &str) -> String {
    let contents = fs::read(crate::sources().join(name)).expect("a source of tests/programs");
    stage.file(name.rsplit('/').next().unwrap_or(name), contents)
}

/// A compiled program where its user can run it.
pub fn placed(stage: &Stage, program: &Path) -> String {
    let path = stage.path(program.file_name().and_then(|n| n.to_str()).expect("a name"));
    let fresh = stage.fresh("program");
    copy(program, &fresh);
    fs::rename(&fresh, &path).expect("the program in its place");
    path
}

fn give_away(path: &Path) {
    motet_programs::give_away(path).expect("root may give a file away");
}

/// Copies a program. Not with a descriptor of our own: a child that another test forks meanwhile would keep it open, and the
/// program would be "text file busy". Nor over one that may still run.
pub fn copy(from: &Path, to: &Path) {
    let fresh = to.with_extension("new");
    let done = Command::new("cp").arg("-L").arg(from).arg(&fresh).status().expect("cp");
    assert!(done.success(), "{} is not copied", from.display());
    fs::rename(&fresh, to).expect("the copy in its place");
}

/// The folder of a whole build: command, engine and sockets adapter.
fn libraries() -> Option<&'static Path> {
    let folder = crate::engine()?.parent()?;
    let all = ["motet", "libmotet.so.0", "libmotet_sockets.so"];
    all.iter().all(|file| folder.join(file).exists()).then_some(folder)
}
