//! The master, and the successor that becomes one.
//!
//! A result is at the successor before its worker gets the answer, so an answered result survives the master. A result that was not answered is still at
//! its worker, which sends it to the successor. Results are numbered by their workers, and the first one counts, so it may arrive twice.

use crate::study::parameter;
use crate::{LIMIT, attach, say, startpoints};
use anyhow::{Context, Result};
use motet_rsr::{Buffer, Endpoint, Error, Handlers, Malformed, Reader, Request, Rsr, Startpoint};
use std::collections::{BTreeMap, VecDeque};
use std::io::BufRead;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// What a worker is answered: here is a point; come again; the study is finished.
pub const WORK: u8 = 0;
pub const WAIT: u8 = 1;
pub const FINISHED: u8 = 2;
/// How often a successor looks for its master.
const WATCH: Duration = Duration::from_millis(20);

/// A result, and the number that its worker gave it.
type Results = BTreeMap<u64, (f64, u64)>;

/// What a master knows. A successor knows the results, and who leads.
#[derive(Default)]
struct State {
    leads: bool,
    points: u64,
    results: Results,
    /// Points that no worker has.
    free: VecDeque<u64>,
    /// Points that workers have, longest first.
    given: VecDeque<u64>,
    successor: Option<Startpoint>,
    /// Where a master that has handed over sends what still comes.
    handed_to: Option<Startpoint>,
}

struct Master {
    rsr: Rsr,
    state: Mutex<State>,
    own: OnceLock<Startpoint>,
}

/// Runs a master.
pub fn lead(points: u64, file: Option<&str>) -> Result<()> {
    let state = State { leads: true, points, free: (0..points).collect(), ..State::default() };
    let (master, _endpoint) = Master::start(state)?;
    startpoints::publish(master.own()?, file)?;
    master.obey()
}

/// Follows a master, and leads when it is gone.
pub fn follow(start: &str, file: Option<&str>) -> Result<()> {
    let former = startpoints::read(&[start])?.swap_remove(0);
    let (successor, _endpoint) = Master::start(State::default())?;
    let own = successor.own()?.clone();
    let reply = successor.rsr.call(&former, "follow", Buffer::new().put_startpoint(&own), LIMIT)?;
    successor.merge(&mut reply.reader())?;
    startpoints::publish(&own, file)?;
    let watcher = successor.clone();
    std::thread::spawn(move || {
        // Only a peer that is gone is replaced; one that is slow is waited for.
        while !matches!(
            watcher.rsr.call(&former, "alive", &Buffer::new(), LIMIT),
            Err(Error::PeerGone | Error::NoRoute(_))
        ) {
            if watcher.state().leads {
                return;
            }
            std::thread::sleep(WATCH);
        }
        watcher.take_over();
    });
    successor.obey()
}

