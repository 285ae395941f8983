//! The rows of `motet bench`, in the order of the table. Each has a function.

mod coupled;
mod curves;
mod engine;
mod fallback;
mod fifo;
mod idle;
mod many_peers;
mod oversubscribed;
mod pool;
mod programs;
mod short;
mod sockets;

use crate::Options;
use crate::bench::Bench;
use crate::pages::Group;
use crate::report::{Curve, Line};
use anyhow::{Result, bail};

/// What a row measures.
pub enum Measure {
    /// Lines of the table.
    Lines(fn(&Bench, &Options) -> Result<Vec<Line>>),
    /// Lines of the plots.
    Curves(fn(&Bench) -> Vec<Curve>),
}

/// A row that `--only` can name.
pub struct Row {
    /// Its name: what it measures.
    pub id: &'static str,
    /// A letter that `--only` accepts in place of the name; empty where there is none.
    letter: &'static str,
    /// What it is about.
    pub title: &'static str,
    /// How it is measured.
    pub measure: Measure,
}

const fn row(id: &'static str, title: &'static str, measure: fn(&Bench, &Options) -> Result<Vec<Line>>) -> Row {
    Row { id, letter: "", title, measure: Measure::Lines(measure) }
}

impl Row {
    const fn or_letter(self, letter: &'static str) -> Self {
        Self { letter, ..self }
    }

    fn is_named(&self, name: &str) -> bool {
        !name.is_empty() && (name == self.id || name == self.letter)
    }
}

/// The name of all rows of other projects' programs together.
const PROGRAMS: &str = "programs";

/// The rows of Motet itself; [`programs::ROWS`] follow.
const ROWS: [Row; 15] = [
    row("engine-latency", "engine stream, 8 B one way", engine::latency).or_letter("a"),
    row("engine-bandwidth", "engine stream bandwidth, reused buffers", engine::bandwidth).or_letter("b"),
    row("engine-cold", "engine stream, 64 MiB, distinct cold buffers", engine::cold).or_letter("c"),
    row("fallback", "peer without Motet, other host", fallback::fallback).or_letter("d"),
    row("sockets-latency", "sockets ping-pong, 64 B", sockets::latency).or_letter("e"),
    row("sockets-bandwidth", "sockets stream, 64 KiB writes", sockets::bandwidth).or_letter("f"),
    row("oversubscribed", "four pairs on two CPUs", oversubscribed::oversubscribed).or_letter("g"),
    row("idle-cpu", "idle process with 100 links", idle::processor).or_letter("h"),
    row("peer-memory", "memory of a peer", idle::memory).or_letter("i"),
    row("many-peers", "256 idle peers and an active one", many_peers::idle_peers).or_letter("j"),
    row("receive-pool", "receive memory: fresh or from the pool", pool::pool).or_letter("k"),
    row("coupled-demo", "coupled demo, chatty case", coupled::chatty).or_letter("l"),
    row("fifo", "FIFOs alone, 8 B one way and message rate", fifo::fifo),
    row("short", "connect, some messages, close", short::short),
    Row { id: "curves", letter: "", title: "curves over the size", measure: Measure::Curves(curves::curves) },
];

/// The rows that are named, by name or letter; all when none is named. `programs` stands for those of other projects' programs.
pub fn chosen(only: &[String]) -> Result<Vec<&'static Row>> {
    let all = || ROWS.iter().map(|row| (row, "")).chain(programs::ROWS.iter().map(|row| (row, PROGRAMS)));
    let named = |name: &str, (row, group): (&Row, &str)| row.is_named(name) || (name == group && !group.is_empty());
    for name in only {
        if !all().any(|row| named(name, row)) {
            let known: Vec<&str> = all().map(|(row, _)| row.id).chain([PROGRAMS]).collect();
            bail!("no row `{name}`; there are {}", known.join(" "));
        }
    }
    let wanted = all().filter(|&row| only.is_empty() || only.iter().any(|name| named(name, row)));
    Ok(wanted.map(|(row, _)| row).collect())
}

/// The figures page of a line of the rows.
pub fn group(line: &Line) -> Group {
    if programs::ROWS.iter().any(|row| row.id == line.row) { Group::Programs } else { Group::Streams }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_chosen_by_their_names_or_their_groups() {
        let of = |names: &[&str]| chosen(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        let ids = |names: &[&str]| of(names).unwrap().iter().map(|row| row.id).collect::<Vec<_>>();
        assert_eq!(ids(&["redis", "a", "fifo"]), ["engine-latency", "fifo", "redis"]);
        assert_eq!(ids(&["programs"]).len(), programs::ROWS.len());
        let all = ids(&[]);
        assert_eq!(all.len(), ROWS.len() + programs::ROWS.len());
        assert!(all.iter().enumerate().all(|(i, id)| !all[i + 1..].contains(id)), "{all:?}");
        assert!(of(&["redis", "nonsense"]).is_err() && of(&[""]).is_err());
    }
}
