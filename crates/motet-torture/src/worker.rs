//! Worker processes: the program of this crate, controlled by its arguments and by lines.

use motet_sys::rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A worker process. Dropping it kills the process.
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

    /// Starts a command that ends in the worker program.
    pub fn started(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a worker");
        let orders = child.stdin.take();
        let words = BufReader::new(child.stdout.take().expect("its output"));
        Self { child, orders, words }
    }

    /// The worker's address, which is its first line.
    pub fn address(&mut self) -> String {
        self.line()
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the worker.
    pub fn signal(&self, signal: Signal) {
        crate::system::signal(self.pid(), signal);
    }

    /// Writes a line to the worker.
    pub fn tell(&mut self, order: &str) {
        let orders = self.orders.as_mut().expect("the worker reads its input");
        writeln!(orders, "{order}").expect("the worker reads its input");
    }

    /// Closes the worker's input.
    pub fn close(&mut self) {
        self.orders = None;
    }

    /// Waits for the worker's next line. Empty at the end of its output.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.words.read_line(&mut line).expect("its output");
        line.trim_end().to_owned()
    }

    /// Kills the worker and waits for its end.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Closes the worker's input and waits until it exits, which must succeed.
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
