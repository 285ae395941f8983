//! Tests of the driver of Globus XIO (`adapters/globus`) with the programs of the Grid Community Toolkit: `globus-gridftp-server`, `globus-url-copy` and
//! `globus-xioperf` of Debian, unmodified.
//!
//! What is missing (a program, XIO's headers, a built engine) skips a test with a message. Servers listen on the loopback interface only, and serve one folder
//! of the test.
#![forbid(unsafe_code)]

mod failures;
mod programs;
mod run;
mod security;
mod services;
mod striped;
mod transfers;

use motet_tests::temporary::Temporary;
use motet_tests::{engine, folder, programs as real};
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of a start and of an end, and of a transfer in the words of `timeout`.
const LIMIT: Duration = Duration::from_secs(60);
const TRANSFER_LIMIT: &str = "120";

/// The folder of the driver, built from this checkout. `None`, with a message, if something is missing.
fn driver(test: &str) -> Option<&'static Path> {
    static DRIVER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = DRIVER.get_or_init(|| {
        for program in ["globus-gridftp-server", "globus-url-copy"] {
            real::find(program).ok_or(format!("{program} is not installed (tests/programs/packages.txt)"))?;
        }
        let engine = engine().ok_or("libmotet.so.0 is not built (make build)")?;
        let to = folder("globus-driver");
        for name in ["libmotet.so", "libmotet.so.0"] {
            let _ = fs::remove_file(to.join(name));
            symlink(engine, to.join(name)).map_err(|e| e.to_string())?;
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../adapters/globus");
        let made = Command::new("make").arg("-s").arg("-C").arg(source).arg(format!("OUT={}", to.display())).output();
        let made = made.expect("make is needed to build the driver");
        assert!(made.status.success(), "the driver does not build: {}", String::from_utf8_lossy(&made.stderr));
        let driver = to.join("globus/libglobus_xio_motet_driver.so");
        if driver.exists() { Ok(to.join("globus")) } else { Err("libglobus-xio-dev is not installed".to_owned()) }
    });
    match built {
        Ok(folder) => Some(folder),
        Err(why) => real::skip(test, why),
    }
}

/// Whether a server's data channel is the driver, or XIO's own `tcp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Channel {
    Motet,
    Tcp,
}

/// A folder of the test, and how programs are started in it.
struct Site {
    driver: &'static Path,
    folder: Temporary,
    environment: Vec<(String, String)>,
}

/// A GridFTP server. Dropping it ends it and its children.
struct Server {
    child: Child,
    port: u16,
}

