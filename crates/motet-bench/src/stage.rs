//! Where real programs are measured: a folder of their own, as one unprivileged user, without and with Motet.
//!
//! A server is there twice, without and with Motet, and stays for all repetitions; it runs on the first CPU. What calls it runs on that
//! CPU or on the second one ([`Way`]): a client to its end, or a [`Caller`] that answers questions. Everything that is started here
//! ends with its owner, and with the bench itself.

use crate::bench::Bench;
use crate::ending;
use crate::pair::{Timing, parse};
use crate::place::Placement::{self, One, Two};
use anyhow::{Context, Result, bail};
use motet_programs::{find, free_port, give_away, is_root, unprivileged};
use motet_sys::rustix::process::{Pid, Signal, kill_process};
use std::cell::Cell;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A server that takes longer to come up has hung.
const LIMIT: Duration = Duration::from_secs(60);
/// Before whatever calls: it has hung when it takes two minutes, a caller with all its repetitions.
const LIMITED: [&str; 4] = ["timeout", "-k", "1", "120"];
/// A process that was asked to end may take so long, then again after it was asked by a signal.
const PATIENCE: Duration = Duration::from_secs(3);

/// Whether a program's sockets are the kernel's or Motet's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// As it is.
    WithoutMotet,
    /// As under `motet run`.
    Motet,
}

/// How a program is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// Both ends without Motet, or both under it.
    pub mode: Mode,
    /// Both on one CPU, or each on its own.
    pub placement: Placement,
}

/// The ways of a row, in the order in which they take turns. The last one is for rows that must never be slower.
pub const WAYS: [Way; 4] = [
    Way { mode: Mode::Motet, placement: Two },
    Way { mode: Mode::WithoutMotet, placement: One },
    Way { mode: Mode::WithoutMotet, placement: Two },
    Way { mode: Mode::Motet, placement: One },
];

/// A folder in which programs run.
pub struct Stage<'a> {
    /// The run that it belongs to.
    pub bench: &'a Bench,
    folder: TempDir,
    equipment: Vec<(String, OsString)>,
    logs: Cell<usize>,
}

/// When a server can be called.
#[derive(Debug, Clone, Copy)]
pub enum Ready<'a> {
    /// Somebody listens on the port.
    Listens(&'a str),
    /// It has printed this.
    Says(&'a str),
    /// When it runs; a look at its port would be its only client.
    Started,
}

impl<'a> Stage<'a> {
    /// An empty folder, and what equips a program. When root measures, that is copied to where the programs' user can read it.
    pub fn new(bench: &'a Bench) -> Result<Self> {
        let folder = ending::folder()?;
        give_away(folder.path())?;
        let mut stage = Self { bench, folder, equipment: bench.sockets()?, logs: Cell::new(0) };
        for at in 0..stage.equipment.len() {
            stage.equipment[at].1 = stage.readable(Path::new(&stage.equipment[at].1))?.into_os_string();
        }
        stage.equipment.push(("MOTET_STATS".into(), stage.path("stats").into()));
        Ok(stage)
    }

    /// A library where the programs' user can read it: a copy in the folder, when root measures. It is made once, as programs run with it.
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

    /// The path of a file in the folder; of the folder itself, with a slash at its end, when `name` is empty.
    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    /// A file in the folder.
    pub fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> Result<String> {
        let path = self.folder.path().join(name);
        fs::write(&path, contents)?;
        give_away(&path)?;
        Ok(self.path(name))
    }

    /// Runs a compiler, or anything else that is not measured, without Motet and as the measuring user; it must succeed.
    pub fn build<W: AsRef<str>>(&self, words: &[W]) -> Result<()> {
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env_remove("LD_PRELOAD").stdin(Stdio::null()).current_dir(self.folder.path());
        let output = ending::output(command.env("TMPDIR", self.folder.path()))
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
        if mode == Mode::Motet {
            command.envs(self.equipment.iter().map(|(name, value)| (name, value)));
            // What the row itself preloads comes behind.
            if let Some((_, more)) = environment.iter().find(|(name, _)| *name == "LD_PRELOAD") {
                let mut all = self.equipment[0].1.clone();
                all.push(" ");
                all.push(more);
                command.env("LD_PRELOAD", all);
            }
        }
        command
    }

    /// Where the calling end of this way runs; servers run on the first CPU.
    pub fn cpu(&self, placement: Placement) -> usize {
        self.bench.cpus.pair[usize::from(placement == Two)]
    }

    /// Starts a server, and waits until it is ready.
    pub fn server<W: AsRef<str>>(&self, mode: Mode, words: &[W], ready: Ready<'_>) -> Result<Server> {
        self.server_with(mode, words, &[], ready)
    }

    /// The same, with environment variables.
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
        let child = self.bench.cpus.on(Some(self.cpu(One)), || ending::start(&mut command));
        let child = child.with_context(|| format!("cannot start {}", words[0]))?;
        let mut server = Server { child, log, name: words[0].to_owned(), signal: Signal::TERM };
        server.until(|printed| match ready {
            Ready::Listens(port) => port.parse().is_ok_and(|port: u16| TcpStream::connect(("127.0.0.1", port)).is_ok()),
            Ready::Says(text) => printed.contains(text),
            Ready::Started => true,
        })?;
        Ok(server)
    }

    /// A server twice, each told a port of its own.
    pub fn both(&self, mut start: impl FnMut(Mode, &str) -> Result<Server>) -> Result<Both> {
        let ports = [free_port()?.to_string(), free_port()?.to_string()];
        let servers = [start(Mode::WithoutMotet, &ports[0])?, start(Mode::Motet, &ports[1])?];
        Ok(Both { servers, ports })
    }

    /// A server of our own twice, which says `port N` itself.
    pub fn both_say<W: AsRef<str>>(&self, words: &[W]) -> Result<Both> {
        let start = |mode| self.server(mode, words, Ready::Says("port "));
        let servers = [start(Mode::WithoutMotet)?, start(Mode::Motet)?];
        let ports = [servers[0].said("port")?, servers[1].said("port")?];
        Ok(Both { servers, ports })
    }

    /// Runs a client to its end. Returns what it printed.
    pub fn client<W: AsRef<str>>(&self, way: Way, words: &[W]) -> Result<String> {
        self.client_with(way, words, &[])
    }

    /// The same, with environment variables.
    pub fn client_with<W: AsRef<str>>(&self, way: Way, words: &[W], environment: &[(&str, &str)]) -> Result<String> {
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        let mut command = self.command(way.mode, &[&LIMITED, words.as_slice()].concat(), environment);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.bench.cpus.on(Some(self.cpu(way.placement)), || ending::start(&mut command));
        let output = child.and_then(Child::wait_with_output).with_context(|| format!("cannot start {}", words[0]))?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.lines().chain(printed.lines()).last().unwrap_or_default();
            bail!("{} failed ({}): {last}", words[0], output.status);
        }
        Ok(printed)
    }

    /// Starts a caller, of a program that answers lines `SIZE MS …` with figures.
    pub fn caller<W: AsRef<str>>(&self, way: Way, words: &[W]) -> Result<Caller> {
        self.caller_with(way, words, &[])
    }

    /// The same, with environment variables.
    pub fn caller_with<W: AsRef<str>>(&self, way: Way, words: &[W], environment: &[(&str, &str)]) -> Result<Caller> {
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        let mut command = self.command(way.mode, &[&LIMITED, words.as_slice()].concat(), environment);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let child = self.bench.cpus.on(Some(self.cpu(way.placement)), || ending::start(&mut command));
        let mut child = child.with_context(|| format!("cannot start {}", words[0]))?;
        let output = child.stdout.take().map(BufReader::new).context("no output pipe")?;
        let input = child.stdin.take();
        Ok(Caller { child, input, output, name: words[0].to_owned() })
    }

    /// What part of the bytes that programs under Motet sent since the last question went through shared memory. Programs say so when
    /// they end by themselves; `None` when none of them had a stream that was upgraded.
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

