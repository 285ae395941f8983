//! Five layers that each add a header: as a header of the message, as bytes of its body, or in a message of their own.

use super::pair;
use super::{END, SERVICE, TAKE, TIMEOUT, join, open, print_address, serve_mode};
use anyhow::{Context, Result, bail};
use motet::node::{Channel, Mode, Node, Outgoing, RecvFrom, Stack, pop};
use std::hint::black_box;
use std::time::{Duration, Instant};

const LAYERS: usize = 5;
/// Bytes of the body.
const BODY: usize = 8;
/// Round trips of a block.
const ROUND_TRIPS: usize = 500;

/// Where the headers are. The value is the tag of the message.
#[derive(Clone, Copy, PartialEq)]
enum Layout {
    Pushed = 11,
    Raw = 12,
    Apart = 13,
}

const LAYOUTS: [Layout; 3] = [Layout::Pushed, Layout::Raw, Layout::Apart];

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
    fn send(&mut self, layout: Layout) -> Result<()> {
        let Self { node, channel, stack, raw, .. } = self;
        let mut message = Outgoing { channel: *channel, tag: layout as u64, headers: &[], mode: Mode::Automatic };
        if layout == Layout::Raw {
            return Ok(node.send_with(&message, &[black_box(raw)], None)?);
        }
        stack.clear();
        for layer in 0..LAYERS as u8 {
            if !stack.push(&black_box([layer; N])) {
                bail!("headers are too long");
            }
        }
        let body = &black_box(&raw)[..BODY];
        if layout == Layout::Pushed {
            message.headers = stack.as_bytes();
            return Ok(node.send_with(&message, &[body], None)?);
        }
        node.send_with(&message, &[stack.as_bytes()], None)?;
        Ok(node.send_with(&message, &[body], None)?)
    }

    /// Receives a message and its headers. `None` is the last message.
    #[inline(always)]
    fn receive(&mut self) -> Result<Option<Layout>> {
        let Self { node, channel, headers, buffer, .. } = self;
        let received = node.receive_with(RecvFrom::Channel(*channel), 0, u64::MAX, headers, buffer, None)?;
        let layout = LAYOUTS.into_iter().find(|&layout| layout as u64 == received.tag);
        match layout {
            Some(Layout::Pushed) => read::<N>(&self.headers)?,
            Some(Layout::Apart) => {
                read::<N>(&self.buffer[..received.length])?;
                self.node.receive(self.channel, &mut self.buffer, None)?;
            }
            _ => {}
        }
        black_box(&self.buffer);
        Ok(layout)
    }

    fn answer(&mut self) -> Result<()> {
        while let Some(layout) = self.receive()? {
            self.send(layout)?;
        }
        Ok(())
    }

    /// Medians of half a round trip in all layouts. Their blocks take turns.
    fn measure(&mut self, ms: usize) -> Result<[f64; 3]> {
        let mut blocks: [Vec<f64>; 3] = Default::default();
        let (begun, time) = (Instant::now(), Duration::from_millis(3 * ms as u64));
        let mut turn = 0;
        while begun.elapsed() < time || turn < 9 {
            let at = turn % LAYOUTS.len();
            let block = Instant::now();
            for _ in 0..ROUND_TRIPS {
                self.send(LAYOUTS[at])?;
                self.receive()?.context("the server has ended")?;
            }
            if turn >= LAYOUTS.len() {
                blocks[at].push(block.elapsed().as_nanos() as f64 / ROUND_TRIPS as f64 / 2.0);
            }
            turn += 1;
        }
        self.node.send(self.channel, END, &[], None)?;
        Ok(blocks.map(|blocks| crate::stats::median(&blocks)))
    }
}

/// Exchanges messages between two nodes of one thread in one layout (`pushed`, `raw` or `apart`; headers of 4 B). No call waits, so that
/// instructions can be counted.
pub fn turn(how: &str, layout: &str, count: usize) -> Result<()> {
    let layout = match layout {
        "pushed" => Layout::Pushed,
        "raw" => Layout::Raw,
        "apart" => Layout::Apart,
        _ => bail!("no such layout of headers: {layout}"),
    };
    let (near, far, channel, there) = pair::both(how)?;
    let (mut near, mut far) = (End::<4>::new(near, channel), End::<4>::new(far, there));
    for _ in 0..count {
        near.send(layout)?;
        far.receive()?;
        far.send(layout)?;
        near.receive()?;
    }
    Ok(())
}

/// Pops the header of each layer.
#[inline(always)]
fn read<const N: usize>(mut headers: &[u8]) -> Result<()> {
    for layer in (0..LAYERS as u8).rev() {
        if pop::<N>(&mut headers) != Some([layer; N]) {
            bail!("the header of layer {layer} is not its own");
        }
    }
    Ok(())
}

/// Answers each message in its layout.
pub fn serve(how: &str) -> Result<()> {
    let node = open(how)?;
    node.serve(SERVICE, serve_mode(&node, how)?)?;
    print_address(&node, how)?;
    let channel = node.accept(SERVICE, Some(TIMEOUT))?;
    let mut reported = [0; 8];
    node.receive(channel, &mut reported, Some(TIMEOUT))?;
    match u64::from_le_bytes(reported) {
        4 => End::<4>::new(node, channel).answer(),
        16 => End::<16>::new(node, channel).answer(),
        other => bail!("no headers of {other} bytes are measured"),
    }
}

/// Measures with headers of `size` bytes. Prints half a round trip pushed, raw and apart, ns.
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
