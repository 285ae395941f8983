//! A process with many silent peers or channels, and the process that has these peers. Both do what standard input says, answer by a
//! line, and end with it.

use super::{PATIENCE, SERVICE, connect, named, number, open, pair, reception, tell};
use anyhow::{Context, Result, bail};
use motet::node::{LinkId, Node};
use std::io::BufRead;

/// Channels to it carry nothing.
const SILENT: u64 = 2;
const LONGEST: usize = 4096;

/// `take N` accepts N silent channels, `serve` answers one caller until its last message, `bytes` says what the links count as held.
pub fn hub(how: &str) -> Result<()> {
    let node = open(how)?;
    node.serve(SERVICE, reception(&node, how)?)?;
    node.serve(SILENT, reception(&node, how)?)?;
    tell(&node, how)?;
    let mut buffer = vec![0; LONGEST];
    for line in std::io::stdin().lock().lines() {
        match line?.split_whitespace().collect::<Vec<_>>()[..] {
            ["take", count] => {
                for _ in 0..number(count)? {
                    node.accept(SILENT, Some(PATIENCE))?;
                }
            }
            ["serve"] => {
                let channel = node.accept(SERVICE, Some(PATIENCE))?;
                pair::answer(&node, channel, &mut buffer)?;
                node.disconnect(channel.link)?;
            }
            ["settle"] => settle(&node)?,
            _ => bail!("the hub knows no such command"),
        }
        println!("done");
    }
    Ok(())
}

/// Rounds of progress until nothing has come for some time: links that have ended are then forgotten.
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

/// `open N`: so many nodes; `connect`: each to the hub, with a channel; `channels N`: so many more of the first one; `leave`: every
/// node ends its link.
pub fn peers(how: &str, host: &str, port: &str) -> Result<()> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut links: Vec<LinkId> = Vec::new();
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        match line?.split_whitespace().collect::<Vec<_>>()[..] {
            ["open", count] => {
                for _ in 0..number(count)? {
                    nodes.push(named("", how)?);
                }
            }
            ["connect"] => {
                for node in &nodes[links.len()..] {
                    let link = connect(node, how, host, port)?;
                    node.open_channel(link, SILENT, reception(node, how)?, Some(PATIENCE))?;
                    links.push(link);
                }
            }
            ["channels", count] => {
                let node = nodes.first().context("there is no node yet")?;
                for _ in 0..number(count)? {
                    node.open_channel(links[0], SILENT, reception(node, how)?, Some(PATIENCE))?;
                }
            }
            ["leave"] => {
                for (node, &link) in nodes.iter().zip(&links) {
                    node.disconnect(link)?;
                }
                links.clear();
            }
            _ => bail!("the peers know no such command"),
        }
        println!("done");
    }
    Ok(())
}
