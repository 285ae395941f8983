//! A parameter study as a farm: one master, a successor, and workers that come and go.
//!
//! ```text
//! farm run [--points N] [--workers N] [--kills N]   the whole study on this host; kills masters and workers, and checks that nothing was lost
//! farm master POINTS [FILE]                         a master; writes its startpoint to a file, or to standard output
//! farm successor START [FILE]                       follows a master, and takes over when that is gone
//! farm worker START...                              works for the first of them that leads
//! ```
//!
//! START is a file with a startpoint, or `-`: lines of standard input up to an empty one.
//! `--at ADDRESS` before the word: the address by which other hosts reach this one; without it the processes of one host meet.
//! `README.md` says how it works.
#![forbid(unsafe_code)]

mod master;
mod run;
mod startpoints;
mod study;
mod worker;

use anyhow::{Context, Result, bail};
use motet::node::Node;
use motet_rsr::{Options, Rsr};
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The longest wait for an answer. A peer that is gone is noticed at once.
const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    if let ["--at", address, ..] = words[..] {
        let _ = AT.set(address.parse().context("--at needs an IP address")?);
        words.drain(..2);
    }
    match words[..] {
        ["run", ref options @ ..] => run::run(options),
        ["master", points, ref file @ ..] if file.len() <= 1 => {
            master::lead(points.parse().context("POINTS is a number")?, file.first().copied())
        }
        ["successor", start, ref file @ ..] if file.len() <= 1 => master::follow(start, file.first().copied()),
        ["worker", ref starts @ ..] if !starts.is_empty() => worker::work(starts),
        _ => bail!(
            "usage: farm [--at ADDRESS] run [--points N] [--workers N] [--kills N] | master POINTS [FILE] | successor START [FILE] | worker START...; \
             START: a file with a startpoint, or - for standard input"
        ),
    }
}

/// The address by which other hosts reach this one.
static AT: OnceLock<IpAddr> = OnceLock::new();

/// A node that takes part in requests; other hosts reach it, too, if this one's address was given.
fn attach() -> Result<Rsr> {
    let node = match AT.get() {
        Some(address) => Node::listen("", SocketAddr::new(*address, 0)),
        None => Node::open(""),
    }?;
    Ok(Rsr::attach(&Arc::new(node), Options::default())?)
}

/// Says a line to who has started this process.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush()); // who has started it may be gone
}
