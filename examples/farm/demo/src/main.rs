//! A parameter study as a farm: one master, a successor, and workers that come and go.
//!
//! ```text
//! farm run [--points N] [--workers N] [--kills N]   the whole study on this host; kills masters and workers, and checks that nothing was lost
//! farm master POINTS                                a master; prints its startpoint
//! farm successor STARTPOINT                         follows a master, and takes over when that is gone
//! farm worker STARTPOINT...                         works for the first of them that leads
//! ```
//!
//! `README.md` says how it works.
#![forbid(unsafe_code)]

mod master;
mod run;
mod study;
mod worker;

use anyhow::{Context, Result, bail};
use motet::node::Node;
use motet_rsr::{Options, Rsr};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

/// The longest wait for an answer. A peer that is gone is noticed at once.
const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["run", ref options @ ..] => run::run(options),
        ["master", points] => master::lead(points.parse().context("POINTS is a number")?),
        ["successor", start] => master::follow(start),
        ["worker", ref starts @ ..] if !starts.is_empty() => worker::work(starts),
        _ => bail!(
            "usage: farm run [--points N] [--workers N] [--kills N] | master POINTS | successor STARTPOINT | worker STARTPOINT..."
        ),
    }
}

/// A node that takes part in requests; other hosts reach it, too.
fn attach() -> Result<Rsr> {
    let node = Node::listen("", "0.0.0.0:0".parse()?).or_else(|_| Node::open(""))?;
    Ok(Rsr::attach(&Arc::new(node), Options::default())?)
}

/// Says a line to who has started this process.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush()); // who has started it may be gone
}