impl Site {
    /// An empty folder. `None`, with a message, if something is missing.
    fn new(test: &str) -> Option<Self> {
        let driver = driver(test)?;
        let site = Self { driver, folder: Temporary::new("globus"), environment: Vec::new() };
        fs::create_dir(site.path("out")).expect("a folder");
        Some(site)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A command without settings of Motet, with the driver's folder in the loader's path, and its streams reported in the folder.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["MOTET_", "X509_", "GLOBUS_", "LD_"].iter().any(|prefix| text.starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        command
            .env("LC_ALL", "C")
            .env("HOME", self.folder.path())
            .env("MOTET_CONFIG", "/dev/null")
            .env("LD_LIBRARY_PATH", self.driver);
        command
            .env("MOTET_LOG", self.path("log.%p"))
            .env("MOTET_PATIENCE", "300ms")
            .env("GLOBUS_HOSTNAME", "localhost");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    /// A server without authentication.
    #[track_caller]
    fn serve(&self, channel: Channel) -> Server {
        let mut words = vec!["-aa".to_owned()];
        if real::is_root() {
            words.extend(["-anonymous-user", "root"].map(str::to_owned));
        }
        self.serve_with(self.command("globus-gridftp-server"), channel, &words)
    }

    /// A server with further words, started by a command.
    #[track_caller]
    fn serve_with(&self, mut command: Command, channel: Channel, words: &[String]) -> Server {
        let port = real::free_port();
        command.args(["-p", &port.to_string(), "-control-interface", "127.0.0.1", "-log-level", "ERROR"]).args(words);
        if real::is_root() {
            command.arg("-allow-root");
        }
        if channel == Channel::Motet {
            command.args(["-dc-whitelist", "motet,tcp,gsi", "-dc-default", "motet,gsi"]);
        }
        let log = fs::File::create(self.path(&format!("server-{port}"))).expect("a log");
        command.process_group(0).stdout(log.try_clone().expect("the same file")).stderr(log);
        let mut server = Server { child: command.spawn().expect("globus-gridftp-server"), port };
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = server.child.try_wait().expect("its status");
            let log = fs::read_to_string(self.path(&format!("server-{port}"))).unwrap_or_default();
            assert!(ended.is_none() && began.elapsed() < LIMIT, "the server does not listen: {log}");
            thread::sleep(Duration::from_millis(20));
        }
        server
    }

    /// `globus-url-copy` with these words, ended after a time limit.
    fn copy_command(&self, words: &[&str]) -> Command {
        let mut command = self.command("timeout");
        command.args(["-k", "5", TRANSFER_LIMIT, "globus-url-copy"]).args(words);
        command
    }

    /// Runs `globus-url-copy`, which must succeed.
    #[track_caller]
    fn copy(&self, words: &[&str]) -> String {
        succeeded(&self.copy_command(words).output().expect("globus-url-copy"))
    }

    /// A file of so many bytes that differ from place to place.
    fn file(&self, name: &str, bytes: usize) -> PathBuf {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64 ^ bytes as u64;
        let mut contents = Vec::with_capacity(bytes + 8);
        while contents.len() < bytes {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            contents.extend(seed.to_le_bytes());
        }
        contents.truncate(bytes);
        fs::write(self.path(name), contents).expect("a file");
        self.path(name)
    }

    /// Bytes that processes with the engine have sent over shared memory, and streams that were upgraded.
    fn fast(&self) -> (u64, u64) {
        let (mut bytes, mut streams) = (0, 0);
        for entry in fs::read_dir(self.folder.path()).into_iter().flatten().flatten() {
            if !entry.file_name().to_string_lossy().starts_with("log.") {
                continue;
            }
            for line in
                fs::read_to_string(entry.path()).unwrap_or_default().lines().filter(|l| l.contains(" event=exit "))
            {
                let number = |name: &str| {
                    line.split_once(&format!(" {name}="))
                        .and_then(|(_, rest)| rest.split(' ').next()?.parse::<u64>().ok())
                        .unwrap_or(0)
                };
                bytes += number("sent_fast");
                streams += number("attached");
            }
        }
        (bytes, streams)
    }

    /// Repeats a transfer until so many ends of streams have been upgraded and some payload took shared memory. On busy CPUs, where readers sleep, short
    /// transfers may take TCP (docs/adr/0024).
    #[track_caller]
    fn until_shared_memory(&self, ends: u64, transfer: impl Fn()) {
        const MOST: u32 = 15;
        for _ in 0..MOST {
            transfer();
            // Data processes exit after their client has.
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(2) {
                let (bytes, streams) = self.fast();
                if bytes > 0 && streams >= ends {
                    return;
                }
                thread::sleep(Duration::from_millis(50));
            }
        }
        panic!("{:?} bytes and ends over shared memory after {MOST} transfers; {ends} ends expected", self.fast());
    }
}

impl Server {
    /// The address of a file at this server.
    fn url(&self, file: &Path) -> String {
        format!("ftp://127.0.0.1:{}{}", self.port, file.display())
    }

    /// The processes that serve a client now.
    fn children(&self) -> Vec<String> {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        children.split_whitespace().map(str::to_owned).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.child.wait();
    }
}

/// The output of a command that must have succeeded.
#[track_caller]
fn succeeded(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}: {}{}", output.status, text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Whether two files have the same contents.
fn same(one: &Path, other: &Path) -> bool {
    let read = |path: &Path| {
        let mut contents = Vec::new();
        fs::File::open(path).and_then(|mut file| file.read_to_end(&mut contents)).expect("a file");
        contents
    };
    read(one) == read(other)
}
