//! A pipeline on loans: frames of megabytes go from process to process, and each stage reads them in the memory of the previous stage.
//!
//!   cargo run --release -p motet --example pipeline -- [frames] [MiB of a frame] [filters] [ms that the sink takes for each]
//!
//! A source fills blocks of its pool and sends them as loans. Each filter reads a frame in the memory of the previous stage, writes its negative
//! into a block of its own, releases the frame and sends the new one. The sink computes every word again. No frame is copied, whatever its
//! length. At its end each stage prints how many frames were loaned, how many arrived as copies (as they would over TCP), and how much of its
//! pool was in use at most. A slow stage makes the stages before it wait for blocks.
//!
//! Process 0 is the sink; each other one sends to the process one less, the last is the source.

mod processes;

use motet::node::{Channel, Content, Error, InPlace, Node, RecvFrom, Serve, options};
use processes::{ProcessGroup, Result, START_TIMEOUT, reach};
use std::time::Duration;

const FRAMES: u64 = 1;
/// Bytes of each stage's pool.
const POOL: usize = 64 << 20;
/// Bytes that are read at a time: they fit the first-level cache.
const CHUNK: usize = 16 << 10;
const MIB: usize = 1 << 20;

struct Plan {
    frames: usize,
    bytes: usize,
    filters: usize,
    pause: Duration,
}

impl Plan {
    fn of(arguments: &[String]) -> Option<Self> {
        let mut numbers = [50, 4, 1, 0];
        for (n, argument) in arguments.iter().enumerate() {
            *numbers.get_mut(n)? = argument.parse().ok()?;
        }
        let [frames, mib, filters, pause] = numbers;
        let fits = frames > 0 && (1..=POOL / MIB / 2).contains(&mib) && (1..=62).contains(&filters);
        fits.then_some(Self { frames, bytes: mib * MIB, filters, pause: Duration::from_millis(pause as u64) })
    }
}

/// The source's value of a word of a frame.
fn word(frame: u64, at: usize) -> u64 {
    (at as u64 ^ frame << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(frame as u32)
}

/// The counts of a stage.
#[derive(Default)]
struct Tally {
    frames: usize,
    /// Most bytes of its own pool that were loaned or being filled.
    out: usize,
}

impl Tally {
    fn sent(&mut self, node: &Node) -> Result<()> {
        self.frames += 1;
        self.out = self.out.max(node.pool_size()?[2]);
        Ok(())
    }

    fn say(&self, who: &str, node: &Node, from: Option<Channel>) -> Result<()> {
        let read = match from {
            Some(from) => {
                let counts = node.loan_counts(from.link)?;
                format!("{} read in place, {} copied; ", counts.in_place, counts.copied)
            }
            None => String::new(),
        };
        println!("{who}: {} frames; {read}at most {} MiB of its pool out", self.frames, self.out / MIB);
        Ok(())
    }
}

/// Receives the next frame; `None` when the previous stage has no more.
fn next(plan: &Plan, node: &Node, from: Channel) -> Result<Option<InPlace>> {
    match node.receive_in_place(RecvFrom::Channel(from), 0, u64::MAX, plan.bytes, None) {
        Err(Error::Closed) => Ok(None),
        came => Ok(Some(came?)),
    }
}

/// Releases a frame: its block returns to the previous stage at once.
fn done(node: &Node, frame: InPlace) -> Result<()> {
    if let Content::LoanedMessage(lent) = frame.body {
        node.release(lent)?;
    }
    Ok(())
}

/// Finishes the channel, and waits until the next stage has released everything and finished, too.
fn end(node: &Node, to: Channel) -> Result<()> {
    node.finish(to)?;
    match node.receive(to, &mut [], None) {
        Err(Error::Closed) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => Err("the next stage says what it should not".into()),
    }
}

fn source(plan: &Plan, node: &Node, to: Channel) -> Result<()> {
    let mut tally = Tally::default();
    for frame in 0..plan.frames as u64 {
        let mut block = node.alloc_within(plan.bytes, None)?; // waits here when the others are behind
        for (at, bytes) in block.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&word(frame, at).to_le_bytes());
        }
        tally.sent(node)?;
        node.lend(to, frame, block, None)?;
    }
    end(node, to)?;
    tally.say("source", node, None)
}

