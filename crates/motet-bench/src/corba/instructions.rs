//! Instructions of an empty call, counted by valgrind's callgrind: those of the ORB without Motet, and those that Motet adds.
//!
//! Both ends run under callgrind, once with few and once with many calls. The difference is of the calls only, as start, connection
//! and exit are equal. It counts what all threads execute in user space: neither the kernel nor time. An end that waits for its peer
//! in shared memory spins, the longer the slower both ends are, so instructions of the engine's spin are reported separately. With
//! `MOTET_SPIN=0` no thread spins and every wait is a system call.

use super::transports::{Ends, Transport};
use crate::report::{Bound, Line, Quantity, Unit, WithMotet};
use crate::stats::median;
use anyhow::{Context, Result, bail};
use motet_programs::find;
use std::collections::{BTreeMap, HashMap};

const ROW: &str = "instructions";
const TOOL: &str = "valgrind";
/// Calls of the two runs. Streams are upgraded and warm long before the smaller number is reached.
const CALLS: [usize; 2] = [500, 2500];
/// Repetitions; a quick run makes one. The counts vary by a few percent: a wait may end in the kernel, and an ORB has timers.
const REPETITIONS: usize = 3;
/// The symbol of the engine's function that spins.
const WAIT: &str = "motet_proto::stream::spin::spin";
/// A long spin: under valgrind an end takes many times as long to answer.
const SPINNING: (&str, &str) = ("MOTET_SPIN", "50ms");
const SLEEPING: (&str, &str) = ("MOTET_SPIN", "0");

/// The lines of the part.
pub fn measure(ends: &Ends<'_>) -> Result<Vec<Line>> {
    find(TOOL).with_context(|| format!("skipped: {TOOL} is not installed"))?;
    ends.sandbox.shared(); // drops the reports of earlier programs
    let repetitions = if ends.sandbox.bench.quick { 1 } else { REPETITIONS };
    let mut ways = vec![(Transport::Tcp, SPINNING)];
    let adapters = Transport::ADAPTERS.into_iter().filter(|&adapter| ends.missing(adapter).is_none());
    ways.extend(adapters.flat_map(|adapter| [(adapter, SPINNING), (adapter, SLEEPING)]));
    let mut counts = vec![Vec::new(); ways.len()];
    let mut shared = vec![None; ways.len()];
    for _ in 0..repetitions {
        for (at, &(transport, spin)) in ways.iter().enumerate() {
            counts[at].push(of_a_call(ends, transport, spin).with_context(|| transport.name())?);
            shared[at] = ends.sandbox.shared();
        }
    }
    let own = &counts[0];
    let totals: Vec<f64> = own.iter().map(both).collect();
    let mut lines = vec![
        Line::new(ROW, "executed for an empty call without Motet, kernel TCP")
            .figure(Quantity::of("both ends", &totals, Unit::Instructions))
            .with_motet(WithMotet::Neither)
            .note(parts(own)),
    ];
    for (at, &(transport, spin)) in ways.iter().enumerate().skip(1) {
        let part = shared[at].unwrap_or(0.0) * 100.0;
        let line = added(transport, spin, own, &counts[at]);
        lines.push(line.note(format!("{part:.0} % of the bytes went through shared memory")));
    }
    for adapter in Transport::ADAPTERS {
        if let Some(why) = ends.missing(adapter) {
            lines.push(Line::not_measured(ROW, format!("added to an empty call, {}", adapter.name()), why));
        }
    }
    Ok(lines)
}

/// The line of the instructions that an adapter adds.
fn added(transport: Transport, spin: (&str, &str), own: &[[Count; 2]], counts: &[[Count; 2]]) -> Line {
    let waits = spin == SPINNING;
    let how = if waits { "waits not counted" } else { "every wait a system call" };
    let without: Vec<f64> = own.iter().map(both).collect();
    let more: Vec<f64> = counts.iter().zip(&without).map(|(with, without)| both(with) - without).collect();
    let ratios: Vec<f64> = more.iter().zip(&without).map(|(more, without)| more / without).collect();
    let line = Line::new(ROW, format!("added to an empty call, {}, {how}", transport.name()))
        .figure(Quantity::of("both ends", &more, Unit::Instructions))
        .against(Quantity::of("without Motet", &without, Unit::Instructions), &ratios)
        .note(parts(counts));
    if waits { line.bound(Bound::AtMost(0.1)) } else { line }
}