impl Master {
    fn start(state: State) -> Result<(Arc<Self>, Endpoint)> {
        let master = Arc::new(Self { rsr: attach()?, state: Mutex::new(state), own: OnceLock::new() });
        let with = |name: &'static str| {
            let master = master.clone();
            move |request: &mut Request<'_>| {
                if let Err(error) = master.serve(name, request) {
                    eprintln!("{name}: {error:#}");
                }
            }
        };
        let names = ["take", "put", "take for", "put for", "follow", "copy", "lead", "alive"];
        let handlers = names.into_iter().fold(Handlers::new(), |handlers, name| handlers.threaded(name, with(name)));
        let endpoint = master.rsr.endpoint(handlers)?;
        let _ = master.own.set(endpoint.startpoint()?);
        Ok((master, endpoint))
    }

    fn own(&self) -> Result<&Startpoint> {
        self.own.get().context("started")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, name: &str, request: &mut Request<'_>) -> Result<()> {
        let handed_to = self.state().handed_to.clone();
        if let (Some(to), "take" | "put") = (handed_to, name) {
            // The new master answers the worker itself: the startpoint for the reply goes to it.
            let reply_to = request.take_reply_startpoint().context("a call")?;
            let mut buffer = Buffer::new();
            buffer.put_startpoint(&reply_to);
            if name == "put" {
                let (point, value, number) = result(&mut request.reader())?;
                buffer.put(point).put(value).put(number);
            }
            return Ok(self.rsr.request(&to, &*format!("{name} for"), &buffer, LIMIT)?);
        }
        let mut reader = request.reader();
        let mut answer = Buffer::new();
        let for_other = if name.ends_with(" for") { Some(reader.get_startpoint()?) } else { None };
        match name.trim_end_matches(" for") {
            "take" => self.take(&mut answer),
            "put" => self.put(&mut reader, &mut answer)?,
            "follow" => {
                let mut state = self.state();
                state.successor = Some(reader.get_startpoint()?);
                put_all(&state, &mut answer);
            }
            "copy" => _ = self.state().results.insert_if_new(result(&mut reader)?),
            "lead" => {
                self.merge(&mut reader)?;
                self.take_over();
            }
            _ => {}
        }
        match for_other {
            Some(worker) => self.rsr.reply(&worker, &answer)?,
            None => request.reply(&answer)?,
        }
        Ok(())
    }

    /// Gives a point to a worker: a free one, else the one that a worker has had for the longest time, since that worker may be gone.
    fn take(&self, answer: &mut Buffer<'_>) {
        let mut state = self.state();
        let done = state.results.len() as u64 >= state.points;
        let point = if state.leads && !done { state.next() } else { None };
        match point {
            Some(point) => answer.put(WORK).put(point).put(parameter(point, state.points)),
            None => answer.put(if state.leads && done { FINISHED } else { WAIT }).put(0u64).put(0f64),
        };
        let known: Vec<&Startpoint> = self.own.get().into_iter().chain(&state.successor).collect();
        answer.put(known.len() as u8);
        known.iter().for_each(|start| _ = answer.put_startpoint(start));
    }

    /// Takes a result: here, at the successor, and then it is answered.
    fn put(&self, reader: &mut Reader<'_>, answer: &mut Buffer<'_>) -> Result<()> {
        let (point, value, number) = result(reader)?;
        let mut state = self.state();
        if !state.leads || point >= state.points {
            answer.put(WAIT).put(0u64);
            return Ok(());
        }
        let kept = state.results.insert_if_new((point, value, number));
        let (all, successor) = (state.results.len() as u64 == state.points, state.successor.clone());
        drop(state);
        if let Some(successor) = successor {
            let mut copy = Buffer::new();
            copy.put(point).put(kept.0).put(kept.1);
            if let Err(Error::PeerGone | Error::NoRoute(_)) = self.rsr.call(&successor, "copy", &copy, LIMIT) {
                let mut state = self.state();
                if state.successor.as_ref() == Some(&successor) {
                    state.successor = None; // until another one follows
                }
            }
        }
        answer.put(WORK).put(kept.1);
        if all && kept.1 == number {
            self.report();
        }
        Ok(())
    }

    /// Adds what another one knows.
    fn merge(&self, reader: &mut Reader<'_>) -> Result<()> {
        let mut state = self.state();
        state.points = reader.get()?;
        for _ in 0..reader.get::<u64>()? {
            state.results.insert_if_new(result(reader)?);
        }
        Ok(())
    }

    fn take_over(&self) {
        let mut state = self.state();
        if state.leads {
            return;
        }
        state.leads = true;
        state.free = (0..state.points).filter(|point| !state.results.contains_key(point)).collect();
        say(&format!("leads with {} results", state.results.len()));
        if state.free.is_empty() {
            drop(state);
            self.report();
        }
    }

    /// Says what is known now.
    fn report(&self) {
        let state = self.state();
        for (point, (value, number)) in &state.results {
            say(&format!("result {point} {value} {number}"));
        }
        say("finished");
    }

    /// Does what lines of standard input say, until it ends: `hand over`, `report`.
    fn obey(&self) -> Result<()> {
        for line in std::io::stdin().lock().lines() {
            match line?.as_str() {
                "hand over" => self.hand_over()?,
                "report" => self.report(),
                _ => {}
            }
        }
        Ok(())
    }

    /// Lets the successor lead. What comes here from now on goes there.
    fn hand_over(&self) -> Result<()> {
        let mut state = self.state();
        let to = state.successor.take().context("no process follows")?;
        state.leads = false;
        let mut buffer = Buffer::new();
        put_all(&state, &mut buffer);
        drop(state);
        self.rsr.call(&to, "lead", &buffer, LIMIT)?;
        self.state().handed_to = Some(to);
        say("handed over");
        Ok(())
    }
}

impl State {
    fn next(&mut self) -> Option<u64> {
        let point = self.free.pop_front().or_else(|| {
            self.given.retain(|point| !self.results.contains_key(point));
            self.given.pop_front()
        });
        self.given.extend(point);
        point
    }
}

/// Keeps the first result of a point.
trait InsertIfNew {
    fn insert_if_new(&mut self, result: (u64, f64, u64)) -> (f64, u64);
}

impl InsertIfNew for Results {
    fn insert_if_new(&mut self, (point, value, number): (u64, f64, u64)) -> (f64, u64) {
        *self.entry(point).or_insert((value, number))
    }
}

fn result(reader: &mut Reader<'_>) -> Result<(u64, f64, u64), Malformed> {
    Ok((reader.get()?, reader.get()?, reader.get()?))
}

fn put_all(state: &State, buffer: &mut Buffer<'_>) {
    buffer.put(state.points).put(state.results.len() as u64);
    for (point, (value, number)) in &state.results {
        buffer.put(*point).put(*value).put(*number);
    }
}
