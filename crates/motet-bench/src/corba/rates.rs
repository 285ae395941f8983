//! Rates of sequences over those of kernel TCP, the unix transport and the engine; the model; curves.

use super::figures::{deviation, each};
use super::raw_transports::RawTransport;
use super::sequences::{Call, MODELLED, SequenceTimes, TYPES};
use super::transports::{Ends, Transport, on};
use crate::bench::Series;
use crate::format::bytes;
use crate::place::Placement::Two;
use crate::report::{Bound, Curve, Line, Quantity, Unit};
use crate::stats::{Spread, median};

/// The rows of one size.
const ROW_BYTES: usize = 1 << 20;
const HUGE: usize = 64 << 20;

/// All lines.
pub fn lines(ends: &Ends<'_>, all: &[SequenceTimes]) -> Vec<Line> {
    let mut lines = Vec::new();
    for adapter in Transport::ADAPTERS {
        if let Some(why) = ends.missing(adapter) {
            lines.push(Line::not_measured("rate", format!("sequences and strings, {}", adapter.name()), why));
            continue;
        }
        for kind in TYPES {
            let of = |size| all.iter().find(|measured| measured.kind == kind && measured.size == size);
            lines.extend(of(ROW_BYTES).into_iter().flat_map(|measured| there_and_back(measured, adapter)));
            lines.extend(
                of(HUGE).and_then(|measured| against(measured, adapter, Transport::Tcp, Call::InOut, Some(3.0))),
            );
        }
        for kind in TYPES {
            let of = all.iter().filter(|measured| measured.kind == kind && measured.size == ROW_BYTES);
            lines.extend(of.flat_map(|measured| {
                [Call::In, Call::Out, Call::Refill]
                    .into_iter()
                    .filter_map(|call| against(measured, adapter, Transport::Tcp, call, None))
            }));
        }
    }
    for measured in
        all.iter().filter(|measured| [65536, ROW_BYTES].contains(&measured.size) && MODELLED.contains(&measured.kind))
    {
        lines.extend(
            [Transport::Tcp, Transport::Sockets, Transport::Corba]
                .into_iter()
                .filter_map(|transport| modelled(measured, transport)),
        );
    }
    lines.extend(copying(all));
    lines
}

/// Lines of calls there and back at 1 MiB, with their targets.
fn there_and_back(measured: &SequenceTimes, adapter: Transport) -> Vec<Line> {
    let call = Call::InOut;
    let plain = ["long", "double", "octet"].contains(&measured.kind);
    let beside_unix = (measured.kind == "struct").then_some(2.2);
    let mut lines = Vec::new();
    lines.extend(against(measured, adapter, Transport::Tcp, call, plain.then_some(5.0)));
    lines.extend(against(measured, adapter, Transport::Unix, call, beside_unix));
    if let (true, Some(ours), Some(engine)) =
        (plain, measured.rate(adapter, call), measured.net(RawTransport::Engine, Two))
    {
        lines.push(
            Line::new("rate", format!("{}, beside a ping-pong of the engine", title(measured, call, adapter)))
                .figure(Quantity::of("D", &ours.values, Unit::GBs))
                .floors(&ours.floors)
                .against(
                    Quantity::of("engine, fresh memory at the server", &engine, Unit::GBs),
                    &each([&ours.values, &engine], |[a, b]| a / b),
                )
                .bound(Bound::AtLeast(0.97)),
        );
    }
    lines
}

fn title(measured: &SequenceTimes, call: Call, transport: Transport) -> String {
    format!("{}, {}, {}, {}", measured.kind, bytes(measured.size), call.name(), transport.name())
}

/// The line of an adapter over another transport.
fn against(
    measured: &SequenceTimes,
    adapter: Transport,
    other: Transport,
    call: Call,
    bound: Option<f64>,
) -> Option<Line> {
    let (ours, theirs) = (measured.rate(adapter, call)?, measured.rate(other, call)?);
    let name = format!("{}, {}", other.name(), on(measured.placement(other)?));
    let line = Line::new("rate", title(measured, call, adapter))
        .figure(Quantity::of("D", &ours.values, Unit::GBs))
        .floors(&ours.floors)
        .against(Quantity::of(name, &theirs.values, Unit::GBs), &ours.over(&theirs));
    Some(match bound {
        Some(bound) => line.bound(Bound::AtLeast(bound)),
        None => line,
    })
}

