//! The rows: one function each, in the order of the table.

mod coupled;
mod crowd;
mod curves;
mod engine;
mod fallback;
pub(crate) mod idle;
mod lane;
mod pool;
pub(crate) mod programs;
mod short;
mod sockets;

use crate::Options;
use crate::bench::{Bench, Contestant, Series};
use crate::pages::Group;
use crate::pair::{Program, measure};
use crate::place::Placement;
use crate::report::{Curve, Line};
use crate::stats::{Spread, median};
use anyhow::{Result, bail};

/// What a row does.
pub enum Measure {
    /// Lines of the table.
    Lines(fn(&Bench, &Options) -> Result<Vec<Line>>),
    /// Lines of the plots.
    Curves(fn(&Bench) -> Vec<Curve>),
}

/// A row that can be asked for.
pub struct Row {
    /// Its name for `--only`.
    pub id: &'static str,
    /// What it is about.
    pub title: &'static str,
    /// How it is measured.
    pub measure: Measure,
}

const fn row(id: &'static str, title: &'static str, measure: fn(&Bench, &Options) -> Result<Vec<Line>>) -> Row {
    Row { id, title, measure: Measure::Lines(measure) }
}

/// The name of all rows of other people's programs together.
const PROGRAMS: &str = "programs";

/// The rows of Motet itself; [`programs::ROWS`] follow.
const ROWS: [Row; 15] = [
    row("a", "engine stream, 8 B one way", engine::latency),
    row("b", "engine stream bandwidth, reused buffers", engine::bandwidth),
    row("c", "engine stream, 64 MiB, distinct cold buffers", engine::cold),
    row("d", "peer without Motet, other host", fallback::fallback),
    row("e", "sockets ping-pong, 64 B", sockets::latency),
    row("f", "sockets stream, 64 KiB writes", sockets::bandwidth),
    row("g", "four pairs on two CPUs", crowd::oversubscribed),
    row("h", "idle process with 100 links", idle::processor),
    row("i", "memory of a peer", idle::memory),
    row("j", "256 idle peers and an active one", crowd::idle_peers),
    row("k", "receive memory: fresh or from the pool", pool::pool),
    row("l", "coupled demo, chatty case", coupled::chatty),
    row("lane", "lanes alone, 8 B one way and message rate", lane::lane),
    row("short", "connect, some messages, close", short::short),
    Row { id: "curves", title: "curves over the size", measure: Measure::Curves(curves::curves) },
];

/// Those asked for; all when none is named. `programs` stands for those of other people's programs.
pub fn chosen(only: &[String]) -> Result<Vec<&'static Row>> {
    let all = || ROWS.iter().map(|row| (row, "")).chain(programs::ROWS.iter().map(|row| (row, PROGRAMS)));
    let named = |name: &str, (row, group): (&Row, &str)| name == row.id || (name == group && !group.is_empty());
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

/// Median ns of one operation of `program` with the ends placed so.
pub(crate) fn once(
    bench: &Bench,
    program: &Program,
    placement: Placement,
    turn: usize,
    arguments: &[String],
) -> Result<f64> {
    Ok(measure(program, arguments, &bench.cpus, bench.cpus.of(placement, turn))?.median)
}

/// `motet` beside `plain`, which are nearly equal: more repetitions, and the two change places in every second one.
fn nearly_equal(
    bench: &Bench,
    (motet, plain): (&Program, &Program),
    placement: Placement,
    arguments: &[String],
) -> Result<[Series; 2]> {
    let both = |turn: usize, first: bool| {
        let program = if (turn & 1 == 0) == first { motet } else { plain };
        once(bench, program, placement, turn / 2, arguments)
    };
    let mut contestants: Vec<Contestant<'_>> =
        vec![Box::new(|turn| both(turn, true)), Box::new(|turn| both(turn, false))];
    let mut series = bench.contest(bench.repetitions * 2, false, &mut contestants)?;
    let [motet, plain] = &mut series[..] else { unreachable!() };
    for turn in (1..motet.values.len()).step_by(2) {
        std::mem::swap(&mut motet.values[turn], &mut plain.values[turn]);
        std::mem::swap(&mut motet.floors[turn], &mut plain.floors[turn]);
    }
    Ok([std::mem::take(motet), std::mem::take(plain)])
}

/// [`once`] for the engine's streams; what part of the payload went through shared memory is added to `shared`.
fn engine_once(
    bench: &Bench,
    program: &Program,
    turn: usize,
    arguments: &[String],
    shared: &mut Vec<f64>,
) -> Result<f64> {
    let timing = measure(program, arguments, &bench.cpus, bench.cpus.of(Placement::Two, turn))?;
    shared.extend(timing.shared);
    Ok(timing.median)
}

/// A remark for when a part of the payload went over TCP; that is the engine's decision, and seen in the figure.
fn by_wire(shared: &[f64]) -> String {
    let percent = Spread::of(shared).map(|s| s.over(0.01));
    percent.map_or(String::new(), |s| {
        format!("through shared memory: {:.0} % of the payload [{:.0} .. {:.0}]", s.median, s.min, s.max)
    })
}

/// Arguments of a call: size, time and whatever else.
fn call(bench: &Bench, size: usize, more: &[usize]) -> Vec<String> {
    [size, bench.ms].iter().chain(more).map(ToString::to_string).collect()
}

/// Bytes a second, in GB/s, from ns for one message.
fn rate(size: usize) -> impl Fn(&f64) -> f64 {
    move |ns| size as f64 / ns
}

/// Every value turned into a rate.
fn rates(series: &Series, size: usize) -> Series {
    Series { values: series.values.iter().map(rate(size)).collect(), floors: series.floors.clone() }
}

/// The repetitions that count against TCP, of the adapter and of TCP: those with a fast floor. Where there are fewer than `enough`, all
/// are shown, and the answer says that they do not count.
pub(crate) fn counted(enough: usize, motet: &Series, tcp: &Series) -> (Series, Series, bool) {
    let fast = motet.fast();
    if fast.len() >= enough.min(5) {
        (motet.at(&fast), tcp.at(&fast), true)
    } else {
        (motet.clone(), tcp.clone(), false)
    }
}

/// Of plain TCP on one CPU and on two, the placement that took less time, and its name.
pub(crate) fn better<'a>(one: &'a Series, two: &'a Series) -> (&'a Series, &'static str) {
    if median(&one.values) <= median(&two.values) { (one, "one CPU") } else { (two, "two CPUs") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_chosen_by_their_names_or_their_groups() {
        let of = |names: &[&str]| chosen(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        let ids = |names: &[&str]| of(names).unwrap().iter().map(|row| row.id).collect::<Vec<_>>();
        assert_eq!(ids(&["redis", "a"]), ["a", "redis"]);
        assert_eq!(ids(&["programs"]).len(), programs::ROWS.len());
        let all = ids(&[]);
        assert_eq!(all.len(), ROWS.len() + programs::ROWS.len());
        assert!(all.iter().enumerate().all(|(i, id)| !all[i + 1..].contains(id)), "{all:?}");
        assert!(of(&["redis", "nonsense"]).is_err());
    }
}
