//! Jacobi's method on regions: processes that write their borders into each other's memory.
//!
//!   cargo run --release -p motet --example jacobi -- [processes] [points along an edge] [sweeps]
//!
//! The temperature of a square plate, hot at its upper edge. The rows are distributed: each process keeps its rows in a region, with the row above
//! and the row below them (the halo), which belong to its neighbours. The neighbours put them there, directly where they can map the memory,
//! and then send an empty message, which also wakes a sleeper. Each region holds the rows twice, and sweeps alternate between the two: a
//! neighbour is at most one sweep ahead, because it needs our row for the next, so it never writes rows that are still being read.
//!
//! The largest change of every sweep is an atomic maximum in the first process's region; the processes wait for it only in the fence at the
//! end. The first process then gets the others' rows and compares them, to the last bit, with a solution of its own: each point is computed
//! by the same operations in every process, and a maximum does not depend on the order.

mod processes;

use motet::node::{
    Atomic, Channel, CompletionOptions, Datatype, Error, Key, Node, Operation, OperationId, OperationMemory, Rights,
    Serve, Target, deadline_in,
};
use processes::{ProcessGroup, Result, START_TIMEOUT, reach};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Services: of every process for its lower neighbour; of the first process for all the others.
const NEIGHBOUR: u64 = 1;
const GATHER: u64 = 2;

struct Plan {
    processes: usize,
    edge: usize,
    sweeps: usize,
}

impl Plan {
    fn of(arguments: &[String]) -> Option<Self> {
        let mut numbers = [4, 512, 500];
        for (n, argument) in arguments.iter().enumerate() {
            *numbers.get_mut(n)? = argument.parse().ok()?;
        }
        let [processes, edge, sweeps] = numbers;
        let fits = (1..=64).contains(&processes) && (processes + 2..=1 << 14).contains(&edge);
        (fits && (1..=1 << 20).contains(&sweeps)).then_some(Self { processes, edge, sweeps })
    }

    /// The first row of a process; the edges of the plate belong to none.
    fn first_row(&self, of: usize) -> usize {
        1 + (self.edge - 2) * of / self.processes
    }

    /// Rows in the region of a process, halo included.
    fn rows(&self, of: usize) -> usize {
        self.first_row(of + 1) - self.first_row(of) + 2
    }

    /// Words in a region: the largest changes, then the rows, twice.
    fn words(&self, rows: usize) -> usize {
        self.sweeps + 2 * rows * self.edge
    }

    /// The word at which a row begins that sweep `sweep` reads and the previous sweep writes.
    fn row(&self, rows: usize, sweep: usize, row: usize) -> usize {
        self.sweeps + (sweep % 2 * rows + row) * self.edge
    }

    /// The upper edge of the plate is hot.
    fn heat(&self, words: &[AtomicU64], rows: usize) {
        for sweep in 0..2 {
            let edge = self.row(rows, sweep, 0);
            words[edge..edge + self.edge].iter().for_each(|point| point.store(100f64.to_bits(), Relaxed));
        }
    }

    /// The result of one process alone.
    fn alone(&self) -> Vec<AtomicU64> {
        let words: Vec<_> = (0..self.words(self.edge)).map(|_| AtomicU64::new(0)).collect();
        self.heat(&words, self.edge);
        for sweep in 0..self.sweeps {
            let change = self.sweep(&words, self.edge, sweep, 1..self.edge - 1);
            words[sweep].store(change.to_bits(), Relaxed);
        }
        words
    }

    /// One sweep over some rows; the largest change.
    fn sweep(&self, words: &[AtomicU64], rows: usize, sweep: usize, over: Range<usize>) -> f64 {
        let point = |at: usize| f64::from_bits(words[at].load(Relaxed));
        let mut change = 0f64;
        for row in over {
            let (from, to) = (self.row(rows, sweep, row), self.row(rows, sweep + 1, row));
            for x in 1..self.edge - 1 {
                let at = from + x;
                let new = 0.25 * (point(at - 1) + point(at + 1) + point(at - self.edge) + point(at + self.edge));
                change = change.max((new - point(at)).abs());
                words[to + x].store(new.to_bits(), Relaxed);
            }
        }
        change
    }
}

/// Another process, and its region.
struct Peer {
    rank: usize,
    channel: Channel,
    key: Key,
    /// The region is mapped and used without packets.
    direct: bool,
}

