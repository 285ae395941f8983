//! Times of calls with sequences and strings of every type over their sizes. [`super::rates`] makes lines and curves of them.
//!
//! There is one comparison for each type and size: every transport answers the empty call and the four calls, one caller also
//! marshals in its own process, and the raw transports take part where the model needs them.

use super::raw_transports::{RawTransport, RawTransports};
use super::transports::{Answers, Ends, Transport};
use super::{figures, figures::each};
use crate::bench::{Bench, Measurement, Series};
use crate::place::Placement::{self, Two};
use anyhow::Result;
use std::cell::RefCell;

/// What is sent.
pub const TYPES: [&str; 5] = ["long", "double", "octet", "struct", "string"];
/// The types that the model is applied to: omniORB copies one element by element, and passes the other to the transport in place.
pub const MODELLED: [&str; 2] = ["struct", "octet"];
/// Marshalling without a call, in the process of the caller.
const MARSHALLING: [&str; 2] = ["encode", "decode"];
/// The size of a message that counts as empty in the rate of a raw transport.
const NOTHING: usize = 8;

/// A call with data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// There and back, into memory that the caller has (a string always arrives in new memory).
    InOut,
    /// There.
    In,
    /// Back, into new memory.
    Out,
    /// Back, into memory that the caller has.
    Refill,
}

impl Call {
    /// All calls, in the order in which they are measured after the empty call.
    pub const ALL: [Call; 4] = [Call::InOut, Call::In, Call::Out, Call::Refill];

    /// The word of `tests/bench/corba.cc` for it.
    pub fn word(self) -> &'static str {
        ["inout", "in", "out", "refill"][self.at() - 1]
    }

    /// Its name in lines.
    pub fn name(self) -> &'static str {
        ["there and back", "there", "back, fresh memory", "back, warm memory"][self.at() - 1]
    }

    /// How many times the data are sent.
    pub fn ways(self) -> usize {
        if self == Call::InOut { 2 } else { 1 }
    }

    fn at(self) -> usize {
        Call::ALL.iter().position(|&call| call == self).unwrap_or(0) + 1
    }
}

/// The times of one type at one size.
pub struct SequenceTimes {
    /// The type.
    pub kind: &'static str,
    /// Bytes of its data in memory, as requested.
    pub size: usize,
    answers: Answers,
    mpi: bool,
}

/// The sizes of a run.
pub fn sizes(quick: bool) -> Vec<usize> {
    if quick { vec![64, 4096, 65536, 1 << 20, 16 << 20] } else { (2..=26).step_by(2).map(|bits| 1 << bits).collect() }
}

/// The length of a measurement with calls of this size, ms: longer for the largest, so that there are several.
pub fn milliseconds(bench: &Bench, size: usize) -> usize {
    bench.ms * if size >= 4 << 20 { 5 } else { 1 }
}

/// Measures one type at one size.
pub fn measure(
    ends: &Ends<'_>,
    raw_transports: &RawTransports<'_>,
    kind: &'static str,
    size: usize,
) -> Result<SequenceTimes> {
    let bench = ends.sandbox.bench;
    let question = |word: &str| format!("{word} {kind} {size} {}", milliseconds(bench, size));
    let calls = if kind == "string" { &Call::ALL[..3] } else { &Call::ALL };
    let questions: Vec<String> =
        ["null"].into_iter().chain(calls.iter().map(|call| call.word())).map(question).collect();
    let local = RefCell::new(ends.caller((Transport::Tcp, Two))?);
    let mut others: Vec<Measurement<'_>> = Vec::new();
    for word in MARSHALLING {
        let (local, question) = (&local, question(word));
        others.push(Box::new(move |_| Ok(figures::parse(&local.borrow_mut().line(&question)?)?.median)));
    }
    let mpi = kind == "octet";
    if kind != "string" {
        others.extend(raw_transports.measurements(NOTHING, mpi));
        others.extend(raw_transports.measurements(size, mpi));
    }
    let answers = ends.compare((bench.of_programs, false), ends.places(false), &questions, others)?;
    Ok(SequenceTimes { kind, size, answers, mpi })
}

impl SequenceTimes {
    /// Bytes of the data, rounded to whole elements.
    fn bytes(&self) -> usize {
        let element = match self.kind {
            "long" => 4,
            "double" => 8,
            "struct" => 24,
            _ => 1,
        };
        (self.size / element).max(1) * element
    }

    /// The placement that counts: two CPUs for an adapter, the better one for a transport of the kernel.
    pub fn placement(&self, transport: Transport) -> Option<Placement> {
        if Transport::ADAPTERS.contains(&transport) {
            Some(Two)
        } else {
            self.answers.better(transport, Call::InOut.at())
        }
    }

    /// The times of a call, ns.
    pub fn time(&self, transport: Transport, call: Call) -> Option<&Series> {
        let place = (transport, self.placement(transport)?);
        Some(&self.answers.of(place, call.at())?.median)
    }

    /// D of a call, GB/s.
    pub fn rate(&self, transport: Transport, call: Call) -> Option<Series> {
        let (time, null) =
            (self.time(transport, call)?, &self.answers.of((transport, self.placement(transport)?), 0)?.median);
        let bytes = self.bytes() * call.ways();
        let values = each([&time.values, &null.values], |[call, null]| figures::rate(bytes, call, null));
        Some(Series { values, floors: time.floors.clone() })
    }

    /// The rates of encoding to CDR, and of decoding into a new object, GB/s.
    pub fn marshalling(&self) -> [Vec<f64>; 2] {
        [0, 1].map(|at| self.answers.others[at].values.iter().map(|ns| self.bytes() as f64 / ns).collect())
    }

    /// One way of as many bytes over a raw transport, ns.
    pub fn alone(&self, raw: RawTransport, placement: Placement) -> Option<&Series> {
        RawTransports::of(
            self.answers.others.get(MARSHALLING.len() + RawTransports::count(self.mpi)..)?,
            raw,
            placement,
        )
    }

    /// The rate of a raw transport: D of its ping-pong, GB/s.
    pub fn net(&self, raw: RawTransport, placement: Placement) -> Option<Vec<f64>> {
        let nothing = RawTransports::of(self.answers.others.get(MARSHALLING.len()..)?, raw, placement)?;
        let all = self.alone(raw, placement)?;
        Some(each([&all.values, &nothing.values], |[all, nothing]| figures::rate(self.size, all, nothing)))
    }

    /// The rate of a call there and back by the model, GB/s.
    pub fn model(&self, transport: Transport) -> Option<Vec<f64>> {
        let net = self.net(RawTransport::under(transport)?, self.placement(transport)?)?;
        let [encode, decode] = self.marshalling();
        Some(each([&encode, &net, &decode], |[encode, net, decode]| figures::model(encode, net, decode)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_words_and_positions() {
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
