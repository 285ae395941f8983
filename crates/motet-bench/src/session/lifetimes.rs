//! How long `motet up`, a program's start and the return of a gatekeeper that was killed take.

use super::scene::{Children, GROUP, Scene};
use crate::bench::{Bench, Measurement};
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::{Context, Result, ensure};
use motet_session::api::View;
use motet_sys::rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Members of the group that outlives its gatekeeper.
pub const MEMBERS: usize = 8;
/// Nothing takes so long.
pub const LIMIT: Duration = Duration::from_secs(30);

fn ms(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}

/// Part `up`.
pub fn up(bench: &Bench) -> Result<Vec<Line>> {
    let scene = Scene::down(bench)?;
    let timed = |words: &'static [&'static str], before: &'static [&'static str]| -> Measurement<'_> {
        let scene = &scene;
        Box::new(move |_| {
            if !before.is_empty() {
                scene.run(before)?;
            }
            let began = Instant::now();
            scene.run(words)?;
            Ok(ms(began))
        })
    };
    let series = bench.compare(bench.repetitions, false, &mut [timed(&["up"], &[]), timed(&["down"], &[])])?;
    Ok(vec![
        Line::new("up", "motet up, until the session is there")
            .figure(Quantity::of("one host", &series[0].values, Unit::Ms))
            .bound(Bound::AtMost(300.0)),
        Line::new("up", "motet down, without programs").figure(Quantity::of("one host", &series[1].values, Unit::Ms)),
    ])
}

/// Part `start`.
pub fn start(bench: &Bench) -> Result<Vec<Line>> {
    let (with, without) = (Scene::up(bench)?, Scene::down(bench)?);
    let count = if bench.quick { 10 } else { 30 };
    let timed = |scene: &Scene| -> Result<f64> {
        let began = Instant::now();
        for _ in 0..count {
            scene.run(&["run", "--", "true"])?;
        }
        Ok(ms(began) / f64::from(count))
    };
    // Both are measured twice, in turn: which one is first makes no difference.
    let mut measurements: [Measurement<'_>; 4] = [
        Box::new(|_| timed(&with)),
        Box::new(|_| timed(&without)),
        Box::new(|_| timed(&without)),
        Box::new(|_| timed(&with)),
    ];
    let series = bench.compare(bench.repetitions, false, &mut measurements)?;
    let both = |a: usize, b: usize| -> Vec<f64> {
        series[a].values.iter().zip(&series[b].values).map(|(a, b)| (a + b) / 2.0).collect()
    };
    let (ours, theirs) = (both(0, 3), both(1, 2));
    let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(with, without)| with / without).collect();
    Ok(vec![
        Line::new("start", "motet run -- true")
            .figure(Quantity::of("with a gatekeeper", &ours, Unit::Ms))
            .against(Quantity::of("without one", &theirs, Unit::Ms), &ratios)
            .nearly(Bound::AtMost(1.02)),
    ])
}

/// Part `killed`: after kill -9 the next command starts a gatekeeper, and the nodes attach again. Members exchange messages meanwhile.
pub fn killed(bench: &Bench) -> Result<Vec<Line>> {
    let scene = Scene::up(bench)?;
    let mut children = Children::default();
    for rank in 0..MEMBERS {
        let place = [rank, MEMBERS].map(|number| number.to_string());
        children.0.push(scene.worker(&["ring", &place[0], &place[1]], Stdio::piped())?);
    }
    wait_until_ready(&mut children)?;
    let correct = || -> Result<bool> {
        let groups: serde_json::Value = serde_json::from_str(&scene.run(&["--json", "groups", GROUP])?)?;
        let view: Option<View> = serde_json::from_value(groups[0]["view"].clone())?;
        Ok(view.is_some_and(|view| view.members.len() == MEMBERS))
    };
    let seconds = |_| -> Result<f64> {
        let gatekeeper = Pid::from_raw(scene.gatekeeper()? as i32).context("a process")?;
        kill_process(gatekeeper, Signal::KILL)?;
        let began = Instant::now();
        // A restarted gatekeeper knows the members from its journal; it is right once all have attached again.
        // A request that the end of the gatekeeper cuts off is no answer.
        while !correct().unwrap_or(false) || !all_attached(&scene).unwrap_or(false) {
            ensure!(began.elapsed() < LIMIT, "the directory does not come back");
        }
        Ok(began.elapsed().as_secs_f64())
    };
    let series = bench.compare(bench.of_programs, false, &mut [Box::new(seconds)])?;
    end_members(&mut children)?;
    Ok(vec![
        Line::new("killed", format!("kill -9 of the gatekeeper, until all {MEMBERS} nodes are attached again"))
            .figure(Quantity::of("no link broke", &series[0].values, Unit::Seconds))
            .bound(Bound::AtMost(2.0)),
    ])
}

/// Waits until all members have their circuit.
pub fn wait_until_ready(members: &mut Children) -> Result<()> {
    for child in &mut members.0 {
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().context("a pipe")?).read_line(&mut line)?;
        ensure!(line == "ready\n", "a member does not start");
    }
    Ok(())
}

/// Ends members that have exchanged messages all the time: each ends well if none was lost.
pub fn end_members(members: &mut Children) -> Result<()> {
    for child in &mut members.0 {
        child.stdin.take().context("a pipe")?.write_all(b"end\n")?;
    }
    let ended: Vec<bool> =
        members.0.iter_mut().map(|child| child.wait().is_ok_and(|status| status.success())).collect();
    ensure!(ended.into_iter().all(|well| well), "a link broke");
    Ok(())
}

/// Whether all members are attached, by the gatekeeper's counters.
pub fn all_attached(scene: &Scene) -> Result<bool> {
    Ok(scene.metric("motet_nodes_attached")? == MEMBERS as f64)
}
