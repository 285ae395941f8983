//! A sandbox for programs of other projects: a folder of their own, one unprivileged user, without and with Motet.
//!
//! A server is started twice, without and with Motet, and stays for all repetitions. It runs on the first CPU, or on any one
//! ([`Sandbox::place_servers`]). Its callers run on that CPU, on the second one, or on any one ([`Setup`]): a client that runs to its end, or a
//! [`Caller`] that answers questions. Every process ends when its owner is dropped, and with the bench.

use crate::bench::Bench;
use crate::cleanup;
use crate::pair::{Timing, parse};
use crate::place::Placement::{self, Free, One, Two};
use anyhow::{Context, Result, bail};
use motet_programs::{find, free_port, give_away, is_root, unprivileged};
use motet_sys::rustix::process::{Pid, Signal, kill_process};
use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::{Rc, Weak};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a server may take until it is ready.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The words in front of every client and caller: each ends after two minutes, a caller with all its repetitions.
const TIMEOUT_COMMAND: [&str; 4] = ["timeout", "-k", "1", "120"];
/// How long a process may take to end, before SIGTERM and again before SIGKILL.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// Whether a program runs under Motet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Without Motet.
    WithoutMotet,
    /// As under `motet run`.
    WithMotet,
}

/// How a program is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// Whether both ends run under Motet.
    pub mode: Mode,
    /// Both ends on one CPU, each on its own, or as the scheduler places them.
    pub placement: Placement,
}

/// The setups of a row, in the order in which they take turns.
pub const SETUPS: [Setup; 6] = [
    Setup { mode: Mode::WithMotet, placement: Two },
    Setup { mode: Mode::WithoutMotet, placement: One },
    Setup { mode: Mode::WithoutMotet, placement: Two },
    Setup { mode: Mode::WithMotet, placement: One },
    Setup { mode: Mode::WithMotet, placement: Free },
    Setup { mode: Mode::WithoutMotet, placement: Free },
];

/// A folder in which programs run.
pub struct Sandbox<'a> {
    /// The run.
    pub bench: &'a Bench,
    folder: TempDir,
    motet_environment: Vec<(String, OsString)>,
    logs: Cell<usize>,
    /// The servers that it has started. The number of one that has ended may be another process's.
    servers: RefCell<Vec<Weak<u32>>>,
    /// Where servers run.
    placement: Cell<Placement>,
}

