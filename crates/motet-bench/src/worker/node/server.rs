//! One server that receives from any of many clients, each of which sends windows of 16 messages and then waits for an answer.

use super::{END, SERVICE, TAKE, TIMEOUT, join, open, print_address, windows};
use crate::worker::measure;
use anyhow::{Result, bail};
use motet::node::{Channel, Node, RecvFrom, Serve};
use std::collections::HashMap;
use std::time::{Duration, Instant};

const WINDOW: usize = 16;
/// Bytes after which the ring of a client is faulted in.
const RING: u64 = 5 << 20;

/// The state of the server.
struct Serving {
    node: Node,
    from: RecvFrom,
    memory: Vec<u8>,
    clients: HashMap<Channel, Client>,
    over: bool,
}

#[derive(Default)]
struct Client {
    /// Messages of its window.
    received: usize,
    /// All messages.
    total: u64,
    ended: bool,
}

impl Serving {
    fn open(how: &str, clients: usize, size: usize) -> Result<Self> {
        let node = open(how)?;
        let context = node.context()?;
        node.serve(SERVICE, Serve::Tagged(context))?;
        print_address(&node, how)?;
        let mut known = HashMap::new();
        while known.len() < clients {
            known.insert(node.accept(SERVICE, Some(TIMEOUT))?, Client::default());
        }
        for &channel in known.keys() {
            node.send(channel, TAKE, &[], None)?;
        }
        Ok(Self { node, from: RecvFrom::Any(context), memory: vec![0; size], clients: known, over: false })
    }

    /// Receives the next message, from any client.
    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        let Self { node, from, memory, clients, over } = self;
        let received = node.receive_tagged(*from, 0, u64::MAX, memory, None)?;
        if received.length != memory.len() {
            bail!("a message of {} bytes", received.length);
        }
        if let Some(client) = clients.get_mut(&received.channel) {
            client.received += 1;
            client.total += 1;
            if client.received == WINDOW {
                client.received = 0;
                client.ended = *over;
                node.send(received.channel, if *over { END } else { TAKE }, &[], None)?;
            }
        }
        Ok(())
    }

    /// Receives until every client has sent, and has been round its ring once.
    fn warm_up(&mut self) -> Result<()> {
        let least = (2 * WINDOW as u64).max(RING / self.memory.len().max(1) as u64);
        while self.clients.values().any(|client| client.total < least) {
            self.receive()?;
        }
        Ok(())
    }

    /// Lets all clients end.
    fn end(mut self) -> Result<()> {
        self.over = true;
        while self.clients.values().any(|client| !client.ended) {
            self.receive()?;
        }
        Ok(())
    }
}

/// Measures the time between two messages, ns.
pub fn serve(how: &str, clients: usize, size: usize, ms: usize) -> Result<()> {
    let mut serving = Serving::open(how, clients, size)?;
    serving.warm_up()?;
    println!("{}", measure(64, ms, 1.0, |count| (0..count).try_for_each(|_| serving.receive()))?);
    serving.end()
}

/// Prints the time between two messages, ns, their number, and the messages of the clients with least and most.
pub fn shares(how: &str, clients: usize, size: usize, ms: usize) -> Result<()> {
    let mut serving = Serving::open(how, clients, size)?;
    serving.warm_up()?;
    serving.clients.values_mut().for_each(|client| client.total = 0);
    let (begun, time, mut count) = (Instant::now(), Duration::from_millis(ms as u64), 0u64);
    while begun.elapsed() < time {
        for _ in 0..64 {
            serving.receive()?;
        }
        count += 64;
    }
    let each = begun.elapsed().as_nanos() as f64 / count as f64;
    let totals = || serving.clients.values().map(|client| client.total);
    let (least, most) = (totals().min().unwrap_or(0), totals().max().unwrap_or(0));
    println!("{each:.1} {count} {least} {most}");
    serving.end()
}

/// Sends until the server ends it.
pub fn call(how: &str, at: [&str; 2], size: usize) -> Result<()> {
    let (node, channel) = join(how, at[0], at[1])?;
    let memory: &'static [u8] = vec![1u8; size].leak();
    let mut begun = Vec::with_capacity(WINDOW);
    while node.receive(channel, &mut [], None)?.tag != END {
        for _ in 0..WINDOW {
            windows::begin(&node, channel, memory, &mut begun)?;
        }
        for operation in begun.drain(..) {
            node.finish_operation(operation, None)?;
        }
    }
    Ok(())
}