/// The line of the measured rate over that of the model. An ORB that copies does one step after the other and should be near the
/// model. One that passes the data to the transport in place should exceed it.
fn modelled(measured: &SequenceTimes, transport: Transport) -> Option<Line> {
    let (found, expected) = (measured.rate(transport, Call::InOut)?, measured.model(transport)?);
    let [encode, decode] = measured.marshalling();
    let net = measured.net(RawTransport::under(transport)?, measured.placement(transport)?)?;
    let ratios = each([&found.values, &expected], |[found, expected]| found / expected);
    let bound = if measured.kind == "struct" { Bound::Within(0.15) } else { Bound::AtLeast(1.0) };
    Some(
        Line::new("model", title(measured, Call::InOut, transport))
            .figure(Quantity::of("D", &found.values, Unit::GBs))
            .floors(&found.floors)
            .against(Quantity::of("model", &expected, Unit::GBs), &ratios)
            .with_motet(transport.with_motet())
            .bound(bound)
            .note(format!(
                "{:+.0} %; encode {:.2}, transport {:.2}, decode {:.2} GB/s",
                deviation(median(&found.values), median(&expected)),
                median(&encode),
                median(&net),
                median(&decode)
            )),
    )
}

/// Lines of the type that is copied over the type that is passed in place, on each transport.
fn copying(all: &[SequenceTimes]) -> Vec<Line> {
    let of = |kind: &str| all.iter().find(|measured| measured.kind == kind && measured.size == ROW_BYTES);
    let [Some(structs), Some(octets)] = MODELLED.map(of) else { return Vec::new() };
    let line = |transport: Transport| {
        let (copied, handed) = (structs.rate(transport, Call::InOut)?, octets.rate(transport, Call::InOut)?);
        let ratios = each([&copied.values, &handed.values], |[a, b]| a / b);
        Some(
            Line::new(
                "copying",
                format!("struct beside octet, {}, there and back, {}", bytes(ROW_BYTES), transport.name()),
            )
            .figure(Quantity::of("struct", &copied.values, Unit::GBs))
            .floors(&copied.floors)
            .against(Quantity::of("octet", &handed.values, Unit::GBs), &ratios)
            .with_motet(transport.with_motet()),
        )
    };
    Transport::ALL.into_iter().filter_map(line).collect()
}

/// All curves: the rate of each transport for each type and call; for octets there and back also the time, and the raw transports.
pub fn curves(all: &[SequenceTimes]) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    let mut add = |plot: String, name: &str, unit: Unit, size: usize, values: &[f64]| {
        let Some(spread) = Spread::of(values) else { return };
        match curves.iter_mut().find(|curve| curve.plot == plot && curve.name == name) {
            Some(curve) => curve.points.push((size, spread)),
            None => curves.push(Curve { plot, name: name.to_owned(), unit, points: vec![(size, spread)] }),
        }
    };
    for measured in all {
        let (kind, size) = (measured.kind, measured.size);
        for transport in Transport::ALL {
            for call in Call::ALL {
                let rate = measured.rate(transport, call);
                let values = rate.map_or(Vec::new(), |Series { values, .. }| values);
                add(format!("corba-rate-{kind}-{}", call.word()), transport.name(), Unit::GBs, size, &values);
            }
            if let Some(time) = measured.time(transport, Call::InOut) {
                add(format!("corba-time-{kind}-inout"), transport.name(), Unit::Ns, size, &time.values);
            }
        }
        for (raw, name) in [(RawTransport::Engine, ENGINE), (RawTransport::Mpi, "a ping-pong of Open MPI")] {
            if let (true, Some(one_way)) = (kind == "octet", measured.alone(raw, Two)) {
                let trip: Vec<f64> = one_way.values.iter().map(|ns| ns * 2.0).collect();
                add("corba-time-octet-inout".to_owned(), name, Unit::Ns, size, &trip);
            }
            if let Some(net) = measured.net(raw, Two) {
                add(format!("corba-rate-{kind}-inout"), name, Unit::GBs, size, &net);
            }
        }
        for (values, name) in measured.marshalling().iter().zip(["encode", "decode"]) {
            add(format!("corba-marshalling-{kind}"), name, Unit::GBs, size, values);
        }
    }
    curves
}

const ENGINE: &str = "the engine's own ping-pong, fresh memory at the server";
