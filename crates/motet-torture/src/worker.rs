//! Other processes: the program of this crate, told what to do by its arguments and by lines.

use motet_sys::rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A process, killed when dropped.
pub struct Worker {
    child: Child,
    orders: Option<ChildStdin>,
    words: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts `program` in a role.
    pub fn start(program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments);
        Self::started(command)
    }

    /// The same of a command that ends in one.
    pub fn started(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a worker");
        let orders = child.stdin.take();
        let words = BufReader::new(child.stdout.take().expect("its output"));
        Self { child, orders, words }
    }

    /// Where it can be reached: its first line.
    pub fn address(&mut self) -> String {
        self.line()
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        crate::system::signal(self.pid(), signal);
    }

    /// Tells it something.
    pub fn tell(&mut self, order: &str) {
        let orders = self.orders.as_mut().expect("it still listens");
        writeln!(orders, "{order}").expect("it still listens");
    }

    /// Tells it nothing any more.
    pub fn close(&mut self) {
        self.orders = None;
    }

    /// Waits for its next line; empty: it has none any more.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.words.read_line(&mut line).expect("its output");
        line.trim_end().to_owned()
    }

    /// Kills it and waits until it is gone.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end, which must be a good one.
    pub fn finish(mut self) {
        self.orders = None;
        assert!(self.child.wait().expect("a child").success(), "the worker failed");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
