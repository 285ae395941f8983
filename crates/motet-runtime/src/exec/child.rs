//! A child process with a process group of its own, whose output goes to a log.
#![allow(unsafe_code)] // one call between fork and exec

use crate::instance::Waker;
use crate::log::Log;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getppid, kill_process_group, pidfd_open,
    set_parent_process_death_signal, waitid,
};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A child. Dropping it kills it and its process group.
pub struct Child {
    process: std::process::Child,
    pid: Pid,
    /// It becomes readable when the child has ended.
    pidfd: OwnedFd,
    status: Option<ExitStatus>,
}

impl Child {
    /// Starts a program. Its output goes to the log, and its end wakes the node.
    pub fn spawn(mut command: Command, log: &Log, waker: &Waker) -> io::Result<Self> {
        let (output, writer) = io::pipe()?;
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).process_group(0);
        let parent = rustix::process::getpid();
        // SAFETY: between fork and exec only two system calls are made, which allocate nothing and take no lock.
        unsafe {
            command.pre_exec(move || {
                set_parent_process_death_signal(Some(Signal::KILL))?;
                // The node may have died before that.
                if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
            });
        }
        let mut process = command.spawn()?;
        drop(command); // its end of the pipe
        let pid = Pid::from_child(&process);
        let watched = pidfd_open(pid, PidfdFlags::empty())
            .map_err(io::Error::from)
            .and_then(|pidfd| Ok((pidfd.try_clone()?, pidfd)))
            .and_then(|(watched, pidfd)| {
                read_all(output, log.clone())?;
                wake_at_end(watched, waker.clone())?;
                Ok(pidfd)
            });
        match watched {
            Ok(pidfd) => Ok(Self { process, pid, pidfd, status: None }),
            Err(error) => {
                let _ = kill_process_group(pid, Signal::KILL);
                let _ = process.wait();
                Err(error)
            }
        }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// How the child has ended. `None`: it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_some() {
            return self.status;
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match waitid(WaitId::Pid(self.pid), options) {
            Ok(None) => None,
            _ => self.reap(),
        }
    }

    /// Sends the signal to the process group, and after the limit SIGKILL; returns how the child has ended.
    pub fn end(mut self, signal: Signal, limit: Duration) -> io::Result<ExitStatus> {
        if self.ended().is_none() {
            let _ = kill_process_group(self.pid, signal);
            // A program that is stopped (SIGSTOP) takes the signal as well.
            let _ = kill_process_group(self.pid, Signal::CONT);
            wait_until(&self.pidfd, Some(Instant::now() + limit));
        }
        let _ = kill_process_group(self.pid, Signal::KILL);
        wait_until(&self.pidfd, None);
        self.reap().ok_or_else(|| io::Error::other("the program's exit status is lost"))
    }

    /// Kills what is left of the process group, then reaps the child: until then no other process group has its number.
    fn reap(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            let _ = kill_process_group(self.pid, Signal::KILL);
            self.status = self.process.wait().ok();
        }
        self.status
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.reap();
    }
}

/// Waits until the process has ended, or the time has come.
fn wait_until(pidfd: &OwnedFd, until: Option<Instant>) {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(0) if left != Some(Duration::ZERO) => {}
            _ => return,
        }
    }
}

/// Reads the output to its end, in a thread: a program never waits for its log.
fn read_all(mut output: io::PipeReader, log: Log) -> io::Result<()> {
    let read = move || {
        let mut buffer = [0; 4096];
        loop {
            match output.read(&mut buffer) {
                Ok(0) => return,
                Ok(length) => log.write(&buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    };
    std::thread::Builder::new().name("motet-output".to_owned()).spawn(read).map(drop)
}

/// Wakes the node when the process has ended, in a thread.
fn wake_at_end(pidfd: OwnedFd, waker: Waker) -> io::Result<()> {
    let wait = move || {
        wait_until(&pidfd, None);
        (waker.0)();
    };
    std::thread::Builder::new().name("motet-child".to_owned()).spawn(wait).map(drop)
}
