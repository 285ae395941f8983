//! A worker: takes points, computes, and keeps each result until a master has answered it.

use crate::master::{FINISHED, WORK};
use crate::study::swing;
use crate::{LIMIT, attach, say, startpoints};
use anyhow::{Result, bail};
use motet_rsr::{Buffer, Error, Reply, Rsr, Startpoint};
use std::time::{Duration, Instant};

/// How long a worker looks for a master.
const PATIENCE: Duration = Duration::from_secs(30);
/// The wait before the next attempt.
const PAUSE: Duration = Duration::from_millis(5);

struct Worker {
    rsr: Rsr,
    /// The master, then others that may lead.
    known: Vec<Startpoint>,
}

/// Works until the study is finished.
pub fn work(starts: &[&str]) -> Result<()> {
    let known = startpoints::read(starts)?;
    let mut worker = Worker { rsr: attach()?, known };
    let mut number = u64::from(std::process::id()) << 32;
    while let Some((point, parameter)) = worker.take()? {
        number += 1;
        let value = swing(parameter);
        if worker.put(point, value, number)? == number {
            say(&format!("answered {point} {number}"));
        }
    }
    Ok(())
}

impl Worker {
    /// A point with its parameter; `None`: the study is finished.
    fn take(&mut self) -> Result<Option<(u64, f64)>> {
        loop {
            let reply = self.call("take", &Buffer::new())?;
            let mut reader = reply.reader();
            let (what, point, parameter) = (reader.get::<u8>()?, reader.get()?, reader.get()?);
            self.learn((0..reader.get::<u8>()?).map(|_| reader.get_startpoint()).collect::<Result<_, _>>()?);
            match what {
                WORK => return Ok(Some((point, parameter))),
                FINISHED => return Ok(None),
                _ => self.wait(),
            }
        }
    }

    /// Delivers a result. Returns the number of the one that counts.
    fn put(&mut self, point: u64, value: f64, number: u64) -> Result<u64> {
        let mut buffer = Buffer::new();
        buffer.put(point).put(value).put(number);
        loop {
            let reply = self.call("put", &buffer)?;
            let mut reader = reply.reader();
            match (reader.get::<u8>()?, reader.get()?) {
                (WORK, kept) => return Ok(kept),
                _ => self.wait(),
            }
        }
    }

    /// Calls who leads: those that are known in turn, until one answers.
    fn call(&mut self, what: &str, buffer: &Buffer<'_>) -> Result<Reply> {
        let began = Instant::now();
        loop {
            match self.rsr.call(&self.known[0], what, buffer, LIMIT) {
                Ok(reply) => return Ok(reply),
                Err(Error::Invalid(why)) => bail!(why),
                Err(error) if began.elapsed() > PATIENCE => return Err(error.into()),
                Err(_) => self.wait(),
            }
        }
    }

    /// Waits, and tries another one.
    fn wait(&mut self) {
        std::thread::sleep(PAUSE);
        self.known.rotate_left(1);
    }

    /// Puts those that a master knows first.
    fn learn(&mut self, mut starts: Vec<Startpoint>) {
        starts.append(&mut self.known);
        let mut seen = std::collections::HashSet::new();
        starts.retain(|start| seen.insert(start.clone()));
        starts.truncate(8);
        self.known = starts;
    }
}