/// Instructions of one end.
#[derive(Debug, Clone, Default, PartialEq)]
struct Count {
    /// By object file, without waits.
    objects: BTreeMap<String, f64>,
    /// In waits.
    waiting: f64,
}

impl Count {
    fn total(&self) -> f64 {
        self.objects.values().sum()
    }

    /// The instructions of one call, from counts with the larger and the smaller number of calls (`fewer`). Waits are those of the longer
    /// run, as the first wait of the server also covers the start of the client.
    fn less(mut self, fewer: &Self) -> Self {
        let calls = (CALLS[1] - CALLS[0]) as f64;
        for object in fewer.objects.keys() {
            self.objects.entry(object.clone()).or_default();
        }
        for (object, count) in &mut self.objects {
            *count = (*count - fewer.objects.get(object).copied().unwrap_or(0.0)) / calls;
        }
        self.waiting /= CALLS[1] as f64;
        self
    }
}

fn both(ends: &[Count; 2]) -> f64 {
    ends.iter().map(Count::total).sum()
}

/// The instructions of each end by object file: medians, the largest first.
fn parts(counts: &[[Count; 2]]) -> String {
    let all =
        |end: usize, of: &dyn Fn(&Count) -> f64| median(&counts.iter().map(|ends| of(&ends[end])).collect::<Vec<_>>());
    let end = |(end, name): (usize, &str)| {
        let names = counts.iter().flat_map(|ends| ends[end].objects.keys());
        let each: BTreeMap<&String, f64> =
            names.map(|name| (name, all(end, &|count| count.objects.get(name).copied().unwrap_or(0.0)))).collect();
        let mut each: Vec<(&String, f64)> = each.into_iter().filter(|(_, count)| *count >= 10.0).collect();
        each.sort_by(|a, b| b.1.total_cmp(&a.1));
        let each: Vec<String> = each.iter().map(|(name, count)| format!("{name} {count:.0}")).collect();
        let waiting = all(end, &|count| count.waiting);
        let more = if waiting > 0.5 { format!(", and about {waiting:.0} in waits") } else { String::new() };
        format!("{name} {:.0} ({}){more}", all(end, &Count::total), each.join(", "))
    };
    [(0, "client"), (1, "server")].map(end).join("; ")
}

/// The instructions of client and server for one call.
fn of_a_call(ends: &Ends<'_>, transport: Transport, spin: (&str, &str)) -> Result<[Count; 2]> {
    let [few, many] = CALLS.map(|calls| counted(ends, transport, spin, calls));
    let ([client, server], [many_client, many_server]) = (few?, many?);
    if Transport::ADAPTERS.contains(&transport) && spin == SPINNING && (client.waiting == 0.0 || server.waiting == 0.0)
    {
        bail!("an end never waited in `{WAIT}`: is libmotet.so stripped of its symbols?");
    }
    Ok([many_client.less(&client), many_server.less(&server)])
}

/// Runs both ends with this many calls.
fn counted(ends: &Ends<'_>, transport: Transport, spin: (&str, &str), calls: usize) -> Result<[Count; 2]> {
    let files = ["client", "server"].map(|end| ends.sandbox.path(&format!("callgrind.{end}")));
    let log = format!("--log-file={}", ends.sandbox.path("valgrind.%p"));
    let tool = |file: &str| {
        let file = format!("--callgrind-out-file={file}");
        [TOOL, "--tool=callgrind", "--vgdb=no", &log, &file].map(str::to_owned)
    };
    let reported =
        ends.under(transport, &files.each_ref().map(|file| tool(file)), &[spin], &format!("null - 0 {calls}x"))?;
    if reported.trim() != calls.to_string() {
        bail!("the caller printed `{}`", reported.trim());
    }
    let [client, server] = files.map(|file| -> Result<Count> {
        let count = parse(&std::fs::read_to_string(&file).with_context(|| format!("{TOOL} wrote nothing"))?);
        std::fs::remove_file(file)?; // so that the next run cannot read this one
        if count.total() > 0.0 { Ok(count) } else { bail!("{TOOL} counted nothing") }
    });
    Ok([client?, server?])
}