/// When a server can be called.
#[derive(Debug, Clone, Copy)]
pub enum Ready<'a> {
    /// A process listens on the port.
    Listens(&'a str),
    /// It has printed this.
    Says(&'a str),
    /// At once: a connection to its port would be its only client.
    Started,
}

impl<'a> Sandbox<'a> {
    /// An empty folder, and the environment for programs under Motet. If root measures, the libraries are copied to where the
    /// user of the programs can read them.
    pub fn new(bench: &'a Bench) -> Result<Self> {
        let folder = cleanup::folder()?;
        give_away(folder.path())?;
        let (logs, servers, placement) = (Cell::new(0), RefCell::default(), Cell::new(One));
        let mut sandbox = Self { bench, folder, motet_environment: bench.sockets()?, logs, servers, placement };
        for at in 0..sandbox.motet_environment.len() {
            sandbox.motet_environment[at].1 =
                sandbox.readable(Path::new(&sandbox.motet_environment[at].1))?.into_os_string();
        }
        sandbox.motet_environment.push(("MOTET_STATS".into(), sandbox.path("stats").into()));
        Ok(sandbox)
    }

    /// The path of a library that the user of the programs can read: a copy in the folder if root measures. A copy is made once, as
    /// running programs map it.
    pub fn readable(&self, library: &Path) -> Result<PathBuf> {
        if !is_root() {
            return Ok(library.to_path_buf());
        }
        let copy = self.folder.path().join(library.file_name().context("a library without a name")?);
        if !copy.exists() {
            fs::copy(library, &copy).with_context(|| format!("cannot copy {}", library.display()))?;
        }
        Ok(copy)
    }

    /// The path of a file in the folder. For an empty `name` that of the folder, with a slash at its end.
    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    /// Writes a file in the folder. Returns its path.
    pub fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> Result<String> {
        let path = self.folder.path().join(name);
        fs::write(&path, contents)?;
        give_away(&path)?;
        Ok(self.path(name))
    }

    /// Makes a folder in the folder. Returns its path, with a slash at its end.
    pub fn subfolder(&self, name: &str) -> Result<String> {
        let path = format!("{}/", self.path(name));
        fs::create_dir(&path)?;
        give_away(path.as_ref())?;
        Ok(path)
    }

    /// Runs a compiler or another command that is not measured, without Motet and as the user of the bench. Fails if it fails.
    pub fn build<W: AsRef<str>>(&self, words: &[W]) -> Result<()> {
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env_remove("LD_PRELOAD").stdin(Stdio::null()).current_dir(self.folder.path());
        let output = cleanup::output(command.env("TMPDIR", self.folder.path()))
            .with_context(|| format!("cannot start {}", words[0]))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let error = said.lines().find(|line| line.contains("error")).or(said.lines().last());
            bail!("{} failed: {}", words[0], error.unwrap_or_default());
        }
        Ok(())
    }

    fn command(&self, mode: Mode, words: &[&str], environment: &[(&str, &str)]) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM"]).args(unprivileged()).arg("--");
        command.arg(find(words[0]).map_or_else(|| words[0].into(), PathBuf::into_os_string)).args(&words[1..]);
        command.current_dir(self.folder.path()).env_remove("LD_PRELOAD");
        command.env("HOME", self.folder.path()).env("LC_ALL", "C.UTF-8").envs(environment.iter().copied());
        if mode == Mode::WithMotet {
            command.envs(self.motet_environment.iter().map(|(name, value)| (name, value)));
            // What the row itself preloads follows.
            if let Some((_, more)) = environment.iter().find(|(name, _)| *name == "LD_PRELOAD") {
                let mut all = self.motet_environment[0].1.clone();
                all.push(" ");
                all.push(more);
                command.env("LD_PRELOAD", all);
            }
        }
        command
    }

    /// The CPU of the calling end in this placement; `None`: any one.
    pub fn cpu(&self, placement: Placement) -> Option<usize> {
        (placement != Free).then(|| self.bench.cpus.pair[usize::from(placement == Two)])
    }

    /// Moves the servers to where they run in this placement: the first CPU, or any one. Later ones start there.
    pub fn place_servers(&self, placement: Placement) {
        self.placement.set(placement);
        let cpu = self.server_cpu();
        let mut servers = self.servers.borrow_mut();
        servers.retain(|server| server.upgrade().is_some());
        servers.iter().filter_map(Weak::upgrade).for_each(|server| self.bench.cpus.move_to(*server, cpu));
    }

    fn server_cpu(&self) -> Option<usize> {
        (self.placement.get() != Free).then_some(self.bench.cpus.pair[0])
    }

    /// Starts a server, and waits until it is ready.
    pub fn server<W: AsRef<str>>(&self, mode: Mode, words: &[W], ready: Ready<'_>) -> Result<Server> {
        self.server_with(mode, words, &[], ready)
    }

    /// Starts a server with further environment variables, and waits until it is ready.
    pub fn server_with<W: AsRef<str>>(
        &self,
        mode: Mode,
        words: &[W],
        environment: &[(&str, &str)],
        ready: Ready<'_>,
    ) -> Result<Server> {
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        let log = self.folder.path().join(format!("log-{}", self.logs.replace(self.logs.get() + 1)));
        let file = File::create(&log)?;
        let mut command = self.command(mode, &words, environment);
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = self.bench.cpus.on(self.server_cpu(), || cleanup::start(&mut command));
        let child = child.with_context(|| format!("cannot start {}", words[0]))?;
        let process = Rc::new(child.id());
        self.servers.borrow_mut().push(Rc::downgrade(&process));
        let mut server = Server { child, process, log, name: words[0].to_owned(), signal: Signal::TERM };
        server.until(|printed| match ready {
            Ready::Listens(port) => port.parse().is_ok_and(|port: u16| TcpStream::connect(("127.0.0.1", port)).is_ok()),
            Ready::Says(text) => printed.contains(text),
            Ready::Started => true,
        })?;
        Ok(server)
    }

    /// Starts a server twice, without and with Motet, each with a port of its own.
    pub fn both(&self, mut start: impl FnMut(Mode, &str) -> Result<Server>) -> Result<BothServers> {
        let ports = [free_port()?.to_string(), free_port()?.to_string()];
        let servers = [start(Mode::WithoutMotet, &ports[0])?, start(Mode::WithMotet, &ports[1])?];
        Ok(BothServers { servers, ports })
    }

    /// Starts a server twice, without and with Motet, that prints `port N` itself.
    pub fn both_say<W: AsRef<str>>(&self, words: &[W]) -> Result<BothServers> {
        let start = |mode| self.server(mode, words, Ready::Says("port "));
        let servers = [start(Mode::WithoutMotet)?, start(Mode::WithMotet)?];
        let ports = [servers[0].said("port")?, servers[1].said("port")?];
        Ok(BothServers { servers, ports })
    }

    /// Runs a client to its end. Returns what it printed.
    pub fn client<W: AsRef<str>>(&self, setup: Setup, words: &[W]) -> Result<String> {
        self.client_with(setup, words, &[])
    }

    /// Runs a client with further environment variables to its end. Returns what it printed.
    pub fn client_with<W: AsRef<str>>(
        &self,
        setup: Setup,
        words: &[W],
        environment: &[(&str, &str)],
    ) -> Result<String> {
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        let mut command = self.command(setup.mode, &[&TIMEOUT_COMMAND, words.as_slice()].concat(), environment);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.bench.cpus.on(self.cpu(setup.placement), || cleanup::start(&mut command));
        let output = child.and_then(Child::wait_with_output).with_context(|| format!("cannot start {}", words[0]))?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.lines().chain(printed.lines()).last().unwrap_or_default();
            bail!("{} failed ({}): {last}", words[0], output.status);
        }
        Ok(printed)
    }

    /// Starts a caller: a program that answers lines `SIZE MS …` with figures.
    pub fn caller<W: AsRef<str>>(&self, setup: Setup, words: &[W]) -> Result<Caller> {
        self.caller_with(setup, words, &[])
    }

    /// Starts a caller with further environment variables.
    pub fn caller_with<W: AsRef<str>>(
        &self,
        setup: Setup,
        words: &[W],
        environment: &[(&str, &str)],
    ) -> Result<Caller> {
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        let mut command = self.command(setup.mode, &[&TIMEOUT_COMMAND, words.as_slice()].concat(), environment);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let child = self.bench.cpus.on(self.cpu(setup.placement), || cleanup::start(&mut command));
        let mut child = child.with_context(|| format!("cannot start {}", words[0]))?;
        let output = child.stdout.take().map(BufReader::new).context("no output pipe")?;
        let input = child.stdin.take();
        Ok(Caller { child, input, output, name: words[0].to_owned() })
    }

    /// The part of the bytes that went through shared memory, of all that programs under Motet sent since the last call. Programs
    /// report it when they end by themselves. `None` if none of them had an upgraded stream.
    pub fn shared(&self) -> Option<f64> {
        let path = self.folder.path().join("stats");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(path);
        let (mut fast, mut all) = (0.0, 0.0);
        for line in text.lines() {
            let counts: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
            let count = |name: &str| counts[name].as_f64().unwrap_or(0.0);
            fast += count("sent_fast");
            all += count("sent_fast") + count("sent_tcp");
        }
        (all > 0.0).then(|| fast / all)
    }
}

