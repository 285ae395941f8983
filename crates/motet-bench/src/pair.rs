//! Two processes with a connection between them: one serves, one calls and measures.
//!
//! Every measuring program, in C or this executable as a worker, speaks the protocol of `tests/bench/peer.h`: `serve` prints
//! `port N`; `call HOST PORT …` prints `MEDIAN MEAN COUNT`. This file starts them on their CPUs, in their environments.

use crate::cleanup;
use crate::place::Cpus;
use anyhow::{Context, Result, bail};
use motet_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use motet_sys::rustix::io::retry_on_intr;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// The times that a caller measured, ns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// The time of one operation, median over blocks.
    pub median: f64,
    /// The time of one operation, mean over the whole run.
    pub mean: f64,
    /// Operations measured.
    pub count: f64,
    /// The part of the payload that shared memory carried, where the program knows it.
    pub shared: Option<f64>,
}

/// A program, and how it is started.
#[derive(Debug, Clone, Default)]
pub struct Program {
    /// Program and first arguments.
    pub words: Vec<OsString>,
    /// Environment of the serving end.
    pub serve_env: Vec<(String, OsString)>,
    /// Environment of the calling end.
    pub call_env: Vec<(String, OsString)>,
    /// The words in front of the program at the serving and at the calling end that run it on another host.
    pub host_prefix: [Vec<OsString>; 2],
    /// The host of the serving end, as the calling end names it.
    pub host: Option<String>,
    /// Arguments after `serve`.
    pub serve_arguments: Vec<String>,
}

impl Program {
    /// This program with both ends in this environment.
    pub fn with_env(mut self, env: &[(String, OsString)]) -> Self {
        self.serve_env.extend_from_slice(env);
        self.call_env.extend_from_slice(env);
        self
    }

    /// The command that runs `verb` at one end: 0 serves, 1 calls.
    pub fn command(&self, end: usize, verb: &str) -> Command {
        let env = [&self.serve_env, &self.call_env][end];
        let before = &self.host_prefix[end];
        let mut words = before.clone();
        if !before.is_empty() && !env.is_empty() {
            // The environment is for the measured program, not for the command that runs it on another host.
            words.push("env".into());
            for (name, value) in env {
                let mut word = OsString::from(name);
                word.push("=");
                word.push(value);
                words.push(word);
            }
        }
        words.extend(self.words.iter().cloned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(verb);
        // Under `motet run`, too, TCP is measured without Motet.
        command.env_remove("LD_PRELOAD");
        if before.is_empty() {
            command.envs(env.iter().map(|(name, value)| (name, value)));
        }
        command
    }

    fn host(&self) -> &str {
        self.host.as_deref().unwrap_or("127.0.0.1")
    }
}

/// A child process that is killed on drop.
pub struct Process {
    /// The child.
    pub child: Child,
    /// Its standard output.
    pub output: BufReader<ChildStdout>,
    /// Its standard input.
    pub input: Option<ChildStdin>,
}

impl Process {
    /// Starts `command` on `cpu`.
    pub fn start(mut command: Command, cpus: &Cpus, cpu: Option<usize>) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child =
            cpus.on(cpu, || cleanup::start(&mut command)).with_context(|| format!("cannot start {name}"))?;
        let output = child.stdout.take().map(BufReader::new).context("no output pipe")?;
        let input = child.stdin.take();
        Ok(Self { child, output, input })
    }

    /// The next line of its output. If it has ended, the error has the last line of its standard error.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.is_empty() {
            bail!("{}", self.complaint());
        }
        Ok(line.trim().to_owned())
    }

    /// The next line of its output, which must begin within this time.
    pub fn line_within(&mut self, limit: Duration) -> Result<String> {
        if self.output.buffer().is_empty() {
            let limit = Timespec::try_from(limit).context("a limit")?;
            let mut readable = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
            if retry_on_intr(|| poll(&mut readable, Some(&limit)))? == 0 {
                bail!("a measuring program does not answer within {} s", limit.tv_sec);
            }
        }
        self.line()
    }

    fn complaint(&mut self) -> String {
        drop(self.input.take());
        let status = self.child.wait().map_or_else(|e| e.to_string(), |s| s.to_string());
        let mut said = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut said);
        }
        let last = said.lines().last().unwrap_or("").trim();
        if last.is_empty() {
            format!("a measuring program ended early ({status})")
        } else {
            format!("a measuring program failed: {last}")
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A serving process and its port.
pub struct Server {
    /// The process.
    pub process: Process,
    /// Where it listens.
    pub port: String,
}

impl Server {
    /// Starts the serving end.
    pub fn start(program: &Program, cpus: &Cpus, cpu: Option<usize>) -> Result<Self> {
        let mut command = program.command(0, "serve");
        command.args(&program.serve_arguments);
        let mut process = Process::start(command, cpus, cpu)?;
        let line = process.line()?;
        let port = line.strip_prefix("port ").context("a server did not print its port")?;
        Ok(Self { port: port.to_owned(), process })
    }
}

/// Starts a caller that will measure.
pub fn caller(program: &Program, port: &str, arguments: &[String], cpus: &Cpus, cpu: Option<usize>) -> Result<Process> {
    let mut command = program.command(1, "call");
    command.arg(program.host()).arg(port).args(arguments);
    Process::start(command, cpus, cpu)
}

/// Waits for the result of a caller.
pub fn timing(mut caller: Process) -> Result<Timing> {
    let timing = parse(&caller.line()?)?;
    let status = caller.child.wait()?;
    if !status.success() {
        bail!("{}", caller.complaint());
    }
    Ok(timing)
}

/// The figures in a line `MEDIAN MEAN COUNT`, and the shared part where the program knows it.
pub fn parse(line: &str) -> Result<Timing> {
    let numbers: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    Ok(match numbers[..] {
        [median, mean, count] => Timing { median, mean, count, shared: None },
        [median, mean, count, shared] => Timing { median, mean, count, shared: Some(shared) },
        _ => bail!("a measuring program printed `{}`", line.trim()),
    })
}

/// Starts a server and a caller on these CPUs, and returns the result of the caller.
pub fn measure(program: &Program, arguments: &[String], cpus: &Cpus, on: [Option<usize>; 2]) -> Result<Timing> {
    let server = Server::start(program, cpus, on[0])?;
    timing(caller(program, &server.port, arguments, cpus, on[1])?)
}
