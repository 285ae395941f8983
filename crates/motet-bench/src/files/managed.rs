//! Programs that manage their own reads and writes (`docs/files-api.md`), beside a mounted file system, the preload object, and one request at a time.

use super::scene::{FILE_BYTES, Scene, Way, ask};
use crate::bench::{Bench, Measurement, Series};
use crate::format::bytes;
use crate::pair::Process;
use crate::report::{Bound, Line, Quantity, Unit};
use crate::worker::managed_depth;
use anyhow::Result;
use std::cell::RefCell;

/// How many times as fast as reads of a mounted file system those of a completion queue are at least.
const LEAST_OVER_MOUNT: f64 = 1.25;
/// How many times as fast as a thread that registers memory at each request a completion queue is at least.
const LEAST_OVER_THREAD: f64 = 1.4;
/// Bytes of the requests with a target.
const SIZE: usize = 64 << 10;

/// Where the mean is in a worker's answer.
const MEAN: usize = 1;

/// A worker and what it is asked.
type Asked<'a> = (&'a RefCell<Process>, &'a str, usize);

/// Part `managed`. The processes run on any CPU: a mounted file system has three of them.
pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    let scene = Scene::new(bench)?;
    let _servers = [scene.serve(bench, Way::Messages, None)?, scene.serve(bench, Way::Direct, None)?];
    let (data, file_bytes) = (scene.data().display().to_string(), FILE_BYTES.to_string());
    let start = |words: &[&str]| Ok::<_, anyhow::Error>(RefCell::new(scene.worker(bench, words, None)?));
    let messages = start(&["managed", "messages", Way::Messages.export(), &file_bytes])?;
    let direct = start(&["managed", "direct", Way::Direct.export(), &file_bytes])?;
    let single = start(&["client", "messages", Way::Messages.export(), &file_bytes])?;
    let local = start(&["client", "local", &data, &file_bytes])?;
    let mut lines = queue_and_batches(bench, &messages, &single)?;
    lines.extend(registration(bench, &messages, &single)?);
    match scene.mount(bench, Way::Messages) {
        Ok(mount) => {
            let mounted = start(&["client", "uncached", &mount.folder.display().to_string(), &file_bytes])?;
            let series = compare(bench, &[(&messages, "queue-read", SIZE), (&mounted, "random-read", SIZE)])?;
            lines.push(
                line(
                    SIZE,
                    "random read",
                    ("completion queue, by messages", &series[0]),
                    ("mounted, O_DIRECT", &series[1]),
                )
                .bound(Bound::AtLeast(LEAST_OVER_MOUNT)),
            );
            drop(mounted); // it keeps the mount busy
        }
        Err(error) => lines.push(Line::not_measured("managed", "beside a mount", format!("{error:#}"))),
    }
    let prefix = scene.path("prefix").display().to_string();
    let preloaded = scene.preloaded(bench, &prefix, &["client", "local", &prefix, &file_bytes]);
    // It answers if `motet run` has started it.
    let preloaded = preloaded.and_then(|mut worker| {
        ask(&mut worker, "stat 1 1")?;
        Ok(RefCell::new(worker))
    });
    let mut asked = vec![(&direct, "queue-read", SIZE), (&direct, "batch-read", SIZE), (&local, "random-read", SIZE)];
    asked.extend(preloaded.as_ref().ok().map(|worker| (worker, "random-read", SIZE)));
    let series = compare(bench, &asked)?;
    for (at, how) in [(0, "completion queue, the directory itself"), (1, "batches, the directory itself")] {
        let beside = if series.len() > 3 { ("preload", &series[3]) } else { ("local tmpfs", &series[2]) };
        lines.push(line(SIZE, "random read", (how, &series[at]), beside));
    }
    if let Err(error) = preloaded {
        lines.push(Line::not_measured("managed", "beside the preload object", format!("{error:#}")));
    }
    Ok(lines)
}

/// Many requests under way, and batches, over one request at a time.
fn queue_and_batches(bench: &Bench, messages: &RefCell<Process>, single: &RefCell<Process>) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for size in [4 << 10, SIZE] {
        let asked = [
            (messages, "queue-read", size),
            (messages, "batch-read", size),
            (single, "random-read", size),
            (messages, "queue-write", size),
            (single, "write", size),
        ];
        let series = compare(bench, &asked)?;
        let alone = "one at a time, by messages";
        lines.push(line(size, "random read", ("completion queue, by messages", &series[0]), (alone, &series[2])));
        lines.push(line(size, "random read", ("batches, by messages", &series[1]), (alone, &series[2])));
        lines.push(line(size, "write", ("completion queue, by messages", &series[3]), (alone, &series[4])));
    }
    Ok(lines)
}

/// What registrations cost that are made at each request, although no way of Motet to files needs them.
fn registration(bench: &Bench, messages: &RefCell<Process>, single: &RefCell<Process>) -> Result<Vec<Line>> {
    let asked = [
        (messages, "queue-read", SIZE),
        (messages, "thread-read", SIZE),
        (messages, "register", SIZE),
        (single, "random-read", SIZE),
    ];
    let series = compare(bench, &asked)?;
    let by_thread = ("registered at each request by a thread", &series[1]);
    let shares: Vec<f64> = series[2].values.iter().zip(&series[3].values).map(|(one, other)| one / other).collect();
    Ok(vec![
        line(SIZE, "random read", ("completion queue, nothing registered", &series[0]), by_thread)
            .bound(Bound::AtLeast(LEAST_OVER_THREAD)),
        Line::new("managed", format!("registration of {} and its end", bytes(SIZE)))
            .figure(Quantity::of("time", &series[2].values, Unit::Ns))
            .floors(&series[2].floors)
            .against(Quantity::of("a read by messages", &series[3].values, Unit::Ns), &shares),
    ])
}

/// Mean times of one operation, ns. Completions of a queue come several at once, so the median over a few of them says nothing.
fn compare(bench: &Bench, asked: &[Asked<'_>]) -> Result<Vec<Series>> {
    let mut measurements: Vec<Measurement<'_>> = asked
        .iter()
        .map(|&(worker, operation, size)| -> Measurement<'_> {
            let question = format!("{operation} {size} {}", bench.ms);
            Box::new(move |_| Ok(ask(&mut worker.borrow_mut(), &question)?[MEAN]))
        })
        .collect();
    bench.compare(bench.repetitions, false, &mut measurements)
}

/// A line of rates, from times of one operation in ns.
fn line(size: usize, what: &str, (name, times): (&str, &Series), (beside, reference): (&str, &Series)) -> Line {
    let (rate, unit): (fn(usize, f64) -> f64, Unit) =
        if size > 4 << 10 { (|size, ns| size as f64 / ns, Unit::GBs) } else { (|_, ns| 1e9 / ns, Unit::PerSecond) };
    let rates = |series: &Series| series.values.iter().map(|&ns| rate(size, ns)).collect::<Vec<f64>>();
    Line::new("managed", format!("{} {what}, {} under way or in a batch", bytes(size), managed_depth(size)))
        .figure(Quantity::of(name, &rates(times), unit))
        .floors(&times.floors)
        .against(Quantity::of(beside, &rates(reference), unit), &reference.over(times))
}
