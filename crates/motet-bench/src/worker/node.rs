//! Two nodes with a channel between them: what messages cost a program.
//!
//! `--worker node HOW serve` prints `port NAME`; `--worker node HOW ping|rate|stream call NAME SIZE MS` measures. HOW is how the
//! server receives and how many threads a node is for: `queue`, `tagged` or `handler`, then `one` or `many`.

use super::measure;
use anyhow::{Context, Result, bail};
use motet::node::{Body, Channel, Error, Inner, Message, Mode, Node, Outgoing, Serve, options};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Tags: one that is only received, one that is answered by as much, or by nothing, the last one.
const TAKE: u64 = 1;
const ANSWER: u64 = 2;
const CONFIRM: u64 = 3;
const END: u64 = 4;

/// Of a block: see `lane.rs`.
const ROUND_TRIPS: usize = 1000;
const MESSAGES: usize = 16384;
/// Bytes of a block one way, where messages are long.
const BLOCK: usize = 64 << 20;

const SERVICE: u64 = 1;
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest message.
const LONGEST: usize = 64 << 20;

fn open(how: &str) -> Result<Node> {
    let options = options("", None);
    let node = if how.ends_with("-one") { Node::single(&options) } else { Node::with(&options) };
    node.context("no node")
}

/// How a channel's messages are received.
fn reception(node: &Node, how: &str) -> Result<Serve> {
    Ok(match how.split_once('-') {
        Some(("tagged", _)) => Serve::Tagged(node.context()?),
        _ => Serve::Queue,
    })
}

/// Receives until it is told to end.
pub fn serve(how: &str) -> Result<()> {
    let node = open(how)?;
    if how.starts_with("handler") {
        return serve_by_handler(&node);
    }
    node.serve(SERVICE, reception(&node, how)?)?;
    println!("port {}", node.name()?);
    let channel = node.accept(SERVICE, Some(PATIENCE))?;
    let mut buffer = vec![0; LONGEST];
    loop {
        let received = node.receive(channel, &mut buffer, None)?;
        let bytes = black_box(&buffer[..received.length]);
        match received.tag {
            ANSWER => node.send(channel, TAKE, bytes, None)?,
            CONFIRM => node.send(channel, TAKE, &[], None)?,
            END => return Ok(()),
            _ => {}
        }
    }
}

fn serve_by_handler(node: &Node) -> Result<()> {
    let ended = Arc::new(AtomicBool::new(false));
    let told = ended.clone();
    let handler = move |node: &Inner, message: Message<'_>| {
        let Body::Whole(bytes) = message.body else { return };
        let answer = Outgoing { channel: message.channel, tag: TAKE, headers: &[], mode: Mode::Inject };
        let sent = match message.tag {
            ANSWER => node.inject(&answer, &[black_box(bytes)], None),
            CONFIRM => node.inject(&answer, &[], None),
            tag => {
                told.fetch_or(tag == END, Ordering::Relaxed);
                Ok(())
            }
        };
        if sent.is_err() {
            told.store(true, Ordering::Relaxed);
        }
    };
    node.serve(SERVICE, node.handler(Arc::new(handler))?)?;
    println!("port {}", node.name()?);
    node.until(|| ended.load(Ordering::Relaxed), None)?;
    Ok(())
}

/// Half a round trip, or what one of many messages in one direction takes.
pub fn call(how: &str, what: &str, port: &str, size: usize, ms: usize) -> Result<()> {
    let node = open(how)?;
    let link = node.connect(port, Some(PATIENCE))?;
    let channel = node.open_channel(link, SERVICE, reception(&node, how)?, Some(PATIENCE))?;
    let (data, mut buffer) = (vec![7u8; size], vec![0; size]);
    let result = match what {
        "ping" => measure(rounds(size), ms, 2.0, |count| {
            (0..count).try_for_each(|_| exchange(&node, channel, ANSWER, &data, &mut buffer))
        })?,
        "rate" | "stream" => measure(if what == "rate" { MESSAGES } else { messages(size) }, ms, 1.0, |count| {
            (1..count).try_for_each(|_| node.send(channel, TAKE, black_box(&data), None))?;
            exchange(&node, channel, CONFIRM, &data, &mut [])
        })?,
        _ => bail!("no such measurement of nodes: {what}"),
    };
    node.send(channel, END, &[], None)?;
    println!("{result}");
    Ok(())
}

/// Exchanges so many messages by one thread that has both nodes: nothing is waited for, so that instructions can be counted.
pub fn turn(how: &str, size: usize, count: usize) -> Result<()> {
    let (near, far) = (open(how)?, open(how)?);
    far.serve(SERVICE, reception(&far, how)?)?;
    let (channel, there) = std::thread::scope(|scope| -> Result<_> {
        let there = scope.spawn(|| far.accept(SERVICE, Some(PATIENCE)));
        let link = near.connect(&far.name()?, Some(PATIENCE))?;
        let channel = near.open_channel(link, SERVICE, reception(&near, how)?, Some(PATIENCE))?;
        Ok((channel, there.join().map_err(|_| anyhow::anyhow!("a thread has died"))??))
    })?;
    let (data, mut buffer) = (vec![7u8; size], vec![0; size]);
    for _ in 0..count {
        near.send(channel, TAKE, &data, None)?;
        far.receive(there, &mut buffer, None)?;
        far.send(there, TAKE, &data, None)?;
        near.receive(channel, &mut buffer, None)?;
    }
    Ok(())
}

fn rounds(size: usize) -> usize {
    (BLOCK / size.max(1)).clamp(4, ROUND_TRIPS)
}

fn messages(size: usize) -> usize {
    (2 * BLOCK / size.max(1)).clamp(4, MESSAGES)
}

#[inline(always)]
fn exchange(node: &Node, channel: Channel, tag: u64, data: &[u8], buffer: &mut [u8]) -> Result<()> {
    node.send(channel, tag, black_box(data), None)?;
    let received = node.receive(channel, buffer, None)?;
    if black_box(received.length) != buffer.len() {
        bail!("an answer of {} bytes: {}", received.length, Error::Truncated);
    }
    Ok(())
}