/// A server twice, without and with Motet.
pub struct Both {
    /// In that order.
    pub servers: [Server; 2],
    ports: [String; 2],
}

impl Both {
    /// Where the one listens that is of this mode.
    pub fn port(&self, mode: Mode) -> &str {
        &self.ports[usize::from(mode == Mode::Motet)]
    }

    /// The one of this mode.
    pub fn server(&self, mode: Mode) -> &Server {
        &self.servers[usize::from(mode == Mode::Motet)]
    }
}

/// A server that ends with its owner: by a signal, and by force when it takes long.
pub struct Server {
    child: Child,
    log: PathBuf,
    name: String,
    /// The signal that asks it to end.
    pub signal: Signal,
}

impl Server {
    /// The process that was started.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn printed(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// What it printed behind `word`, on the first line that begins with that.
    pub fn said(&self, word: &str) -> Result<String> {
        let printed = self.printed();
        let told = printed.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
        Ok(told.with_context(|| format!("a server did not say its {word}"))?.to_owned())
    }

    fn until(&mut self, mut reached: impl FnMut(&str) -> bool) -> Result<()> {
        let began = Instant::now();
        while !reached(&self.printed()) {
            let ended = self.child.try_wait()?;
            if ended.is_some() || began.elapsed() > LIMIT {
                let (printed, how) = (self.printed(), ended.map_or("no end".into(), |status| status.to_string()));
                bail!("{} did not come up ({how}): {}", self.name, printed.lines().last().unwrap_or_default());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Asks it to end, and waits until it has.
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

/// A client that stays, and measures when it is asked.
pub struct Caller {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    name: String,
}

impl Caller {
    /// Asks with one line; what it measured.
    pub fn ask(&mut self, question: &str) -> Result<Timing> {
        parse(&self.line(question)?)
    }

    /// Asks with one line; what it printed.
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

/// Waits for its end; after a while by a signal, then by force.
fn ended(child: &mut Child) {
    for insist in [Signal::TERM, Signal::KILL] {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
        let _ = kill_process(Pid::from_child(child), insist);
    }
    let _ = child.wait();
}