/// Parses a callgrind profile (valgrind's manual, "Callgrind Format Specification"). Lines `KEY=(ID) NAME` set the current object and
/// function; later lines have the ID only. Other lines are a position and its cost. The line after `calls=` has the inclusive cost of
/// the callee, which is counted with the callee as well.
fn parse(text: &str) -> Count {
    let (mut objects, mut functions) = (HashMap::new(), HashMap::new());
    let (mut object, mut waits, mut callee) = ("", false, false);
    let mut count = Count::default();
    for line in text.lines() {
        match line.split_once('=') {
            Some(("ob", value)) => object = named(&mut objects, value),
            Some(("fn", value)) => waits = named(&mut functions, value).contains(WAIT),
            Some(("cob", value)) => drop(named(&mut objects, value)),
            Some(("cfn", value)) => drop(named(&mut functions, value)),
            Some(("calls", _)) => callee = true,
            _ if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) => {
                let cost = line.split(' ').nth(1).and_then(|cost| cost.parse().ok()).unwrap_or(0.0);
                // Callees of a wait (the clock, a poll of the kernel) belong to the wait. They are in the same library.
                if waits {
                    count.waiting += cost;
                }
                match (waits, std::mem::take(&mut callee)) {
                    (false, false) => *count.objects.entry(short(object)).or_default() += cost,
                    (true, true) => *count.objects.entry(short(object)).or_default() -= cost,
                    (true, false) | (false, true) => {}
                }
            }
            _ => {}
        }
    }
    count
}

/// The name in `(ID) NAME`, or the name of an ID that was defined before.
fn named<'t>(names: &mut HashMap<&'t str, &'t str>, value: &'t str) -> &'t str {
    match value.split_once(") ") {
        Some((id, name)) => {
            names.insert(id, name);
            name
        }
        None => names.get(value.trim_end_matches(')')).copied().unwrap_or_default(),
    }
}

/// The short name of an object file, as `libomniORB4`.
fn short(object: &str) -> String {
    let file = object.rsplit('/').next().unwrap_or(object);
    file.split(".so").next().unwrap_or(file).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_is_summed_by_object_without_waits() {
        let text = "events: Ir\nsummary: 68\n\nob=(1) /usr/lib/libomniORB4.so.2\nfl=(1) a.cc\nfn=(1) call\n10 7\n+1 3\ncob=(2) /x/libmotet.so\ncfn=(2) send\n\
            calls=1 5\n* 52\n\nob=(2)\nfn=(2)\n5 20\n-1 2\ncfn=(3) motet_proto::stream::spin::spin\ncalls=2 9\n* 30\n\nfn=(3)\n9 26\ncfn=(4) look\n\
            calls=1 3\n* 4\n\nfn=(4)\n3 4\n\ntotals: 62\n";
        let count = parse(text);
        assert_eq!(count.objects, BTreeMap::from([("libomniORB4".to_owned(), 10.0), ("libmotet".to_owned(), 22.0)]));
        assert_eq!(count.waiting, 30.0);
    }

    #[test]
    fn difference_of_runs_is_one_call() {
        let of =
            |a: f64, b: f64| Count { objects: BTreeMap::from([("a".to_owned(), a), ("b".to_owned(), b)]), waiting: a };
        let calls = (CALLS[1] - CALLS[0]) as f64;
        let difference = of(5.0 * calls + 3.0, 1.0).less(&of(3.0, 1.0));
        assert_eq!(difference.objects, of(5.0, 0.0).objects);
    }
}
