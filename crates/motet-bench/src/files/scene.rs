//! An exported directory of the bench: on a tmpfs, with its servers and mounts. Everything ends and is removed when this is dropped, also by a signal.

use crate::bench::Bench;
use crate::cleanup;
use crate::pair::Process;
use crate::session::scene::find_motet;
use anyhow::{Context, Result, bail, ensure};
use motet_session::paths::DIR_VARIABLE;
use motet_sys::rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Where the tmpfs is.
pub const TMPFS: &str = "/dev/shm";
/// The file that is read and written, and its size: more than caches hold.
pub const FILE: &str = "file";
/// Bytes of [`FILE`].
pub const FILE_BYTES: usize = 256 << 20;
/// Nothing takes so long.
pub const LIMIT: Duration = Duration::from_secs(30);

/// How a client or a mount reaches the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The directory itself.
    Direct,
    /// Messages to the server.
    Messages,
}

impl Way {
    /// The export that allows no other way.
    pub fn export(self) -> &'static str {
        match self {
            Way::Direct => "direct",
            Way::Messages => "messages",
        }
    }
}

/// A folder on the tmpfs, with a folder of sessions of its own.
pub struct Scene {
    folder: TempDir,
    motet: PathBuf,
    /// This executable as a worker.
    worker: Vec<OsString>,
}

/// A process that serves. It gets SIGTERM, then SIGKILL, when this is dropped.
pub struct Server(Child);

/// A mounted folder. It is unmounted when this is dropped.
pub struct Mounted {
    /// Where.
    pub folder: PathBuf,
    _server: Server,
}

impl Scene {
    /// The folder, with the file.
    pub fn new(bench: &Bench) -> Result<Self> {
        let folder = cleanup::folder_in(Path::new(TMPFS)).context("SKIPPED: no tmpfs at /dev/shm")?;
        let scene = Self { folder, motet: find_motet(bench)?, worker: bench.worker(&["files"]).words };
        std::fs::create_dir(scene.data())?;
        fill(&scene.data().join(FILE), FILE_BYTES)?;
        Ok(scene)
    }

    /// The command `motet`.
    pub fn motet(&self) -> &Path {
        &self.motet
    }

    /// The exported directory.
    pub fn data(&self) -> PathBuf {
        self.path("data")
    }

    /// A path beside the exported directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn set<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env(DIR_VARIABLE, self.path("s")).env_remove("LD_PRELOAD")
    }

    /// Starts a server that reaches the files in this way, on this CPU (`None`: on all).
    pub fn serve(&self, bench: &Bench, way: Way, cpu: Option<usize>) -> Result<Server> {
        let mut command = Command::new(&self.motet);
        command.arg("export").arg(self.data()).args(["--as", way.export()]);
        if way == Way::Messages {
            command.arg("--no-direct");
        }
        Server::start(bench, self.set(&mut command), "is exported as", cpu)
    }

    /// Mounts the export that is reached in this way.
    pub fn mount(&self, bench: &Bench, way: Way) -> Result<Mounted> {
        let folder = self.path(&format!("mount-{}", way.export()));
        std::fs::create_dir_all(&folder)?;
        let mut command = Command::new(&self.motet);
        command.args(["mount", "--foreground", way.export()]).arg(&folder);
        let server = Server::start(bench, self.set(&mut command), "is mounted on", None)?;
        Ok(Mounted { folder, _server: server })
    }

    /// Serves a file as a disk, with more arguments of `motet export --block`, by the words `before`. Returns what it prints: a URI or, with `--connect`, a device.
    pub fn block(&self, bench: &Bench, before: &[OsString], file: &Path, more: &[&str]) -> Result<(Server, String)> {
        let mut words = before.to_vec();
        words.extend([self.motet.as_os_str().to_owned(), "export".into(), "--block".into(), file.into()]);
        words.extend(more.iter().map(OsString::from));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        let ready = if more.contains(&"--connect") { "/dev/" } else { "nbd" };
        Server::start_and_say(bench, self.set(&mut command), ready, None)
    }

    /// Starts a worker on this CPU (`None`: on all).
    pub fn worker(&self, bench: &Bench, words: &[&str], cpu: Option<usize>) -> Result<Process> {
        let mut command = Command::new(&self.worker[0]);
        command.args(&self.worker[1..]).args(words);
        self.set(&mut command);
        Process::start(command, &bench.cpus, cpu)
    }
}

