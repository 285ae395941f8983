//! A pipeline on loans: frames of megabytes go from process to process, each read where the stage before has put it.
//!
//!   cargo run --release -p motet --example pipeline -- [frames] [MiB of a frame] [filters] [ms that the sink takes for each]
//!
//! A source fills blocks of its pool and lends them on; each filter reads a frame from the memory of the stage before, writes its negative
//! into a block of its own, gives the frame back and lends the new one on; the sink computes every word again. No frame is copied on
//! its way, whatever its length: each stage says at its end how many were lent to it, how many came as copies (as they would over TCP),
//! and how much of its own pool was out at most. A stage that is slow makes those before it wait for blocks to come back, no more.
//!
//! Process 0 is the sink; each other one sends to the process one less, the last is the source.

mod family;

use family::{Family, Result, SOON, reach};
use motet::node::{Channel, Content, Error, From, InPlace, Node, Serve, options};
use std::time::Duration;

const FRAMES: u64 = 1;
/// Bytes of each stage's pool.
const POOL: usize = 64 << 20;
/// Bytes that are read at a time: they stay in the cache nearest to the CPU.
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

/// What the source says at a word of a frame.
fn word(frame: u64, at: usize) -> u64 {
    (at as u64 ^ frame << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(frame as u32)
}

/// What a stage has seen.
#[derive(Default)]
struct Tally {
    frames: usize,
    /// Most bytes of its own pool that were lent, or being filled.
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
                format!("{} read in place, {} copied; ", counts.lent, counts.copied)
            }
            None => String::new(),
        };
        println!("{who}: {} frames; {read}at most {} MiB of its pool out", self.frames, self.out / MIB);
        Ok(())
    }
}

/// The next frame, until the stage before has no more.
fn next(plan: &Plan, node: &Node, from: Channel) -> Result<Option<InPlace>> {
    match node.receive_in_place(From::Channel(from), 0, u64::MAX, plan.bytes, None) {
        Err(Error::Closed) => Ok(None),
        came => Ok(Some(came?)),
    }
}

/// A frame has been read: at once the stage before has its block again.
fn done(node: &Node, frame: InPlace) -> Result<()> {
    if let Content::Lent(lent) = frame.body {
        node.give_back(lent)?;
    }
    Ok(())
}

/// Says that no more comes, and waits until the next stage has given all back, which it says likewise.
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

fn work(plan: &Plan, family: &Family) -> Result<()> {
    let rank = family.rank;
    let mut options = options(&family.name_of(rank), None);
    options.limits.pool = POOL;
    let node = Node::with(&options)?;
    node.serve(FRAMES, Serve::Queue)?;
    let to = match rank {
        0 => None,
        _ => Some(reach(&node, node.connect(&family.name_of(rank - 1), SOON)?, FRAMES)?),
    };
    let from = if rank <= plan.filters { Some(node.accept(FRAMES, SOON)?) } else { None };
    match (from, to) {
        (None, Some(to)) => source(plan, &node, to),
        (Some(from), Some(to)) => filter(plan, rank, &node, from, to),
        (Some(from), None) => sink(plan, &node, from),
        (None, None) => Err("a pipeline of nobody".into()),
    }
}

/// Does what the arguments say; returns what to exit with.
pub fn start(arguments: &[String]) -> u8 {
    let Some(plan) = Plan::of(arguments) else {
        eprintln!("pipeline [frames] [MiB of a frame, 1 to 32] [filters, 1 to 62] [ms that the sink takes for each]");
        return 2;
    };
    family::run(plan.filters + 2, |family| work(&plan, family))
}

#[allow(dead_code)] // the test of the example has its own
fn main() -> std::process::ExitCode {
    start(&std::env::args().skip(1).collect::<Vec<_>>()).into()
}