fn filter(plan: &Plan, rank: usize, node: &Node, from: Channel, to: Channel) -> Result<()> {
    let mut tally = Tally::default();
    while let Some(frame) = next(plan, node, from)? {
        let mut block = node.alloc_within(frame.body.len(), None)?;
        for (n, bytes) in block.chunks_mut(CHUNK).enumerate() {
            frame.body.read(n * CHUNK, bytes);
            bytes.iter_mut().for_each(|byte| *byte = !*byte);
        }
        let tag = frame.tag;
        done(node, frame)?;
        tally.sent(node)?;
        node.lend(to, tag, block, None)?;
    }
    node.finish(from)?;
    end(node, to)?;
    tally.say(&format!("filter {}", plan.filters + 1 - rank), node, Some(from))
}

fn sink(plan: &Plan, node: &Node, from: Channel) -> Result<()> {
    let mut tally = Tally::default();
    let negative = if plan.filters % 2 == 1 { u64::MAX } else { 0 };
    let (mut chunk, mut sum) = ([0; CHUNK], 0u64);
    while let Some(frame) = next(plan, node, from)? {
        if (frame.tag, frame.body.len()) != (tally.frames as u64, plan.bytes) {
            return Err(format!("frame {}, of {} bytes, came out of order", frame.tag, frame.body.len()).into());
        }
        for at in (0..plan.bytes).step_by(CHUNK) {
            frame.body.read(at, &mut chunk);
            for (n, bytes) in chunk.chunks_exact(8).enumerate() {
                let found = u64::from_le_bytes(bytes.try_into()?);
                if found != word(frame.tag, at / 8 + n) ^ negative {
                    return Err(format!("frame {} is wrong at byte {}", frame.tag, at + 8 * n).into());
                }
                sum = sum.wrapping_add(found);
            }
        }
        if tally.frames == 0 {
            println!("the first frame has come through {} filters", plan.filters);
        }
        std::thread::sleep(plan.pause);
        done(node, frame)?;
        tally.frames += 1;
    }
    node.finish(from)?;
    tally.say("sink", node, Some(from))?;
    if tally.frames != plan.frames {
        return Err(format!("{} frames of {}", tally.frames, plan.frames).into());
    }
    println!("all {} x {} MiB as they should be; sum {sum:016x}", plan.frames, plan.bytes / MIB);
    Ok(())
}

fn work(plan: &Plan, cq: &ProcessGroup) -> Result<()> {
    let rank = cq.rank;
    let mut options = options(&cq.name_of(rank), None);
    options.limits.pool = POOL;
    let node = Node::with(&options)?;
    node.serve(FRAMES, Serve::Queue)?;
    let to = match rank {
        0 => None,
        _ => Some(reach(&node, node.connect(&cq.name_of(rank - 1), START_TIMEOUT)?, FRAMES)?),
    };
    let from = if rank <= plan.filters { Some(node.accept(FRAMES, START_TIMEOUT)?) } else { None };
    match (from, to) {
        (None, Some(to)) => source(plan, &node, to),
        (Some(from), Some(to)) => filter(plan, rank, &node, from, to),
        (Some(from), None) => sink(plan, &node, from),
        (None, None) => Err("a pipeline without stages".into()),
    }
}

/// Runs the example with the arguments; returns the exit status.
pub fn start(arguments: &[String]) -> u8 {
    let Some(plan) = Plan::of(arguments) else {
        eprintln!("pipeline [frames] [MiB of a frame, 1 to 32] [filters, 1 to 62] [ms that the sink takes for each]");
        return 2;
    };
    processes::run(plan.filters + 2, |cq| work(&plan, cq))
}

#[allow(dead_code)] // the test of the example has its own
fn main() -> std::process::ExitCode {
    start(&std::env::args().skip(1).collect::<Vec<_>>()).into()
}