impl Scene {
    /// A command under `motet run --files`, for which the export that clients may use themselves is at `prefix`.
    pub fn run_files<S: AsRef<std::ffi::OsStr>>(&self, prefix: &Path, words: &[S]) -> Command {
        let mut command = Command::new(&self.motet);
        command.args(["run", "--files", &format!("{}={}", Way::Direct.export(), prefix.display()), "--"]).args(words);
        self.set(&mut command);
        command
    }

    /// Starts a worker under `motet run`, without files. It runs on all CPUs.
    pub fn under_run(&self, bench: &Bench, words: &[&str]) -> Result<Process> {
        let mut command = Command::new(&self.motet);
        command.args(["run", "--"]).args(&self.worker).args(words);
        self.set(&mut command);
        Process::start(command, &bench.cpus, None)
    }

    /// Starts a worker under `motet run`, for which the export that clients may use themselves is at `prefix`. It runs on all CPUs.
    pub fn preloaded(&self, bench: &Bench, prefix: &str, words: &[&str]) -> Result<Process> {
        let all: Vec<OsString> = self.worker.iter().cloned().chain(words.iter().map(OsString::from)).collect();
        Process::start(self.run_files(Path::new(prefix), &all), &bench.cpus, None)
    }
}

impl Server {
    /// Starts a command, and waits for the first line of its output, which must contain `ready`.
    fn start(bench: &Bench, command: &mut Command, ready: &str, cpu: Option<usize>) -> Result<Self> {
        Ok(Self::start_and_say(bench, command, ready, cpu)?.0)
    }

    /// [`Server::start`]; returns the line, too.
    fn start_and_say(bench: &Bench, command: &mut Command, ready: &str, cpu: Option<usize>) -> Result<(Self, String)> {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut server = Self(bench.cpus.on(cpu, || cleanup::start(command))?);
        let mut line = String::new();
        BufReader::new(server.0.stdout.take().context("a pipe")?).read_line(&mut line)?;
        ensure!(line.contains(ready), "{} did not get ready: {}", command.get_program().display(), line.trim());
        Ok((server, line.trim().to_owned()))
    }

    /// A process that is ready in another way.
    pub fn of(child: Child) -> Self {
        Self(child)
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let began = Instant::now();
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        while !self.ended() && began.elapsed() < Duration::from_secs(3) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Mounted {
    /// Waits until a server has mounted the folder.
    pub fn by(folder: PathBuf, mut server: Server) -> Result<Self> {
        let began = Instant::now();
        while !std::fs::read_to_string("/proc/self/mounts")?.contains(&format!(" {} ", folder.display())) {
            if server.ended() || began.elapsed() > LIMIT {
                bail!("{} does not get mounted", folder.display());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Self { folder, _server: server })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The server ends when it has no file system any more.
        for words in [["umount", "-l"], ["fusermount3", "-uz"]] {
            let output = Command::new(words[0]).arg(words[1]).arg(&self.folder).output();
            if output.is_ok_and(|output| output.status.success()) {
                break;
            }
        }
    }
}

/// Sends a line to a worker, and returns the numbers of the line that it answers.
pub fn ask(worker: &mut Process, question: &str) -> Result<Vec<f64>> {
    tell(worker, question)?;
    answer(worker)
}

/// Sends a line to a worker. One that has ended says why in its answer.
pub fn tell(worker: &mut Process, question: &str) -> Result<()> {
    let input = worker.input.as_mut().context("its input is closed")?;
    let _ = writeln!(input, "{question}");
    Ok(())
}

/// The numbers of the next line of a worker.
pub fn answer(worker: &mut Process) -> Result<Vec<f64>> {
    let line = worker.line_within(LIMIT)?;
    line.split_whitespace().map(|word| word.parse().with_context(|| format!("`{word}` is no number"))).collect()
}

/// Makes a file of random bytes, of which no block equals another.
fn fill(path: &Path, bytes: usize) -> Result<()> {
    let file = File::create(path)?;
    let mut block = vec![0u8; 1 << 20];
    let mut state = 1u64;
    for at in 0..bytes / block.len() {
        for word in block.as_chunks_mut::<8>().0 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *word = state.to_le_bytes();
        }
        file.write_all_at(&block, (at * block.len()) as u64)?;
    }
    Ok(())
}
