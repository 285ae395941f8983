//! Two nodes with a channel between them, messages there and back or one way, each sent and received by a call that waits.

use super::{ANSWER, CONFIRM, END, SERVICE, TAKE, TIMEOUT, join, open, print_address, serve_mode};
use crate::worker::measure;
use anyhow::{Result, bail};
use motet::node::{Body, Channel, Error, Message, Mode, Node, Outgoing};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Round trips, and messages, of a block. The numbers are fixed for the reason that `worker/fifo.rs` gives.
const ROUND_TRIPS: usize = 1000;
const MESSAGES: usize = 16384;
/// Bytes of a block one way, where messages are long.
const BLOCK: usize = 64 << 20;

/// Bytes of the longest message.
const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// Receives until the last message.
pub fn serve(how: &str) -> Result<()> {
    let node = open(how)?;
    if how.starts_with("handler") {
        return serve_by_handler(&node, how);
    }
    node.serve(SERVICE, serve_mode(&node, how)?)?;
    print_address(&node, how)?;
    let channel = node.accept(SERVICE, Some(TIMEOUT))?;
    answer(&node, channel, &mut vec![0; MAX_MESSAGE_BYTES])
}

/// Receives on a channel until the last message, and answers as the tags say.
pub fn answer(node: &Node, channel: Channel, buffer: &mut [u8]) -> Result<()> {
    loop {
        let received = node.receive(channel, buffer, None)?;
        let bytes = black_box(&buffer[..received.length]);
        match received.tag {
            ANSWER => node.send(channel, TAKE, bytes, None)?,
            CONFIRM => node.send(channel, TAKE, &[], None)?,
            END => return Ok(()),
            _ => {}
        }
    }
}

fn serve_by_handler(node: &Node, how: &str) -> Result<()> {
    let ended = answer_by_handler(node)?;
    print_address(node, how)?;
    node.progress_until(|| ended.load(Ordering::Relaxed), None)?;
    Ok(())
}

/// Has a handler answer. The returned flag is set when the last message has arrived.
pub fn answer_by_handler(node: &Node) -> Result<Arc<AtomicBool>> {
    let ended = Arc::new(AtomicBool::new(false));
    let reported = ended.clone();
    let handler = move |node: &Node, message: Message<'_>| {
        let Body::Whole(bytes) = message.body else { return };
        let answer = Outgoing { channel: message.channel, tag: TAKE, headers: &[], mode: Mode::Inject };
        let sent = match message.tag {
            ANSWER => node.inject(&answer, &[black_box(bytes)], None),
            CONFIRM => node.inject(&answer, &[], None),
            tag => {
                reported.fetch_or(tag == END, Ordering::Relaxed);
                Ok(())
            }
        };
        if sent.is_err() {
            reported.store(true, Ordering::Relaxed);
        }
    };
    node.serve(SERVICE, node.handler(handler)?)?;
    Ok(ended)
}

/// Measures half a round trip, or one of many messages in one direction.
pub fn call(how: &str, what: &str, [host, port]: [&str; 2], size: usize, ms: usize) -> Result<()> {
    let (node, channel) = join(how, host, port)?;
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

/// Two nodes for one thread, with a channel between them.
pub fn both(how: &str) -> Result<(Node, Node, Channel, Channel)> {
    let (near, far) = (open(how)?, open(how)?);
    far.serve(SERVICE, serve_mode(&far, how)?)?;
    let (channel, there) = std::thread::scope(|scope| -> Result<_> {
        let there = scope.spawn(|| far.accept(SERVICE, Some(TIMEOUT)));
        let link = near.connect(&far.name()?, Some(TIMEOUT))?;
        let channel = near.open_channel(link, SERVICE, serve_mode(&near, how)?, Some(TIMEOUT))?;
        Ok((channel, there.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??))
    })?;
    Ok((near, far, channel, there))
}

/// Exchanges messages by one thread that has both nodes. No call waits, so that instructions can be counted.
pub fn turn(how: &str, size: usize, count: usize) -> Result<()> {
    let (near, far, channel, there) = both(how)?;
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

/// Sends a message, and receives an answer that fills the buffer.
#[inline(always)]
pub fn exchange(node: &Node, channel: Channel, tag: u64, data: &[u8], buffer: &mut [u8]) -> Result<()> {
    node.send(channel, tag, black_box(data), None)?;
    let received = node.receive(channel, buffer, None)?;
    if black_box(received.length) != buffer.len() {
        bail!("an answer of {} bytes: {}", received.length, Error::Truncated);
    }
    Ok(())
}
