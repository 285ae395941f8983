//! One way, a window of messages at a time, as `tests/bench/messages.h` over other interfaces.
//!
//! A window has up to 64 messages and 16 MiB and is answered by four bytes. Sends of a window are started together, then waited for. The receiver has
//! one buffer, or several in turn, and receives one message after the other.

use super::{END, SERVICE, TAKE, TIMEOUT, join, open, print_address, serve_mode};
use crate::worker::measure;
use anyhow::{Result, bail};
use motet::node::{Channel, CompletionOptions, Mode, Node, OperationId, Outgoing};
use std::hint::black_box;

const WINDOW: usize = 64;
const MAX_WINDOW_BYTES: usize = 16 << 20;
/// The tag of a plan: size, messages, buffers.
const PLAN: u64 = 5;
const RESULT: [u8; 4] = [0; 4];

#[derive(Clone, Copy)]
struct Plan {
    size: usize,
    count: usize,
    buffers: usize,
}

impl Plan {
    fn window(&self) -> usize {
        if self.buffers > 1 { 1 } else { (MAX_WINDOW_BYTES / self.size.max(1)).clamp(1, WINDOW) }
    }

    fn bytes(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        let words = [self.size, self.count, self.buffers].map(|word| (word as u64).to_le_bytes());
        bytes.copy_from_slice(words.as_flattened());
        bytes
    }

    fn of(bytes: &[u8; 24]) -> Self {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| bytes[at + n])) as usize;
        Self { size: word(0), count: word(8), buffers: word(16) }
    }
}

/// Receives what plans announce.
pub fn serve(how: &str) -> Result<()> {
    let node = open(how)?;
    node.serve(SERVICE, serve_mode(&node, how)?)?;
    print_address(&node, how)?;
    let channel = node.accept(SERVICE, Some(TIMEOUT))?;
    let mut memory = Vec::new();
    loop {
        let mut reported = [0; 24];
        match node.receive(channel, &mut reported, None)?.tag {
            PLAN => {}
            END => return Ok(()),
            tag => bail!("a message of tag {tag} where a plan was expected"),
        }
        let plan = Plan::of(&reported);
        if memory.len() < plan.size * plan.buffers {
            memory = vec![1; plan.size * plan.buffers];
        }
        let mut window = plan.window();
        for done in 0..plan.count {
            let into = &mut memory[done % plan.buffers * plan.size..][..plan.size];
            let length = node.receive(channel, into, None)?.length;
            if black_box(length) != plan.size {
                bail!("a message of {length} bytes instead of {}", plan.size);
            }
            window -= 1;
            if window == 0 || done + 1 == plan.count {
                node.send(channel, TAKE, &RESULT, None)?;
                window = plan.window();
            }
        }
    }
}

/// Measures the time of a message.
pub fn call(how: &str, at: [&str; 2], size: usize, buffers: usize, ms: usize) -> Result<()> {
    let (node, channel) = join(how, at[0], at[1])?;
    // Memory that is never freed: sends of a window are started from it and finish later.
    let memory: &'static [u8] = vec![1u8; size * buffers].leak();
    let mut begun = Vec::with_capacity(WINDOW);
    let count = if buffers > 1 { 1 } else { (MAX_WINDOW_BYTES / size.max(1)).clamp(1, 16384) };
    let mut turn = 0;
    let result = measure(count, ms, 1.0, |count| {
        let plan = Plan { size, count, buffers };
        node.send(channel, PLAN, &plan.bytes(), None)?;
        for first in (0..count).step_by(plan.window()) {
            for _ in first..(first + plan.window()).min(count) {
                begin(&node, channel, &memory[turn % buffers * size..][..size], &mut begun)?;
                turn += 1;
            }
            for operation in begun.drain(..) {
                node.finish_operation(operation, None)?;
            }
            let mut answer = RESULT;
            node.receive(channel, &mut answer, None)?;
        }
        Ok(())
    })?;
    node.send(channel, END, &[], None)?;
    println!("{result}");
    Ok(())
}

/// Starts to send. Keeps the operation if it is not complete at once.
#[inline(always)]
pub fn begin(node: &Node, channel: Channel, body: &'static [u8], begun: &mut Vec<OperationId>) -> Result<()> {
    let message = Outgoing { channel, tag: TAKE, headers: &[], mode: Mode::Automatic };
    begun.extend(node.begin_send(&message, black_box(body), CompletionOptions::default(), None)?);
    Ok(())
}