impl Peer {
    /// Exchanges ranks and region keys with the other side.
    fn meet(plan: &Plan, node: &Node, channel: Channel, rank: usize, key: Key) -> Result<Self> {
        let mut theirs = [0; 8];
        node.send(channel, rank as u64, &key.0.to_le_bytes(), START_TIMEOUT)?;
        let told = node.receive(channel, &mut theirs, START_TIMEOUT)?;
        let rank = usize::try_from(told.tag).ok().filter(|&rank| rank < plan.processes).ok_or("a stranger")?;
        let key = Key(u64::from_le_bytes(theirs));
        let direct = node.open_region(channel.link, key, in_a_while())?;
        Ok(Self { rank, channel, key, direct })
    }

    /// Merges a value into a word of its region by an atomic. Only a fence reports when that is done.
    fn raise(&self, node: &Node, word: usize, value: f64, quietly: CompletionOptions) -> Result<()> {
        let (operation, datatype, operand) = (Operation::Maximum, Datatype::F64, &value.to_le_bytes());
        let atomic = Atomic { operation, datatype, count: 1, operand, compare: &[] };
        let (link, at) = (self.channel.link, 8 * word as u64);
        begin(node, || {
            node.atomic(
                Target { link, key: self.key, offset: at },
                &atomic,
                OperationMemory::Owned(Vec::new()),
                quietly,
            )
        })
        .map(drop)
    }
}

/// A deadline for answers that arrive at once.
fn in_a_while() -> Option<u64> {
    Some(deadline_in(10_000_000_000))
}

