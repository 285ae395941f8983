//! Nodes as measuring programs: the cost of messages.
//!
//! `--worker node HOW WHAT serve …` prints `port NAME`; `--worker node HOW WHAT call HOST NAME …` measures. HOW is words with
//! hyphens: how the server receives (`queue`, `tagged` or `handler`), how many threads use a node (`one` or `many`), and optionally
//! `tcp` (over TCP; NAME is a port), `sleep` (a wait sleeps at once) or `poll` (it never sleeps). `turn` has both ends in one thread,
//! for counting instructions.
//!
//! | module | what it measures |
//! | --- | --- |
//! | [`pair`] | messages there and back, or one way, each by a call that waits |
//! | [`windows`] | one way, a window of messages at a time: the loops of `tests/bench/messages.h` |
//! | [`server`] | one server of many clients |
//! | [`layers`] | headers on a message, within its body, and in a message of their own |
//! | [`waits`] | waiting for one operation, for any, for a completion queue, or through a thread that dispatches completions |
//! | [`receptions`] | the receiving thread: one that sleeps, the caller that polls, one that polls |
//! | [`many_peers`] | a process with many silent peers or channels |
//! | [`ring`] | tokens that go round among many processes |

mod layers;
mod many_peers;
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

/// Tags: a message that is only received, one that is answered in full, one that is answered by an empty one, the last one.
const TAKE: u64 = 1;
const ANSWER: u64 = 2;
const CONFIRM: u64 = 3;
const END: u64 = 4;

const SERVICE: u64 = 1;
const TIMEOUT: Duration = Duration::from_secs(10);
/// A spin that is longer than any wait, ns.
const POLL: u64 = 60_000_000_000;

/// Runs as the worker that these words, after `node`, describe.
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
        [how, "many-peers", "serve"] => many_peers::hub(how),
        [how, "many-peers", "call", host, port] => many_peers::peers(how, host, port),
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

fn has_word(how: &str, word: &str) -> bool {
    how.split('-').any(|known| known == word)
}

/// Opens a node as HOW has_word.
fn open(how: &str) -> Result<Node> {
    open_named("", how)
}

/// Opens a node with a name, as HOW has_word.
fn open_named(name: &str, how: &str) -> Result<Node> {
    let mut options = options(name, None);
    if has_word(how, "tcp") {
        options.listen = Some(([0, 0, 0, 0], 0).into());
        options.drivers.retain(|driver| driver.name() == "tcp");
    }
    match () {
        () if has_word(how, "sleep") => options.spin = 0,
        () if has_word(how, "poll") => options.spin = POLL,
        () => {}
    }
    let node = if has_word(how, "one") { Node::single(&options) } else { Node::with(&options) };
    node.context("cannot open a node")
}

/// How messages of a channel are received.
fn serve_mode(node: &Node, how: &str) -> Result<Serve> {
    Ok(if has_word(how, "tagged") { Serve::Tagged(node.context()?) } else { Serve::Queue })
}

/// Prints the address of the node.
fn print_address(node: &Node, how: &str) -> Result<()> {
    if has_word(how, "tcp") {
        let address = node.address()?;
        let way = address.rsplit_once("tcp://").context("the address has no TCP route")?.1;
        let (secret, place) = way.split_once('@').context("the address has no secret")?;
        println!("port {secret}@{}", place.rsplit_once(':').context("the address has no port")?.1);
    } else {
        println!("port {}", node.name()?);
    }
    Ok(())
}

/// Connects to the node with the printed address.
fn connect(node: &Node, how: &str, host: &str, port: &str) -> Result<LinkId> {
    let address = match port.split_once('@') {
        Some((secret, port)) if has_word(how, "tcp") => format!("tcp://{secret}@{host}:{port}"),
        _ => port.to_owned(),
    };
    Ok(node.connect(&address, Some(TIMEOUT))?)
}

/// Opens a node, and a channel to the server.
fn join(how: &str, host: &str, port: &str) -> Result<(Node, Channel)> {
    let node = open(how)?;
    let link = connect(&node, how, host, port)?;
    let channel = node.open_channel(link, SERVICE, serve_mode(&node, how)?, Some(TIMEOUT))?;
    Ok((node, channel))
}
