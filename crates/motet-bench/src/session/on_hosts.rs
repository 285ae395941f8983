//! A session of eight test hosts: how long it takes to begin, to know of a node that joins, and to be right again when a gatekeeper was killed.

use super::host_scene::{HOSTS, HostScene};
use super::lifetimes::{LIMIT, end_members, wait_until_ready};
use super::scene::{Children, GROUP};
use crate::bench::{Bench, Measurement};
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::{Context, Result, ensure};
use motet_sys::rustix::process::{Signal, kill_process};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::process::Child;
use std::time::Instant;

/// Nodes that join in a repetition.
const JOINS: usize = 20;

/// Part `up-hosts`.
pub fn up(bench: &Bench) -> Result<Vec<Line>> {
    let scene = HostScene::down(bench)?;
    let seconds = |_| -> Result<f64> {
        let began = Instant::now();
        scene.begin()?;
        let taken = began.elapsed().as_secs_f64();
        scene.run(HOSTS[0], &["down"])?;
        Ok(taken)
    };
    let series = bench.compare(bench.of_programs, false, &mut [Box::new(seconds)])?;
    Ok(vec![
        Line::new("up-hosts", format!("motet up --hosts, until the session is on {} test hosts", HOSTS.len()))
            .figure(Quantity::of("with an agent in Python", &series[0].values, Unit::Seconds))
            .bound(Bound::AtMost(3.0)),
    ])
}

/// Part `join-hosts`: a member on each host notes when it gets a view, and one host has nodes that join.
pub fn join(bench: &Bench) -> Result<Vec<Line>> {
    let scene = HostScene::up(bench)?;
    let size = HOSTS.len().to_string();
    let latest = |_| -> Result<f64> {
        let mut witnesses = Children::default();
        for host in &HOSTS[1..] {
            witnesses.0.push(scene.worker(host, &["witness", "1", &size])?);
        }
        let mut visitors = Children(vec![scene.worker(HOSTS[0], &["visit", "0", &size, &JOINS.to_string()])?]);
        let visits = numbers(&mut visitors.0[0])?;
        ensure!(visitors.0[0].wait()?.success(), "the nodes that join have failed");
        let mut seen: HashMap<u64, Vec<u64>> = HashMap::new();
        for mut witness in std::mem::take(&mut witnesses.0) {
            drop(witness.stdin.take());
            for [view, at] in numbers(&mut witness)?.as_chunks().0 {
                seen.entry(*view).or_default().push(*at);
            }
            ensure!(witness.wait()?.success(), "a member has failed");
        }
        let taken = visits.as_chunks::<3>().0.iter().map(|[view, began, own]| {
            let others =
                seen.get(view).filter(|all| all.len() == HOSTS.len() - 1).context("a member has missed a view")?;
            Ok((others.iter().chain([own]).max().context("members")? - began) as f64 / 1e6)
        });
        Ok(crate::stats::median(&taken.collect::<Result<Vec<_>>>()?))
    };
    let series = bench.compare(bench.of_programs, false, &mut [Box::new(latest)])?;
    Ok(vec![
        Line::new("join-hosts", "a node attaches and joins, until it and a member on each host have the view")
            .figure(Quantity::of(format!("{} test hosts, median of {JOINS}", HOSTS.len()), &series[0].values, Unit::Ms))
            .bound(Bound::AtMost(50.0)),
    ])
}

/// Part `killed-hosts`: members on all hosts exchange messages while gatekeepers are killed.
pub fn killed(bench: &Bench) -> Result<Vec<Line>> {
    let scene = HostScene::up(bench)?;
    let mut members = Children::default();
    for (rank, host) in HOSTS.iter().enumerate() {
        members.0.push(scene.worker(host, &["ring", &rank.to_string(), &HOSTS.len().to_string()])?);
    }
    wait_until_ready(&mut members)?;
    let right = || scene.is_right(GROUP).unwrap_or(false); // a request that the end of a gatekeeper cuts off is no answer
    let killed = |host: &'static str| -> Measurement<'_> {
        let (scene, right) = (&scene, &right);
        Box::new(move |_| {
            let gatekeeper = scene.gatekeeper(host)?;
            let began = Instant::now();
            kill_process(gatekeeper, Signal::KILL)?;
            scene.run(host, &["groups"])?; // the next command starts another one
            while !right() {
                ensure!(began.elapsed() < LIMIT, "the directory does not come back");
            }
            Ok(began.elapsed().as_secs_f64())
        })
    };
    let series = bench.compare(bench.of_programs, false, &mut [killed(HOSTS[0]), killed(HOSTS[1])])?;
    end_members(&mut members)?;
    let line = |which: &str, values: &[f64]| {
        let what = format!("kill -9 of {which} gatekeeper, until {} hosts and their nodes are back", HOSTS.len());
        Line::new("killed-hosts", what)
            .figure(Quantity::of("no link broke", values, Unit::Seconds))
            .bound(Bound::AtMost(2.0))
            .note("with the next command, which starts another one, by an agent in Python")
    };
    Ok(vec![line("the primary", &series[0].values), line("a secondary", &series[1].values)])
}

/// The numbers that a worker prints until it ends its output.
fn numbers(child: &mut Child) -> Result<Vec<u64>> {
    let mut text = String::new();
    let mut output = BufReader::new(child.stdout.take().context("a pipe")?);
    output.fill_buf()?;
    output.read_to_string(&mut text)?;
    text.split_whitespace().map(|word| word.parse().with_context(|| format!("`{word}` is no number"))).collect()
}