/// A server without Motet, and one with Motet.
pub struct BothServers {
    /// The server without Motet, then the one with Motet.
    pub servers: [Server; 2],
    ports: [String; 2],
}

impl BothServers {
    /// The port of the server in this mode.
    pub fn port(&self, mode: Mode) -> &str {
        &self.ports[usize::from(mode == Mode::WithMotet)]
    }

    /// The server in this mode.
    pub fn server(&self, mode: Mode) -> &Server {
        &self.servers[usize::from(mode == Mode::WithMotet)]
    }
}

/// A server. On drop it gets a signal, and SIGKILL if it does not end.
pub struct Server {
    child: Child,
    /// Its number, as long as it is this process's.
    process: Rc<u32>,
    log: PathBuf,
    name: String,
    /// The signal that asks it to end.
    pub signal: Signal,
}

impl Server {
    /// The process that was started.
    pub fn pid(&self) -> u32 {
        *self.process
    }

    fn printed(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// What it printed after `word`, on the first line that begins with that word.
    pub fn said(&self, word: &str) -> Result<String> {
        let printed = self.printed();
        let reported = printed.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
        Ok(reported.with_context(|| format!("a server did not print its {word}"))?.to_owned())
    }

    fn until(&mut self, mut reached: impl FnMut(&str) -> bool) -> Result<()> {
        let began = Instant::now();
        while !reached(&self.printed()) {
            let ended = self.child.try_wait()?;
            if ended.is_some() || began.elapsed() > START_TIMEOUT {
                let (printed, how) =
                    (self.printed(), ended.map_or("still running".into(), |status| status.to_string()));
                bail!("{} did not get ready ({how}): {}", self.name, printed.lines().last().unwrap_or_default());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Asks it to end, and waits for that.
    pub fn end(self) {}
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.child), self.signal);
        }
        ended(&mut self.child);
    }
}

/// A client that stays, and measures on request.
pub struct Caller {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    name: String,
}

impl Caller {
    /// Sends one line. Returns the times that the caller measured.
    pub fn ask(&mut self, question: &str) -> Result<Timing> {
        parse(&self.line(question)?)
    }

    /// Sends one line. Returns the line that the caller printed.
    pub fn line(&mut self, question: &str) -> Result<String> {
        let input = self.input.as_mut().context("its input is closed")?;
        let asked = writeln!(input, "{question}");
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if asked.is_err() || line.is_empty() {
            bail!("{} ended while it was measured", self.name);
        }
        Ok(line)
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        drop(self.input.take());
        ended(&mut self.child);
    }
}

/// Waits for the end of a process; after a time with SIGTERM, then with SIGKILL.
fn ended(child: &mut Child) {
    for insist in [Signal::TERM, Signal::KILL] {
        let began = Instant::now();
        while began.elapsed() < EXIT_TIMEOUT {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
        let _ = kill_process(Pid::from_child(child), insist);
    }
    let _ = child.wait();
}
