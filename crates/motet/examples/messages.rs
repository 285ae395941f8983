//! Ping-pong with messages: two nodes of one process, each with a thread, linked by name.
//!
//!   cargo run --release -p motet --example messages -- [round trips] [bytes]
//!
//! Every answer is checked. Prints the median of seven runs, ns one way, and the driver that carried the messages.

use motet::node::{Error, Node, Serve};
use std::time::{Duration, Instant};

const SERVICE: u64 = 1;
const RUNS: usize = 7;
const START_TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));

/// Sends every message back, with the next tag, until the peer has finished.
fn answer(node: &Node, length: usize) -> Result<(), Error> {
    let channel = node.accept(SERVICE, START_TIMEOUT)?;
    let mut buffer = vec![0; length];
    loop {
        match node.receive(channel, &mut buffer, None) {
            Ok(came) => node.send(channel, came.tag + 1, &buffer[..came.length], None)?,
            Err(Error::Closed) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

fn measure(node: &Node, to: &str, rounds: u64, length: usize) -> Result<(Vec<f64>, &'static str), Error> {
    let link = node.connect(to, START_TIMEOUT)?;
    let channel = node.open_channel(link, SERVICE, Serve::Queue, START_TIMEOUT)?;
    let (mut sent, mut back) = (vec![0u8; length], vec![0u8; length]);
    let mut runs = Vec::new();
    for _ in 0..=RUNS {
        let start = Instant::now();
        for n in 0..rounds {
            sent.iter_mut().take(1).for_each(|first| *first = n as u8);
            node.send(channel, n, &sent, None)?;
            let came = node.receive(channel, &mut back, None)?;
            assert!(came.tag == n + 1 && came.length == length && back == sent, "a wrong answer to {n}");
        }
        runs.push(start.elapsed().as_nanos() as f64 / rounds as f64 / 2.0);
    }
    runs.remove(0); // the first one warms up
    runs.sort_by(f64::total_cmp);
    let driver = node.link_info(link)?.driver;
    node.finish(channel)?;
    Ok((runs, driver))
}

/// Runs both ends: seven times `rounds` round trips of `length` bytes. Returns the runs and the driver.
pub fn ping_pong(rounds: u64, length: usize) -> Result<(Vec<f64>, &'static str), Error> {
    let (near, far) = (Node::open("")?, Node::open("")?);
    far.serve(SERVICE, Serve::Queue)?;
    let name = far.name()?;
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| answer(&far, length));
        let measured = measure(&near, &name, rounds, length);
        if measured.is_err() {
            let _ = far.shut_down(); // the other thread need not wait on
        }
        let answered = answering.join().expect("the thread that answers");
        measured.and_then(|measured| answered.map(|()| measured))
    })
}

#[allow(dead_code)] // the test of the example has its own
fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1).map_while(|argument| argument.parse::<u64>().ok());
    let (rounds, length) = (arguments.next().unwrap_or(100_000).max(1), arguments.next().unwrap_or(8) as usize);
    let (runs, driver) = ping_pong(rounds, length)?;
    let (median, first, last) = (runs[RUNS / 2], runs[0], runs[RUNS - 1]);
    println!("{length} bytes, one way: median {median:.0} ns ({first:.0} to {last:.0}); driver: {driver}");
    Ok(())
}
