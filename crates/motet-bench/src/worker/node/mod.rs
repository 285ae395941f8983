//! Nodes as measuring programs: what messages cost a program.
//!
//! `--worker node HOW WHAT serve …` prints `port NAME`; `--worker node HOW WHAT call HOST NAME …` measures. HOW says how the server
//! receives, `queue`, `tagged` or `handler`, how many threads a node is for, `one` or `many`, and then, where it matters: `tcp` (over
//! TCP, and what is printed is a port), `sleep` (a wait sleeps at once) or `poll` (it never does). `turn` has both ends in one thread,
//! for counting instructions.
//!
//! | module | what it measures |
//! | --- | --- |
//! | [`pair`] | messages there and back, or one way, each by a call that waits |
//! | [`windows`] | one way, a window of messages at a time: the loops of `tests/bench/messages.h` |
//! | [`server`] | one server of many clients |
//! | [`layers`] | headers on a message, within its body, and in a message of their own |
//! | [`waits`] | waiting for one operation, for any, for a group; the same through a thread that dispatches |
//! | [`receptions`] | who receives: a thread that sleeps, the caller that polls, a thread that polls |
//! | [`crowd`] | a process with many silent peers or channels |
//! | [`ring`] | tokens that go round among many processes |

mod crowd;
mod layers;
mod pair;
mod receptions;
mod ring;
mod server;
mod waits;
mod windows;

pub use pair::both;

use super::number;
use anyhow::{Context, Result, bail};
use motet::node::{Channel, LinkId, Node, Serve, options};
use std::time::Duration;

/// Tags: one that is only received, one that is answered by as much, or by nothing, the last one.
const TAKE: u64 = 1;
const ANSWER: u64 = 2;
const CONFIRM: u64 = 3;
const END: u64 = 4;

const SERVICE: u64 = 1;
const PATIENCE: Duration = Duration::from_secs(10);
/// Longer than anything that is waited for, ns.
const POLL: u64 = 60_000_000_000;

/// Runs as the worker that these words, behind `node`, describe.
pub fn run(words: &[&str]) -> Result<()> {
    match *words {
        [how, "turn", size, count] => pair::turn(how, number(size)?, number(count)?),
        [how, "windows", "serve"] => windows::serve(how),
        [how, "windows", "call", host, port, size, ms] => {
            windows::call(how, [host, port], number(size)?, 1, number(ms)?)
        }
        [how, "cold", "serve"] => windows::serve(how),
        [how, "cold", "call", host, port, size, ms] => windows::call(how, [host, port], number(size)?, 4, number(ms)?),
        [how, "server", "serve", clients, size, ms] => server::serve(how, number(clients)?, number(size)?, number(ms)?),
        [how, "shares", "serve", clients, size, ms] => {
            server::shares(how, number(clients)?, number(size)?, number(ms)?)
        }
        [how, "server" | "shares", "call", host, port, size, _] => server::call(how, [host, port], number(size)?),
        [how, "layers", "turn", way, count] => layers::turn(how, way, number(count)?),
        [how, "layers", "serve"] => layers::serve(how),
        [how, "layers", "call", host, port, size, ms] => layers::call(how, [host, port], number(size)?, number(ms)?),
        [how, "receive", method, "serve"] => receptions::serve(how, method),
        [how, "crowd", "serve"] => crowd::hub(how),
        [how, "crowd", "call", host, port] => crowd::peers(how, host, port),
        [how, "ring", prefix, at, count, tokens, ms] => {
            ring::run(how, prefix, [at, count, tokens, ms].map(number).into_iter().collect::<Result<Vec<_>>>()?)
        }
        [how, "serve"] | [how, _, "serve"] => pair::serve(how),
        [how, what @ ("ping" | "rate" | "stream"), "call", host, port, size, ms] => {
            pair::call(how, what, [host, port], number(size)?, number(ms)?)
        }
        [how, wait, "call", host, port, _, ms] => waits::call(how, wait, [host, port], number(ms)?),
        _ => bail!("no such worker of nodes: {}", words.join(" ")),
    }
}

fn says(how: &str, word: &str) -> bool {
    how.split('-').any(|said| said == word)
}

/// A node as HOW says.
fn open(how: &str) -> Result<Node> {
    named("", how)
}

/// The same under a name.
fn named(name: &str, how: &str) -> Result<Node> {
    let mut options = options(name, None);
    if says(how, "tcp") {
        options.listen = Some(([0, 0, 0, 0], 0).into());
        options.drivers.retain(|driver| driver.name() == "tcp");
    }
    match () {
        () if says(how, "sleep") => options.spin = 0,
        () if says(how, "poll") => options.spin = POLL,
        () => {}
    }
    let node = if says(how, "one") { Node::single(&options) } else { Node::with(&options) };
    node.context("no node")
}

/// How a channel's messages are received.
fn reception(node: &Node, how: &str) -> Result<Serve> {
    Ok(if says(how, "tagged") { Serve::Tagged(node.context()?) } else { Serve::Queue })
}

/// Says where the node is.
fn tell(node: &Node, how: &str) -> Result<()> {
    if says(how, "tcp") {
        let address = node.address()?;
        let way = address.rsplit_once("tcp://").context("an address without a way over TCP")?.1;
        let (secret, place) = way.split_once('@').context("an address without a secret")?;
        println!("port {secret}@{}", place.rsplit_once(':').context("an address without a port")?.1);
    } else {
        println!("port {}", node.name()?);
    }
    Ok(())
}

/// A link to the node that has said so.
fn connect(node: &Node, how: &str, host: &str, port: &str) -> Result<LinkId> {
    let address = match port.split_once('@') {
        Some((secret, port)) if says(how, "tcp") => format!("tcp://{secret}@{host}:{port}"),
        _ => port.to_owned(),
    };
    Ok(node.connect(&address, Some(PATIENCE))?)
}

/// A node with a channel to the server.
fn join(how: &str, host: &str, port: &str) -> Result<(Node, Channel)> {
    let node = open(how)?;
    let link = connect(&node, how, host, port)?;
    let channel = node.open_channel(link, SERVICE, reception(&node, how)?, Some(PATIENCE))?;
    Ok((node, channel))
}
