//! Nodes that send requests to each other, and processes of this test program.
#![allow(dead_code)] // each test program uses a part

use motet::node::Node;
use motet_rsr::{Options, Reception, Rsr};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A bound for things that happen at once, so that a failure ends.
pub const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

/// A new node with requests.
pub fn attach(options: Options) -> Rsr {
    Rsr::attach(&Arc::new(Node::open("").unwrap()), options).unwrap()
}

/// A new node that hosts can connect to, too.
pub fn attach_for_hosts(options: Options) -> Rsr {
    attach_at("127.0.0.1:0".parse().unwrap(), options)
}

/// A new node that hosts can connect to at this address.
pub fn attach_at(address: SocketAddr, options: Options) -> Rsr {
    Rsr::attach(&Arc::new(Node::listen("", address).unwrap()), options).unwrap()
}

/// The default options with this reception.
pub fn with(reception: Reception) -> Options {
    Options { reception, ..Options::default() }
}

/// Waits until something is so.
pub fn until(mut ready: impl FnMut() -> bool) {
    let began = Instant::now();
    while !ready() {
        assert!(began.elapsed() < LIMIT.unwrap(), "it does not come about");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Another process of this test program, which runs its test `role` with a word. It ends when this is dropped.
pub struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// The variable with the word for a process.
const WORD: &str = "MOTET_RSR_TEST_WORD";
/// What the lines of a process begin with; the others are the test harness's.
const MARK: &str = "@@ ";

impl Process {
    pub fn start(role: &str, word: &str) -> Self {
        Self::start_by(Command::new(std::env::current_exe().unwrap()), role, word)
    }

    /// Starts it by a command that runs this test program.
    pub fn start_by(mut command: Command, role: &str, word: &str) -> Self {
        command.args(["--exact", role, "--nocapture", "--test-threads", "1"]).env(WORD, word);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// The next line that it prints.
    #[track_caller]
    pub fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the process has ended");
            if let Some((_, said)) = line.trim_end().split_once(MARK) {
                return said.to_owned();
            }
        }
    }

    /// Stops it with SIGSTOP, and waits until it is.
    pub fn stop(&self) {
        self.signal("-STOP");
        let stat = format!("/proc/{}/stat", self.child.id());
        until(|| std::fs::read_to_string(&stat).unwrap().contains(") T "));
    }

    /// Ends that.
    pub fn go_on(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The word that this process was started with; `None` in the test program itself.
pub fn word() -> Option<String> {
    std::env::var(WORD).ok()
}

/// Says a line to the process that has started this one.
pub fn say(line: &str) {
    println!("\n{MARK}{line}");
    std::io::stdout().flush().unwrap();
}

/// The next line from the process that has started this one; `None` at the end.
pub fn hear() -> Option<String> {
    let mut line = String::new();
    (std::io::stdin().lock().read_line(&mut line).unwrap() > 0).then(|| line.trim_end().to_owned())
}
