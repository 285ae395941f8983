//! Sequences and strings of every type over their sizes: how long each call takes, measured; what that means is [`super::rates`]'s.
//!
//! One contest for each type and size: every path answers the empty call and the four calls, one caller also marshals in its own
//! process, and where the model is asked for the transports take part alone.

use super::paths::{Answers, Ends, Path};
use super::wires::{Wire, Wires};
use super::{figures, figures::each};
use crate::bench::{Bench, Contestant, Series};
use crate::place::Placement::{self, Two};
use anyhow::Result;
use std::cell::RefCell;

/// What is sent.
pub const TYPES: [&str; 5] = ["long", "double", "octet", "struct", "string"];
/// Those whose rate is split by the model: omniORB copies one element by element, and hands the other to the transport where it lies.
pub const MODELLED: [&str; 2] = ["struct", "octet"];
/// Marshalling alone, in the caller's process.
const MARSHALLING: [&str; 2] = ["encode", "decode"];
/// A message that is taken for empty, where a transport's rate is computed.
const NOTHING: usize = 8;

/// A call with data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// There and back; at the caller into memory that it has (a string always arrives in new memory).
    InOut,
    /// There.
    In,
    /// Back, into new memory.
    Out,
    /// Back, into memory that the caller has.
    Refill,
}

impl Call {
    /// In the order in which they are asked, behind the empty call.
    pub const ALL: [Call; 4] = [Call::InOut, Call::In, Call::Out, Call::Refill];

    /// The word that `tests/bench/corba.cc` knows.
    pub fn word(self) -> &'static str {
        ["inout", "in", "out", "refill"][self.at() - 1]
    }

    /// For a reader.
    pub fn name(self) -> &'static str {
        ["there and back", "there", "back, fresh memory", "back, warm memory"][self.at() - 1]
    }

    /// How often the data travel.
    pub fn ways(self) -> usize {
        if self == Call::InOut { 2 } else { 1 }
    }

    fn at(self) -> usize {
        Call::ALL.iter().position(|&call| call == self).unwrap_or(0) + 1
    }
}

/// All that was measured of one type at one size.
pub struct Measured {
    /// The type.
    pub kind: &'static str,
    /// Bytes of its data in memory that were asked for.
    pub size: usize,
    answers: Answers,
    mpi: bool,
}

/// The sizes of a run.
pub fn sizes(quick: bool) -> Vec<usize> {
    if quick { vec![64, 4096, 65536, 1 << 20, 16 << 20] } else { (2..=26).step_by(2).map(|bits| 1 << bits).collect() }
}

/// How long to ask for calls of this size, ms: of the largest there are to be several.
pub fn patience(bench: &Bench, size: usize) -> usize {
    bench.ms * if size >= 4 << 20 { 5 } else { 1 }
}

/// Measures one type at one size.
pub fn measure(ends: &Ends<'_>, wires: &Wires<'_>, kind: &'static str, size: usize) -> Result<Measured> {
    let bench = ends.stage.bench;
    let question = |word: &str| format!("{word} {kind} {size} {}", patience(bench, size));
    let calls = if kind == "string" { &Call::ALL[..3] } else { &Call::ALL };
    let questions: Vec<String> =
        ["null"].into_iter().chain(calls.iter().map(|call| call.word())).map(question).collect();
    let local = RefCell::new(ends.caller((Path::Tcp, Two))?);
    let mut others: Vec<Contestant<'_>> = Vec::new();
    for word in MARSHALLING {
        let (local, question) = (&local, question(word));
        others.push(Box::new(move |_| Ok(figures::parse(&local.borrow_mut().line(&question)?)?.median)));
    }
    let mpi = kind == "octet";
    if kind != "string" {
        others.extend(wires.contestants(NOTHING, mpi));
        others.extend(wires.contestants(size, mpi));
    }
    let answers = ends.contest((bench.of_programs, false), ends.places(false), &questions, others)?;
    Ok(Measured { kind, size, answers, mpi })
}

impl Measured {
    /// Bytes of the data: whole elements.
    fn bytes(&self) -> usize {
        let element = match self.kind {
            "long" => 4,
            "double" => 8,
            "struct" => 24,
            _ => 1,
        };
        (self.size / element).max(1) * element
    }

    /// Where a path counts: an adapter with its ends on two CPUs, a path of the kernel's in its better placement.
    pub fn placement(&self, path: Path) -> Option<Placement> {
        if Path::ADAPTERS.contains(&path) { Some(Two) } else { self.answers.better(path, Call::InOut.at()) }
    }

    /// How long a call takes, ns.
    pub fn time(&self, path: Path, call: Call) -> Option<&Series> {
        let place = (path, self.placement(path)?);
        Some(&self.answers.of(place, call.at())?.median)
    }

    /// D of a call, GB/s.
    pub fn rate(&self, path: Path, call: Call) -> Option<Series> {
        let (time, null) = (self.time(path, call)?, &self.answers.of((path, self.placement(path)?), 0)?.median);
        let bytes = self.bytes() * call.ways();
        let values = each([&time.values, &null.values], |[call, null]| figures::rate(bytes, call, null));
        Some(Series { values, floors: time.floors.clone() })
    }

    /// At what rate data are written into the form of the wire, and read into a new object, GB/s.
    pub fn marshalling(&self) -> [Vec<f64>; 2] {
        [0, 1].map(|at| self.answers.others[at].values.iter().map(|ns| self.bytes() as f64 / ns).collect())
    }

    /// One way of as many bytes over a transport alone, ns.
    pub fn alone(&self, wire: Wire, placement: Placement) -> Option<&Series> {
        Wires::of(self.answers.others.get(MARSHALLING.len() + Wires::count(self.mpi)..)?, wire, placement)
    }

    /// The rate of a transport alone: D of its ping-pong, GB/s.
    pub fn net(&self, wire: Wire, placement: Placement) -> Option<Vec<f64>> {
        let nothing = Wires::of(self.answers.others.get(MARSHALLING.len()..)?, wire, placement)?;
        let all = self.alone(wire, placement)?;
        Some(each([&all.values, &nothing.values], |[all, nothing]| figures::rate(self.size, all, nothing)))
    }

    /// What the model lets expect of a call there and back, GB/s.
    pub fn model(&self, path: Path) -> Option<Vec<f64>> {
        let net = self.net(Wire::under(path)?, self.placement(path)?)?;
        let [encode, decode] = self.marshalling();
        Some(each([&encode, &net, &decode], |[encode, net, decode]| figures::model(encode, net, decode)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_their_words_and_questions_their_places() {
        assert_eq!(Call::ALL.map(Call::word), ["inout", "in", "out", "refill"]);
        assert_eq!(Call::ALL.map(Call::at), [1, 2, 3, 4]);
        assert_eq!(Call::ALL.map(Call::ways), [2, 1, 1, 1]);
    }

    #[test]
    fn sizes_reach_from_4_bytes_to_64_mebibytes() {
        let all = sizes(false);
        assert_eq!((all[0], all[all.len() - 1]), (4, 64 << 20));
        assert!(sizes(true).contains(&(1 << 20)) && all.contains(&(1 << 20)));
    }
}
