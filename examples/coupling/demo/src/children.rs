//! Child processes with logs in files and time limits. They end with this process. `run` says which programs are started.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// Set by Ctrl-C or a termination signal. Every wait tests it.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Makes Ctrl-C, SIGTERM and SIGHUP end every wait with an error, so that children are ended on the way out.
pub fn catch_interrupts() -> Result<()> {
    ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::SeqCst)).context("cannot catch Ctrl-C")
}

/// An error if the user has asked to stop.
pub fn check_interrupt() -> Result<()> {
    if INTERRUPTED.load(Ordering::SeqCst) {
        bail!("interrupted");
    }
    Ok(())
}

/// A program started here. Dropping it ends it and everything that it started.
pub struct Program {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts `words` (program and arguments); standard output and error go to the file `log`.
    pub fn start(name: &str, words: &[String], log: &Path, environment: &[(&str, &str)]) -> Result<Self> {
        let (program, arguments) = words.split_first().context("an empty command")?;
        let output = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = Command::new(program)
            .args(arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0) // a Ctrl-C of the terminal reaches only this program, which then ends them in order
            .spawn()
            .with_context(|| format!("cannot start {name} ({program})"))?;
        Ok(Self { name: name.into(), child, log: log.into() })
    }

    /// Whether it has ended, and how.
    pub fn poll(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// An error with the end of its log when it ended badly.
    pub fn judge(&self, status: ExitStatus) -> Result<()> {
        if status.success() {
            return Ok(());
        }
        bail!("{} failed ({status}); the end of {}:\n{}", self.name, self.log.display(), self.log_end())
    }

    /// The last lines of its output.
    pub fn log_end(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    /// Ends it: by SIGTERM (mpirun then ends its ranks), and by SIGKILL after `patience`.
    pub fn end(&mut self, patience: Duration) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let own = pid(self.child.id());
        let mut all = descendants(self.child.id());
        if let Some(own) = own {
            let _ = kill_process(own, Signal::TERM);
        }
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        all.extend(descendants(self.child.id()));
        let _ = self.child.kill();
        let _ = self.child.wait();
        // A descendant that outlives the program which should have ended it. Its start time tells it from a newcomer
        // that was given the same number.
        for (process, started) in all {
            let same = start_time(process) == Some(started);
            if let Some(process) = pid(process).filter(|_| same) {
                let _ = kill_process(process, Signal::KILL);
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.end(Duration::from_secs(5));
    }
}

/// Waits until all programs have ended well. At the first failure, time-out or interrupt the others are left to their
/// owners, whose drop ends them.
pub fn wait_all(programs: &mut [&mut Program], deadline: Instant) -> Result<()> {
    let mut ended = vec![false; programs.len()];
    while ended.contains(&false) {
        for (program, ended) in programs.iter_mut().zip(&mut ended) {
            if *ended {
                continue;
            }
            if let Some(status) = program.poll()? {
                program.judge(status)?;
                *ended = true;
            }
        }
        check_interrupt()?;
        if Instant::now() > deadline {
            let late: Vec<_> = programs.iter().zip(&ended).filter(|(_, ended)| !**ended).collect();
            let ends: Vec<_> = late.iter().map(|(p, _)| format!("{}:\n{}", p.name, p.log_end())).collect();
            bail!("the time limit has passed; still running: {}", ends.join("\n"));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn pid(number: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(number).ok()?)
}

/// Parent and start time (clock ticks after boot) of a process: fields 4 and 22 of proc(5) `stat`.
fn stat(process: u32) -> Option<(u32, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    Some((fields.get(1)?.parse().ok()?, fields.get(19)?.parse().ok()?))
}

fn start_time(process: u32) -> Option<u64> {
    stat(process).map(|(_, started)| started)
}

/// All processes below `root`, with their start times.
fn descendants(root: u32) -> Vec<(u32, u64)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(process) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        if let Some((parent, started)) = stat(process) {
            all.push((process, parent, started));
        }
    }
    let mut found = Vec::new();
    let mut parents = vec![root];
    while let Some(above) = parents.pop() {
        for (process, parent, started) in &all {
            if *parent == above {
                found.push((*process, *started));
                parents.push(*process);
            }
        }
    }
    found
}
