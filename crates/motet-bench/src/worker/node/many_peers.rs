//! A process with many silent peers or channels (the hub), and the process that has these peers. Both read commands from standard
//! input, answer each with a line, and end when it ends.

use super::{SERVICE, TIMEOUT, connect, number, open, open_named, pair, print_address, serve_mode};
use anyhow::{Context, Result, bail};
use motet::node::{LinkId, Node};
use std::io::BufRead;

/// The service of silent channels.
const SILENT: u64 = 2;
const MAX_MESSAGE_BYTES: usize = 4096;

/// The hub. `take N` accepts N silent channels, `serve` answers one caller until its last message, `settle` ends links that are gone.
pub fn hub(how: &str) -> Result<()> {
    let node = open(how)?;
    node.serve(SERVICE, serve_mode(&node, how)?)?;
    node.serve(SILENT, serve_mode(&node, how)?)?;
    print_address(&node, how)?;
    let mut buffer = vec![0; MAX_MESSAGE_BYTES];
    for line in std::io::stdin().lock().lines() {
        match line?.split_whitespace().collect::<Vec<_>>()[..] {
            ["take", count] => {
                for _ in 0..number(count)? {
                    node.accept(SILENT, Some(TIMEOUT))?;
                }
            }
            ["serve"] => {
                let channel = node.accept(SERVICE, Some(TIMEOUT))?;
                pair::answer(&node, channel, &mut buffer)?;
                node.disconnect(channel.link)?;
            }
            ["settle"] => settle(&node)?,
            _ => bail!("no such command of the hub"),
        }
        println!("done");
    }
    Ok(())
}

/// Drops links that have ended, and makes progress until nothing has arrived for 20 ms.
fn settle(node: &Node) -> Result<()> {
    for link in node.links()? {
        if node.link_info(link)?.gone.is_some() {
            node.disconnect(link)?;
        }
    }
    let quiet = motet::node::deadline_in(20_000_000);
    match node.progress_until(|| false, Some(quiet)) {
        Err(motet::node::Error::TimedOut) => Ok(()),
        other => Ok(other?),
    }
}

/// The peers. `open N` opens N nodes, `connect` connects each to the hub with a channel, `channels N` opens N more channels of the first
/// one, `leave` ends all links.
pub fn peers(how: &str, host: &str, port: &str) -> Result<()> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut links: Vec<LinkId> = Vec::new();
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        match line?.split_whitespace().collect::<Vec<_>>()[..] {
            ["open", count] => {
                for _ in 0..number(count)? {
                    nodes.push(open_named("", how)?);
                }
            }
            ["connect"] => {
                for node in &nodes[links.len()..] {
                    let link = connect(node, how, host, port)?;
                    node.open_channel(link, SILENT, serve_mode(node, how)?, Some(TIMEOUT))?;
                    links.push(link);
                }
            }
            ["channels", count] => {
                let node = nodes.first().context("there is no node yet")?;
                for _ in 0..number(count)? {
                    node.open_channel(links[0], SILENT, serve_mode(node, how)?, Some(TIMEOUT))?;
                }
            }
            ["leave"] => {
                for (node, &link) in nodes.iter().zip(&links) {
                    node.disconnect(link)?;
                }
                links.clear();
            }
            _ => bail!("no such command of the peers"),
        }
        println!("done");
    }
    Ok(())
}
