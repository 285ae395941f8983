//! Five layers that each add a header: pushed onto the message's headers, as so many bytes of its body, or in a message of their own.

use super::pair;
use super::{END, PATIENCE, SERVICE, TAKE, join, open, reception, tell};
use anyhow::{Context, Result, bail};
use motet::node::{Channel, Mode, Node, Outgoing, RecvFrom, Stack, pop};
use std::hint::black_box;
use std::time::{Duration, Instant};

const LAYERS: usize = 5;
/// Of the body.
const BODY: usize = 8;
/// Round trips of a block.
const ROUND_TRIPS: usize = 500;

/// How the headers travel; also the tag.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Pushed = 11,
    Raw = 12,
    Apart = 13,
}

const WAYS: [Way; 3] = [Way::Pushed, Way::Raw, Way::Apart];

/// One end: headers of `N` bytes.
struct End<const N: usize> {
    node: Node,
    channel: Channel,
    stack: Stack,
    raw: Vec<u8>,
    headers: Vec<u8>,
    buffer: Vec<u8>,
}

impl<const N: usize> End<N> {
    fn new(node: Node, channel: Channel) -> Self {
        let size = LAYERS * N + BODY;
        Self { node, channel, stack: Stack::default(), raw: vec![7; size], headers: Vec::new(), buffer: vec![0; size] }
    }

    #[inline(always)]
    fn send(&mut self, way: Way) -> Result<()> {
        let Self { node, channel, stack, raw, .. } = self;
        let mut message = Outgoing { channel: *channel, tag: way as u64, headers: &[], mode: Mode::Automatic };
        if way == Way::Raw {
            return Ok(node.send_with(&message, &[black_box(raw)], None)?);
        }
        stack.clear();
        for layer in 0..LAYERS as u8 {
            if !stack.push(&black_box([layer; N])) {
                bail!("headers are too long");
            }
        }
        let body = &black_box(&raw)[..BODY];
        if way == Way::Pushed {
            message.headers = stack.as_bytes();
            return Ok(node.send_with(&message, &[body], None)?);
        }
        node.send_with(&message, &[stack.as_bytes()], None)?;
        Ok(node.send_with(&message, &[body], None)?)
    }

    /// The next message, whichever way its headers came: `None` is the last one.
    #[inline(always)]
    fn receive(&mut self) -> Result<Option<Way>> {
        let Self { node, channel, headers, buffer, .. } = self;
        let received = node.receive_with(RecvFrom::Channel(*channel), 0, u64::MAX, headers, buffer, None)?;
        let way = WAYS.into_iter().find(|&way| way as u64 == received.tag);
        match way {
            Some(Way::Pushed) => read::<N>(&self.headers)?,
            Some(Way::Apart) => {
                read::<N>(&self.buffer[..received.length])?;
                self.node.receive(self.channel, &mut self.buffer, None)?;
            }
            _ => {}
        }
        black_box(&self.buffer);
        Ok(way)
    }

    fn answer(&mut self) -> Result<()> {
        while let Some(way) = self.receive()? {
            self.send(way)?;
        }
        Ok(())
    }

    /// Medians of half a round trip in all ways: their blocks take turns.
    fn measure(&mut self, ms: usize) -> Result<[f64; 3]> {
        let mut blocks: [Vec<f64>; 3] = Default::default();
        let (begun, time) = (Instant::now(), Duration::from_millis(3 * ms as u64));
        let mut turn = 0;
        while begun.elapsed() < time || turn < 9 {
            let at = turn % WAYS.len();
            let block = Instant::now();
            for _ in 0..ROUND_TRIPS {
                self.send(WAYS[at])?;
                self.receive()?.context("the server has left")?;
            }
            if turn >= WAYS.len() {
                blocks[at].push(block.elapsed().as_nanos() as f64 / ROUND_TRIPS as f64 / 2.0);
            }
            turn += 1;
        }
        self.node.send(self.channel, END, &[], None)?;
        Ok(blocks.map(|blocks| crate::stats::median(&blocks)))
    }
}

/// So many messages between two nodes of one thread, all in one way (`pushed`, `raw` or `apart`; headers of 4 B): nothing is waited
/// for, so that instructions can be counted.
pub fn turn(how: &str, way: &str, count: usize) -> Result<()> {
    let way = match way {
        "pushed" => Way::Pushed,
        "raw" => Way::Raw,
        "apart" => Way::Apart,
        _ => bail!("headers do not travel so: {way}"),
    };
    let (near, far, channel, there) = pair::both(how)?;
    let (mut near, mut far) = (End::<4>::new(near, channel), End::<4>::new(far, there));
    for _ in 0..count {
        near.send(way)?;
        far.receive()?;
        far.send(way)?;
        near.receive()?;
    }
    Ok(())
}

/// As each layer does: takes its own header off.
#[inline(always)]
fn read<const N: usize>(mut headers: &[u8]) -> Result<()> {
    for layer in (0..LAYERS as u8).rev() {
        if pop::<N>(&mut headers) != Some([layer; N]) {
            bail!("the header of layer {layer} is not its own");
        }
    }
    Ok(())
}

/// Answers in the same way.
pub fn serve(how: &str) -> Result<()> {
    let node = open(how)?;
    node.serve(SERVICE, reception(&node, how)?)?;
    tell(&node, how)?;
    let channel = node.accept(SERVICE, Some(PATIENCE))?;
    let mut told = [0; 8];
    node.receive(channel, &mut told, Some(PATIENCE))?;
    match u64::from_le_bytes(told) {
        4 => End::<4>::new(node, channel).answer(),
        16 => End::<16>::new(node, channel).answer(),
        other => bail!("no headers of {other} bytes are measured"),
    }
}

/// Headers of `size` bytes each: ns of half a round trip pushed, raw, apart.
pub fn call(how: &str, at: [&str; 2], size: usize, ms: usize) -> Result<()> {
    let (node, channel) = join(how, at[0], at[1])?;
    node.send(channel, TAKE, &(size as u64).to_le_bytes(), None)?;
    let [pushed, raw, apart] = match size {
        4 => End::<4>::new(node, channel).measure(ms)?,
        16 => End::<16>::new(node, channel).measure(ms)?,
        other => bail!("no headers of {other} bytes are measured"),
    };
    println!("{pushed:.2} {raw:.2} {apart:.2}");
    Ok(())
}
