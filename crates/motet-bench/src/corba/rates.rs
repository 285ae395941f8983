//! What the sequences say: rates beside kernel TCP, the unix transport and the engine; the model; curves.

use super::figures::{deviation, each};
use super::paths::{Ends, Path, on};
use super::sequences::{Call, MODELLED, Measured, TYPES};
use super::wires::Wire;
use crate::bench::Series;
use crate::place::Placement::Two;
use crate::report::{Bound, Curve, Line, Quantity, Unit};
use crate::stats::{Spread, median};
use crate::table::bytes;

/// The rows of one size.
const LARGE: usize = 1 << 20;
const HUGE: usize = 64 << 20;

/// All lines.
pub fn lines(ends: &Ends<'_>, all: &[Measured]) -> Vec<Line> {
    let mut lines = Vec::new();
    for adapter in Path::ADAPTERS {
        if let Some(why) = ends.missing(adapter) {
            lines.push(Line::not_measured("rate", format!("sequences and strings, {}", adapter.name()), why));
            continue;
        }
        for kind in TYPES {
            let of = |size| all.iter().find(|measured| measured.kind == kind && measured.size == size);
            lines.extend(of(LARGE).into_iter().flat_map(|measured| there_and_back(measured, adapter)));
            lines.extend(of(HUGE).and_then(|measured| against(measured, adapter, Path::Tcp, Call::InOut, Some(3.0))));
        }
        for kind in TYPES {
            let of = all.iter().filter(|measured| measured.kind == kind && measured.size == LARGE);
            lines.extend(of.flat_map(|measured| {
                [Call::In, Call::Out, Call::Refill]
                    .into_iter()
                    .filter_map(|call| against(measured, adapter, Path::Tcp, call, None))
            }));
        }
    }
    for measured in
        all.iter().filter(|measured| [65536, LARGE].contains(&measured.size) && MODELLED.contains(&measured.kind))
    {
        lines.extend([Path::Tcp, Path::Sockets, Path::Corba].into_iter().filter_map(|path| modelled(measured, path)));
    }
    lines.extend(copying(all));
    lines
}

/// What is asked of calls there and back at 1 MiB.
fn there_and_back(measured: &Measured, adapter: Path) -> Vec<Line> {
    let call = Call::InOut;
    let plain = ["long", "double", "octet"].contains(&measured.kind);
    let beside_unix = (measured.kind == "struct").then_some(2.2);
    let mut lines = Vec::new();
    lines.extend(against(measured, adapter, Path::Tcp, call, plain.then_some(5.0)));
    lines.extend(against(measured, adapter, Path::Unix, call, beside_unix));
    if let (true, Some(ours), Some(engine)) = (plain, measured.rate(adapter, call), measured.net(Wire::Engine, Two)) {
        lines.push(
            Line::new("rate", format!("{}, beside the engine's own ping-pong", title(measured, call, adapter)))
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

fn title(measured: &Measured, call: Call, path: Path) -> String {
    format!("{}, {}, {}, {}", measured.kind, bytes(measured.size), call.name(), path.name())
}

/// An adapter beside another path.
fn against(measured: &Measured, adapter: Path, other: Path, call: Call, bound: Option<f64>) -> Option<Line> {
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

/// The measured rate beside the model's. A copying ORB does one thing after the other and must come near it; one that hands
/// the data over where they lie must exceed it.
fn modelled(measured: &Measured, path: Path) -> Option<Line> {
    let (found, expected) = (measured.rate(path, Call::InOut)?, measured.model(path)?);
    let [encode, decode] = measured.marshalling();
    let net = measured.net(Wire::under(path)?, measured.placement(path)?)?;
    let ratios = each([&found.values, &expected], |[found, expected]| found / expected);
    let bound = if measured.kind == "struct" { Bound::Within(0.15) } else { Bound::AtLeast(1.0) };
    Some(
        Line::new("model", title(measured, Call::InOut, path))
            .figure(Quantity::of("D", &found.values, Unit::GBs))
            .floors(&found.floors)
            .against(Quantity::of("model", &expected, Unit::GBs), &ratios)
            .with_motet(path.with_motet())
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

/// The copying type beside the one that is handed over, on each path.
fn copying(all: &[Measured]) -> Vec<Line> {
    let of = |kind: &str| all.iter().find(|measured| measured.kind == kind && measured.size == LARGE);
    let [Some(structs), Some(octets)] = MODELLED.map(of) else { return Vec::new() };
    let line = |path: Path| {
        let (copied, handed) = (structs.rate(path, Call::InOut)?, octets.rate(path, Call::InOut)?);
        let ratios = each([&copied.values, &handed.values], |[a, b]| a / b);
        Some(
            Line::new("copying", format!("struct beside octet, {}, there and back, {}", bytes(LARGE), path.name()))
                .figure(Quantity::of("struct", &copied.values, Unit::GBs))
                .floors(&copied.floors)
                .against(Quantity::of("octet", &handed.values, Unit::GBs), &ratios)
                .with_motet(path.with_motet()),
        )
    };
    Path::ALL.into_iter().filter_map(line).collect()
}

/// All curves: for each type and call the rate of each path, for octets there and back also the time, and what lies below.
pub fn curves(all: &[Measured]) -> Vec<Curve> {
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
        for path in Path::ALL {
            for call in Call::ALL {
                let rate = measured.rate(path, call);
                let values = rate.map_or(Vec::new(), |Series { values, .. }| values);
                add(format!("corba-rate-{kind}-{}", call.word()), path.name(), Unit::GBs, size, &values);
            }
            if let Some(time) = measured.time(path, Call::InOut) {
                add(format!("corba-time-{kind}-inout"), path.name(), Unit::Ns, size, &time.values);
            }
        }
        for (wire, name) in [(Wire::Engine, ENGINE), (Wire::Mpi, "Open MPI's own ping-pong")] {
            if let (true, Some(one_way)) = (kind == "octet", measured.alone(wire, Two)) {
                let trip: Vec<f64> = one_way.values.iter().map(|ns| ns * 2.0).collect();
                add("corba-time-octet-inout".to_owned(), name, Unit::Ns, size, &trip);
            }
            if let Some(net) = measured.net(wire, Two) {
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
