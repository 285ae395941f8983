//! Tokens that go round among many processes: each receives from the one before it and sends to the next.
//!
//! `--worker node HOW ring PREFIX AT COUNT TOKENS MS` is one of COUNT processes, over nodes, or, where HOW is `unix`, over stream
//! sockets whose names begin with PREFIX. Each of the first TOKENS puts one token in. Number 0 measures the time between two
//! messages of the whole ring, ns.

use super::{SERVICE, TIMEOUT, open_named, serve_mode};
use crate::worker::measure;
use anyhow::{Context, Result, bail};
use motet::node::{Channel, Node};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Instant;

const SIZE: usize = 8;
/// Tokens that pass number 0 in a block.
const LAPS_PER_BLOCK: usize = 50;
const TOKEN: u8 = 0;
const END_OF_RUN: u8 = 1;

/// The connections to the next process, and from the previous one.
enum Ends {
    Node { node: Box<Node>, to: Channel, from: Channel },
    Unix { to: UnixStream, from: UnixStream },
}

impl Ends {
    fn join(how: &str, prefix: &str, at: usize, count: usize) -> Result<Self> {
        let name = |at: usize| format!("{prefix}-{}", at % count);
        if how == "unix" {
            let listener = UnixListener::bind(name(at))?;
            let begun = Instant::now();
            let to = loop {
                match UnixStream::connect(name(at + 1)) {
                    Ok(to) => break to,
                    Err(_) if begun.elapsed() < TIMEOUT => std::thread::sleep(std::time::Duration::from_millis(1)),
                    Err(error) => return Err(error).context("the next process is missing"),
                }
            };
            return Ok(Self::Unix { to, from: listener.accept()?.0 });
        }
        let node = Box::new(open_named(&name(at), how)?);
        node.serve(SERVICE, serve_mode(&node, how)?)?;
        let link = node.connect(&name(at + 1), Some(TIMEOUT))?;
        let to = node.open_channel(link, SERVICE, serve_mode(&node, how)?, Some(TIMEOUT))?;
        let from = node.accept(SERVICE, Some(TIMEOUT))?;
        Ok(Self::Node { node, to, from })
    }

    fn send(&mut self, token: u8) -> Result<()> {
        let data = [token; SIZE];
        match self {
            Self::Node { node, to, .. } => node.send(*to, 0, &data, None)?,
            Self::Unix { to, .. } => to.write_all(&data)?,
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<u8> {
        let mut data = [END_OF_RUN; SIZE];
        match self {
            Self::Node { node, from, .. } => drop(node.receive(*from, &mut data, None)?),
            Self::Unix { from, .. } => from.read_exact(&mut data)?,
        }
        Ok(data[0])
    }
}

/// One process of the ring. The numbers are its position, the number of processes, tokens and milliseconds.
pub fn run(how: &str, prefix: &str, numbers: Vec<usize>) -> Result<()> {
    let [at, count, tokens, ms] = numbers[..] else { bail!("a ring has four numbers") };
    let mut ends = Ends::join(how, prefix, at, count)?;
    println!("joined");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?; // until all have joined
    if at < tokens {
        ends.send(TOKEN)?;
    }
    if at > 0 {
        // Tokens that follow the last message are dropped, so that every token ends here or before.
        while ends.receive()? == TOKEN {
            ends.send(TOKEN)?;
        }
        ends.send(END_OF_RUN)?;
        return Ok(());
    }
    let result = measure(LAPS_PER_BLOCK, ms, count as f64, |laps| {
        (0..laps).try_for_each(|_| {
            ends.receive()?;
            ends.send(TOKEN)
        })
    })?;
    ends.send(END_OF_RUN)?;
    while ends.receive()? == TOKEN {}
    println!("{result}");
    Ok(())
}
