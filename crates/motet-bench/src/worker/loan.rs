//! Loaned messages and regions between two nodes, which need no copy.
//!
//! `--worker loan serve` prints `port NAME`. `--worker loan ping call HOST NAME SIZE MS` measures half a round trip of a loan of SIZE bytes,
//! of which both ends touch the first and the last 8; `put`, `get` one access to the region of the server; `copy` a copy of SIZE bytes
//! within one process, for comparison. `--worker loan turn SIZE COUNT` has both ends in one thread.

use super::measure;
use anyhow::{Context, Result, bail};
use motet::node::{Channel, Content, Key, LinkId, Node, RecvFrom, Rights, Serve, Target, options};
use std::hint::black_box;
use std::time::Duration;

const SERVICE: u64 = 2;
const TIMEOUT: Duration = Duration::from_secs(10);
/// Tags: a loan that is answered, the last message.
const ANSWER: u64 = 1;
const END: u64 = 2;
/// Bytes of the longest loan, and of the region.
const MAX_LOAN_BYTES: usize = 256 << 20;
const REGION: usize = 16 << 20;
const ROUND_TRIPS: usize = 1000;
/// Accesses of a block, and its bytes.
const ACCESSES: usize = 100_000;
const BLOCK: usize = 64 << 20;

/// Answers loans by loans of the same length until the last message. The first message that it sends is the key of its region.
pub fn serve() -> Result<()> {
    let node = Node::single(&options("", None)).context("cannot open a node")?;
    node.serve(SERVICE, Serve::Queue)?;
    let (_, key) = node.alloc_region(REGION, Rights::ALL)?;
    println!("port {}", node.name()?);
    let channel = node.accept(SERVICE, Some(TIMEOUT))?;
    node.send(channel, 0, &key.0.to_le_bytes(), None)?;
    loop {
        let (tag, body) = receive_loan(&node, channel)?;
        if tag == END {
            return Ok(());
        }
        send_loan(&node, channel, body.len())?;
        release(&node, body)?; // after the answer, which does not wait for it
    }
}

/// Measures.
pub fn call(what: &str, port: &str, size: usize, ms: usize) -> Result<()> {
    let node = Node::single(&options("", None)).context("cannot open a node")?;
    let link = node.connect(port, Some(TIMEOUT))?;
    let channel = node.open_channel(link, SERVICE, Serve::Queue, Some(TIMEOUT))?;
    let mut key = [0; 8];
    node.receive(channel, &mut key, Some(TIMEOUT))?;
    let key = Key(u64::from_le_bytes(key));
    let count = (BLOCK / size.max(1)).clamp(4, ACCESSES);
    let (from, mut to) = (vec![7u8; size], vec![1u8; size]);
    let result = match what {
        "ping" => measure(ROUND_TRIPS, ms, 2.0, |count| {
            (0..count).try_for_each(|_| {
                send_loan(&node, channel, size)?;
                release(&node, receive_loan(&node, channel)?.1)
            })
        })?,
        "put" => {
            open(&node, link, key)?;
            measure(count, ms, 1.0, |count| {
                (0..count).try_for_each(|_| done(node.store(Target { link, key, offset: 0 }, black_box(&from))?))
            })?
        }
        "get" => {
            open(&node, link, key)?;
            measure(count, ms, 1.0, |count| {
                (0..count).try_for_each(|_| done(node.load(Target { link, key, offset: 0 }, black_box(&mut to))?))
            })?
        }
        "copy" => measure(count, ms, 1.0, |count| {
            (0..count).for_each(|_| black_box(&mut to).copy_from_slice(black_box(&from)));
            Ok(())
        })?,
        _ => bail!("no such measurement of loans: {what}"),
    };
    node.send(channel, END, &[], None)?;
    println!("{result}");
    Ok(())
}

/// Exchanges loans by one thread that has both nodes, so that instructions can be counted.
pub fn turn(size: usize, count: usize) -> Result<()> {
    let (near, far, here, there) = super::node::both("queue-many")?;
    for _ in 0..count {
        for (from, to, out, back) in [(&near, &far, here, there), (&far, &near, there, here)] {
            send_loan(from, out, size)?;
            release(to, receive_loan(to, back)?.1)?;
        }
    }
    Ok(())
}

fn open(node: &Node, link: LinkId, key: Key) -> Result<()> {
    done(node.open_region(link, key, Some(motet::node::deadline_in(TIMEOUT.as_nanos() as u64)))?)
}

fn done(done: bool) -> Result<()> {
    if done { Ok(()) } else { bail!("the region is not mapped") }
}

#[inline]
fn send_loan(node: &Node, channel: Channel, size: usize) -> Result<()> {
    let mut loan = node.alloc(size)?;
    let ends = size.min(8);
    loan[..ends].fill(7);
    loan[size - ends..].fill(8);
    node.lend(channel, ANSWER, loan, None)?;
    Ok(())
}

#[inline]
fn receive_loan(node: &Node, channel: Channel) -> Result<(u64, Content)> {
    let got = node.receive_in_place(RecvFrom::Channel(channel), 0, u64::MAX, MAX_LOAN_BYTES, None)?;
    let (length, mut ends) = (got.body.len(), [0; 8]);
    got.body.read(0, &mut ends);
    got.body.read(length.saturating_sub(8), &mut ends);
    black_box(ends);
    Ok((got.tag, got.body))
}

#[inline]
fn release(node: &Node, body: Content) -> Result<()> {
    if let Content::LoanedMessage(lent) = body {
        node.release(lent)?;
    }
    Ok(())
}
