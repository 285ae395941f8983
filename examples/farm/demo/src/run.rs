//! The whole study on this host: starts the processes, kills some of them while they work, and checks the results.

use crate::study::{parameter, swing};
use anyhow::{Context, Result, bail, ensure};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Nothing takes so long.
const LIMIT: Duration = Duration::from_secs(120);

/// How long workers may take to hear that the study is finished.
const LAST_LINES: Duration = Duration::from_secs(2);

/// A process of the farm. It is killed when this is dropped.
struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    /// Starts a process, which gets startpoints by standard input.
    fn start(words: &[&str], starts: &[&str]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().context("a pipe")?);
        let (give, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if give.send(line).is_err() {
                    return;
                }
            }
        });
        let mut process = Self { child, lines };
        if !starts.is_empty() {
            process.tell(&format!("{}\n", starts.join("\n")))?; // and an empty line
        }
        Ok(process)
    }

    fn line(&self) -> Result<String> {
        match self.lines.recv_timeout(LIMIT) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => bail!("a process says nothing"),
            Err(RecvTimeoutError::Disconnected) => bail!("a process has ended"),
        }
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        Ok(writeln!(self.child.stdin.as_mut().context("a pipe")?, "{line}")?)
    }

    /// Kills it with SIGKILL.
    fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill(); // it may have ended
    }
}

/// Reads `--points N --workers N --kills N`.
fn options(words: &[&str]) -> Result<[u64; 3]> {
    let mut values = [600, 3, 2];
    for pair in words.chunks(2) {
        let [name, value] = pair else { bail!("{} needs a value", pair[0]) };
        let at = ["--points", "--workers", "--kills"].iter().position(|known| known == name);
        values[at.with_context(|| format!("no such option: {name}"))?] = value.parse().context("a number")?;
    }
    ensure!(values[0] > 0 && values[1] > 0, "at least one point and one worker");
    Ok(values)
}

/// Runs the study.
pub fn run(words: &[&str]) -> Result<()> {
    let [points, size, kills] = options(words)?;
    let began = Instant::now();
    let mut master = Process::start(&["master", &points.to_string()], &[])?;
    let mut text = master.line()?;
    let mut successor = Process::start(&["successor", "-"], &[&text])?;
    let mut next = successor.line()?;
    let mut workers: Vec<Process> =
        (0..size).map(|_| Process::start(&["worker", "-"], &[&text, &next])).collect::<Result<_>>()?;
    let mut answered: HashMap<u64, u64> = HashMap::new();
    for round in 1..=kills {
        wait_for(&mut workers, &mut answered, points * round / (kills + 2))?;
        // A worker goes, another one comes; then the master goes. The last one hands over instead.
        let leaves = Process::start(&["worker", "-"], &[&text, &next])?;
        let mut gone = std::mem::replace(&mut workers[(round % size) as usize], leaves);
        gone.kill()?;
        collect(&gone, &mut answered);
        let how = if round < kills || kills == 1 { "is killed" } else { "hands over" };
        println!("{:4} results are answered: the master {how}, and a worker is killed", answered.len());
        if how == "is killed" {
            master.kill()?;
        } else {
            master.tell("hand over")?;
        }
        loop {
            let line = successor.line()?;
            if line.starts_with("leads") {
                println!("     the successor {line}");
                break;
            }
        }
        let former = std::mem::replace(&mut master, successor);
        text = next;
        successor = Process::start(&["successor", "-"], &[&text])?;
        next = successor.line()?;
        drop(former);
    }
    let results = finished(&mut master)?;
    // A worker that knows only masters that are gone looks for them for a long time.
    let ended = Instant::now();
    while ended.elapsed() < LAST_LINES && workers.iter_mut().any(|worker| matches!(worker.child.try_wait(), Ok(None))) {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(20)); // the last lines of workers
    workers.iter().for_each(|worker| collect(worker, &mut answered));
    check(points, &results, &answered)?;
    println!(
        "{points} points in {:.1} s: all results are there and right, and every answered one is the one that was answered",
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Takes what a worker has said.
fn collect(worker: &Process, answered: &mut HashMap<u64, u64>) {
    for line in worker.lines.try_iter() {
        let mut words = line.split(' ').skip(1).map(str::parse);
        if let (Some(Ok(point)), Some(Ok(number))) = (words.next(), words.next()) {
            answered.insert(point, number);
        }
    }
}

/// Waits until workers have answers to so many results.
fn wait_for(workers: &mut [Process], answered: &mut HashMap<u64, u64>, count: u64) -> Result<()> {
    let began = Instant::now();
    while (answered.len() as u64) < count {
        workers.iter().for_each(|worker| collect(worker, answered));
        ensure!(began.elapsed() < LIMIT, "the study does not go on");
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// The results of a master that has all of them: value and number of each point.
fn finished(master: &mut Process) -> Result<HashMap<u64, (f64, u64)>> {
    let mut results = HashMap::new();
    loop {
        let line = master.line()?;
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["result", point, value, number] => _ = results.insert(point.parse()?, (value.parse()?, number.parse()?)),
            ["finished"] => return Ok(results),
            _ => {}
        }
    }
}

fn check(points: u64, results: &HashMap<u64, (f64, u64)>, answered: &HashMap<u64, u64>) -> Result<()> {
    ensure!(results.len() as u64 == points, "{} of {points} results", results.len());
    for (point, (value, _)) in results {
        ensure!(*value == swing(parameter(*point, points)), "the result of point {point} is wrong");
    }
    for (point, number) in answered {
        ensure!(
            results.get(point).is_some_and(|(_, kept)| kept == number),
            "the answered result of point {point} was lost"
        );
    }
    Ok(())
}