fn bytes(words: &[AtomicU64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect()
}

/// Starts an operation on a region as soon as there is room for it.
fn begin(node: &Node, mut operation: impl FnMut() -> std::result::Result<OperationId, Error>) -> Result<OperationId> {
    loop {
        match operation() {
            Err(Error::WouldBlock) => node.progress()?,
            begun => return Ok(begun?),
        };
    }
}

/// The peers: the neighbours, the first process, and in the first process all the others.
struct World {
    neighbours: Vec<Peer>,
    first: Option<Peer>,
    others: Vec<Peer>,
}

impl World {
    fn meet(plan: &Plan, cq: &ProcessGroup, node: &Node, key: Key) -> Result<Self> {
        let rank = cq.rank;
        let mut world = Self { neighbours: Vec::new(), first: None, others: Vec::new() };
        if rank > 0 {
            let above = node.connect(&cq.name_of(rank - 1), START_TIMEOUT)?;
            world.neighbours.push(Peer::meet(plan, node, reach(node, above, NEIGHBOUR)?, rank, key)?);
            let link = if rank == 1 { above } else { node.connect(&cq.name_of(0), START_TIMEOUT)? };
            world.first = Some(Peer::meet(plan, node, reach(node, link, GATHER)?, rank, key)?);
        }
        if rank + 1 < plan.processes {
            world.neighbours.push(Peer::meet(plan, node, node.accept(NEIGHBOUR, START_TIMEOUT)?, rank, key)?);
        }
        while rank == 0 && world.others.len() + 1 < plan.processes {
            world.others.push(Peer::meet(plan, node, node.accept(GATHER, START_TIMEOUT)?, rank, key)?);
        }
        Ok(world)
    }
}

fn solve(plan: &Plan, rank: usize, node: &Node, words: &[AtomicU64], world: &World) -> Result<()> {
    let rows = plan.rows(rank);
    let cq = node.add_cq()?;
    let quietly = CompletionOptions { cq: Some(cq), user_data: 0, errors_only: true };
    for sweep in 0..plan.sweeps {
        for peer in &world.neighbours {
            let theirs = plan.rows(peer.rank);
            let (ours, halo) = if peer.rank < rank { (1, theirs - 1) } else { (rows - 2, 0) };
            let (ours, halo) = (plan.row(rows, sweep, ours), 8 * plan.row(theirs, sweep, halo) as u64);
            let row = || OperationMemory::Owned(bytes(&words[ours..ours + plan.edge]));
            let put = begin(node, || {
                node.put(
                    Target { link: peer.channel.link, key: peer.key, offset: halo },
                    row(),
                    CompletionOptions::default(),
                )
            })?;
            node.finish_operation(put, None)?;
            node.send(peer.channel, sweep as u64, &[], None)?; // it is there
        }
        // The rows that need no halo; then the borders, which may be one row.
        let mut change = plan.sweep(words, rows, sweep, 2..rows - 2);
        for peer in &world.neighbours {
            node.receive(peer.channel, &mut [], None)?;
        }
        for border in [1, rows - 2] {
            change = change.max(plan.sweep(words, rows, sweep, border..border + 1));
        }
        match &world.first {
            Some(first) => first.raise(node, sweep, change, quietly)?,
            None => _ = words[sweep].fetch_max(change.to_bits(), Relaxed), // what is not negative has its bits in order, too
        }
    }
    if let Some(first) = &world.first {
        let fence = node.fence(first.channel.link, CompletionOptions::default())?;
        node.finish_operation(fence, None)?;
        if node.cq_counts(cq)?[1] > 0 {
            return Err("the first process has refused a maximum".into());
        }
    }
    Ok(())
}

/// In the first process: whether all rows match the result of one process.
fn compare(plan: &Plan, node: &Node, words: &[AtomicU64], world: &World) -> Result<bool> {
    let serial = plan.alone();
    let mut same = bytes(&words[..plan.sweeps]) == bytes(&serial[..plan.sweeps]);
    let mut check = |rank: usize, found: Vec<u8>| {
        let from = plan.row(plan.edge, plan.sweeps, plan.first_row(rank));
        same &= found == bytes(&serial[from..][..found.len() / 8]);
    };
    let inside = |rank: usize| {
        let from = plan.row(plan.rows(rank), plan.sweeps, 1);
        from..from + (plan.rows(rank) - 2) * plan.edge
    };
    check(0, bytes(&words[inside(0)]));
    for peer in &world.others {
        let (link, range) = (peer.channel.link, inside(peer.rank));
        let memory = || OperationMemory::Owned(vec![0; 8 * range.len()]);
        let get = begin(node, || {
            node.get(
                Target { link, key: peer.key, offset: 8 * range.start as u64 },
                memory(),
                CompletionOptions::default(),
            )
        })?;
        check(peer.rank, node.finish_operation(get, None)?);
    }
    Ok(same)
}

fn work(plan: &Plan, cq: &ProcessGroup) -> Result<()> {
    let (rank, rows) = (cq.rank, plan.rows(cq.rank));
    let node = Node::open(&cq.name_of(rank))?;
    node.serve(NEIGHBOUR, Serve::Queue)?;
    node.serve(GATHER, Serve::Queue)?;
    let (memory, key) = node.alloc_region(8 * plan.words(rows), Rights::ALL)?;
    let words = memory.words().ok_or("the region is no row of words")?;
    if rank == 0 {
        plan.heat(words, rows);
    }
    let world = World::meet(plan, cq, &node, key)?;
    if rank == 0 {
        let direct = world.others.iter().filter(|peer| peer.direct).count();
        println!("{} processes have met; the first sees {direct} regions of others", plan.processes);
    }
    let start = Instant::now();
    solve(plan, rank, &node, words, &world)?;
    let each = start.elapsed().as_secs_f64() * 1e6 / plan.sweeps as f64;
    if let Some(first) = &world.first {
        node.send(first.channel, 0, &[], None)?; // all of ours is there
        node.receive(first.channel, &mut [], None)?; // and has been seen
        return Ok(node.revoke(key, in_a_while())?);
    }
    for peer in &world.others {
        node.receive(peer.channel, &mut [], None)?;
    }
    let same = compare(plan, &node, words, &world)?;
    for peer in &world.others {
        node.send(peer.channel, 0, &[], None)?;
    }
    let change = f64::from_bits(words[plan.sweeps - 1].load(Relaxed));
    node.revoke(key, in_a_while())?;
    if !same {
        return Err("this is NOT the serial result".into());
    }
    let (edge, sweeps, result) = (plan.edge, plan.sweeps, "the serial result, to the last bit");
    println!("{edge} x {edge} points, {sweeps} sweeps: {each:.1} us each; last change {change:.3e}; {result}");
    Ok(())
}

/// Runs the example with the arguments; returns the exit status.
pub fn start(arguments: &[String]) -> u8 {
    let Some(plan) = Plan::of(arguments) else {
        eprintln!("jacobi [processes, at most 64] [points along an edge, more than processes + 1] [sweeps]");
        return 2;
    };
    processes::run(plan.processes, |cq| work(&plan, cq))
}

#[allow(dead_code)] // the test of the example has its own
fn main() -> std::process::ExitCode {
    start(&std::env::args().skip(1).collect::<Vec<_>>()).into()
}
