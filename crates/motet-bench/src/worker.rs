//! This executable as a measuring program: streams of the engine, and plain TCP by the same code.
//!
//! `--worker ping|stream engine|tcp|tcp-polling serve|call …` speaks the protocol of `tests/bench/peer.h`, and adds to the figures
//! the part of the payload that shared memory carried. `hub`, `peer` and `hold` are processes that are examined from outside. `fifo`
//! measures FIFOs without the engine, `files` remote files, `node` messages, `loan` loaned messages and regions, `rsr` remote service requests, `session` circuits. A worker inherits its
//! CPU affinity.

mod fifo;
mod files;
mod loan;
mod managed;
mod node;
mod rsr;
mod session;

pub use managed::depth as managed_depth;

use anyhow::{Context, Result, bail};
use motet::{Path, Stream};
use std::io::{BufRead, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Runs as the worker that these words describe.
pub fn run(words: &[String]) -> Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["ping", kind, "serve"] => serve_ping(accept_one(&listen()?, kind)?, false),
        ["ping", kind, "serve", "fresh"] => serve_ping(accept_one(&listen()?, kind)?, true),
        ["ping", kind, "call", host, port, size, ms] => {
            call_ping(connect(host, port, kind)?, number(size)?, number(ms)?)
        }
        ["stream", kind, "serve"] => serve_stream(accept_one(&listen()?, kind)?),
        ["stream", kind, "call", host, port, size, ms, ref buffers @ ..] => {
            let buffers = buffers.first().map_or(Ok(1), |b| number(b))?;
            call_stream(connect(host, port, kind)?, number(size)?, number(ms)?, buffers)
        }
        ["sweep", "serve"] => serve_sweep(accept_one(&listen()?, "engine")?),
        ["sweep", "call", host, port] => call_sweep(connect(host, port, "engine")?),
        ["fifo", _, "serve"] => fifo::serve(),
        ["fifo", what, "call", _, port, size, ms] => fifo::call(what, port, number(size)?, number(ms)?),
        ["files", "managed", way, name, bytes] => managed::run(way, name, number(bytes)?),
        ["files", ref words @ ..] => files::run(words),
        ["loan", "turn", size, count] => loan::turn(number(size)?, number(count)?),
        ["loan", "serve"] | ["loan", _, "serve"] => loan::serve(),
        ["loan", what, "call", _, port, size, ms] => loan::call(what, port, number(size)?, number(ms)?),
        ["node", ref words @ ..] => node::run(words),
        ["rsr", ref words @ ..] => rsr::run(words),
        ["session", ref words @ ..] => session::run(words),
        ["hub", "serve"] => hub(),
        ["peer", kind, "call", host, port, links, rounds] => peer(host, port, kind, number(links)?, number(rounds)?),
        ["hold", "serve", size, count] => hold(number(size)?, number(count)?),
        _ => bail!("no such worker: {}", words.join(" ")),
    }
}

fn number(word: &str) -> Result<usize> {
    word.parse().with_context(|| format!("`{word}` is not a number"))
}

/// A connection: a stream of the engine, or a TCP socket.
enum Pipe {
    Engine(Stream),
    Tcp(TcpStream),
    /// A TCP socket that does not block: a call that would block is repeated at once.
    PollingTcp(TcpStream),
}

fn until_ready(mut turn: impl FnMut() -> std::io::Result<usize>) -> std::io::Result<usize> {
    loop {
        match turn() {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            done => return done,
        }
    }
}

impl Read for Pipe {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Pipe::Engine(s) => s.read(into),
            Pipe::Tcp(s) => s.read(into),
            Pipe::PollingTcp(s) => until_ready(|| s.read(into)),
        }
    }
}

impl Write for Pipe {
    fn write(&mut self, from: &[u8]) -> std::io::Result<usize> {
        match self {
            Pipe::Engine(s) => s.write(from),
            Pipe::Tcp(s) => s.write(from),
            Pipe::PollingTcp(s) => until_ready(|| s.write(from)),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Pipe {
    fn new(tcp: TcpStream, kind: &str, connected: bool) -> Result<Self> {
        tcp.set_nodelay(true)?;
        Ok(match (kind, connected) {
            ("engine", true) => Pipe::Engine(Stream::connected(tcp)?),
            ("engine", false) => Pipe::Engine(Stream::accepted(tcp)?),
            ("tcp-polling", _) => {
                tcp.set_nonblocking(true)?;
                Pipe::PollingTcp(tcp)
            }
            _ => Pipe::Tcp(tcp),
        })
    }

    /// The part of the payload that shared memory carried. A stream of the engine that was not upgraded is an error, as the row would
    /// not show what it claims.
    fn share(&self) -> Result<f64> {
        let Pipe::Engine(stream) = self else {
            return Ok(0.0);
        };
        let stats = stream.stats()?;
        if stats.path == Path::Tcp {
            bail!("the engine stayed on TCP: {}", motet::reason::text(stats.reason));
        }
        let (fast, tcp) = stats.sent;
        Ok(fast as f64 / (fast + tcp).max(1) as f64)
    }

    /// Exchanges messages until a stream may be upgraded, as `greet` of `tests/bench/peer.h`.
    fn greet(&mut self, first: bool) -> Result<()> {
        let mut message = [0; 8];
        for turn in 0..2 * 32 {
            if (turn & 1 == 0) == first {
                self.write_all(&message)?;
            } else {
                self.must_fill(&mut message)?;
            }
        }
        Ok(())
    }

    /// Reads a whole message; false if the peer has closed the connection.
    fn fill(&mut self, into: &mut [u8]) -> Result<bool> {
        match self.read_exact(into) {
            Ok(()) => Ok(true),
            Err(e) if [std::io::ErrorKind::UnexpectedEof, std::io::ErrorKind::ConnectionReset].contains(&e.kind()) => {
                Ok(false)
            }
            Err(e) => Err(e.into()),
        }
    }

    fn must_fill(&mut self, into: &mut [u8]) -> Result<()> {
        if !self.fill(into)? {
            bail!("the server closed the connection");
        }
        Ok(())
    }
}

fn listen() -> Result<TcpListener> {
    let listener = TcpListener::bind("0.0.0.0:0")?;
    println!("port {}", listener.local_addr()?.port());
    Ok(listener)
}

fn accept_one(listener: &TcpListener, kind: &str) -> Result<Pipe> {
    Pipe::new(listener.accept()?.0, kind, false)
}

fn connect(host: &str, port: &str, kind: &str) -> Result<Pipe> {
    let tcp = TcpStream::connect((host, port.parse()?))?;
    Pipe::new(tcp, kind, true)
}

/// Measures blocks of operations for `ms` milliseconds, as `measure` of `tests/bench/peer.h`. Returns `MEDIAN MEAN COUNT`.
fn measure(count: usize, ms: usize, share: f64, mut block: impl FnMut(usize) -> Result<()>) -> Result<String> {
    // Rings and buffers are faulted in meanwhile.
    const WARM_UP: Duration = Duration::from_millis(30);
    let time = Duration::from_millis(ms as u64);
    let probe = if count > 0 { count } else { 64 };
    let start = Instant::now();
    let last = loop {
        let begun = Instant::now();
        block(probe)?;
        if start.elapsed() >= WARM_UP.max(time / 5) {
            break begun.elapsed();
        }
    };
    let fit = (3e5 / (last.as_nanos() as f64 / probe as f64)).clamp(1.0, 1e6);
    let count = if count > 0 { count } else { fit as usize };
    let mut blocks = Vec::new();
    let begun = Instant::now();
    let mut before = begun;
    while blocks.is_empty() || begun.elapsed() < time {
        block(count)?;
        let end = Instant::now();
        blocks.push((end - before).as_nanos() as f64 / count as f64);
        before = end;
    }
    let total = (blocks.len() * count) as f64;
    let mean = (before - begun).as_nanos() as f64 / total;
    Ok(format!("{:.1} {:.1} {total}", crate::stats::median(&blocks) / share, mean / share))
}

/// Echoes messages. With `fresh` each arrives in memory of its own, as in a library that allocates for every message.
fn serve_ping(mut pipe: Pipe, fresh: bool) -> Result<()> {
    let mut size = [0; 8];
    if !pipe.fill(&mut size)? {
        return Ok(());
    }
    let size = u64::from_ne_bytes(size) as usize;
    let mut data = vec![0; size];
    while pipe.fill(&mut data)? {
        pipe.write_all(&data)?;
        if fresh {
            drop(std::mem::take(&mut data)); // freed before the next allocation, in the order of an ORB's stub
            data = vec![0; size];
        }
    }
    Ok(())
}

fn call_ping(mut pipe: Pipe, size: usize, ms: usize) -> Result<()> {
    let mut data = vec![0; size];
    pipe.write_all(&(size as u64).to_ne_bytes())?;
    let result = measure(0, ms, 2.0, |count| {
        for _ in 0..count {
            pipe.write_all(&data)?;
            pipe.must_fill(&mut data)?;
        }
        Ok(())
    })?;
    println!("{result} {:.3}", pipe.share()?);
    Ok(())
}

/// Buffers with every page touched.
fn buffers(size: usize, count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|_| vec![1u8; size]).collect()
}

fn serve_stream(mut pipe: Pipe) -> Result<()> {
    let mut plan = [0; 24];
    pipe.greet(false)?;
    if !pipe.fill(&mut plan)? {
        return Ok(());
    }
    let [size, count, distinct] =
        [0, 8, 16].map(|at| u64::from_ne_bytes(plan[at..at + 8].try_into().unwrap_or_default()) as usize);
    let mut buffers = buffers(size, distinct);
    let mut received = 0;
    while pipe.fill(&mut buffers[received % distinct])? {
        received += 1;
        if received % count == 0 {
            pipe.write_all(&[0])?;
        }
    }
    Ok(())
}

fn call_stream(mut pipe: Pipe, size: usize, ms: usize, distinct: usize) -> Result<()> {
    let count = ((16 << 20) / size).clamp(1, 4096);
    let buffers = buffers(size, distinct);
    let plan = [size, count, distinct].map(|n| (n as u64).to_ne_bytes());
    pipe.greet(true)?;
    pipe.write_all(plan.as_flattened())?;
    let mut sent = 0;
    let result = measure(count, ms, 1.0, |count| {
        for _ in 0..count {
            pipe.write_all(&buffers[sent % distinct])?;
            sent += 1;
        }
        pipe.must_fill(&mut [0])
    })?;
    println!("{result} {:.3}", pipe.share()?);
    Ok(())
}

/// Bytes of memory of a sweep, more than the caches hold. It is cut into buffers of the current size.
const SWEEP_BYTES: usize = 32 << 20;

/// Decodes the plan of a burst: size, count, number of distinct buffers, whether each message is answered.
fn sweep_plan(bytes: &[u8; 32]) -> [usize; 4] {
    [0, 8, 16, 24].map(|at| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap_or_default()) as usize)
}

/// How long the sender waits before each message that is answered, so that the receiver is waiting.
const SENDER_PAUSE: Duration = Duration::from_micros(5);

/// Receives bursts, each after its plan. Answers the first and the last message of a burst, or each.
fn serve_sweep(mut pipe: Pipe) -> Result<()> {
    let mut memory = vec![1u8; SWEEP_BYTES];
    let mut plan = [0; 32];
    loop {
        // Messages before each burst: after a pause a stream may start on TCP again.
        let mut first = [0; 8];
        if !pipe.fill(&mut first)? {
            return Ok(());
        }
        pipe.write_all(&first)?;
        pipe.greet(false)?;
        pipe.must_fill(&mut plan)?;
        let [size, count, distinct, each] = sweep_plan(&plan);
        for i in 0..count {
            pipe.must_fill(&mut memory[i % distinct * size..][..size])?;
            if each != 0 || i == 0 || i + 1 == count {
                pipe.write_all(&[0])?;
            }
        }
    }
}

/// For each line `SIZE COUNT DISTINCT EACH` on standard input: sends one message and then COUNT more. Prints the time of each, ns, and
/// how many were single copies.
fn call_sweep(mut pipe: Pipe) -> Result<()> {
    let memory = vec![1u8; SWEEP_BYTES];
    let engine = motet::engine().context("no engine")?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Result<Vec<usize>> = line.split_whitespace().map(number).collect();
        let [size, count, distinct, each] = words?[..] else { bail!("no such command: {line}") };
        let mut first = [0; 8];
        pipe.write_all(&first)?;
        pipe.must_fill(&mut first)?;
        pipe.greet(true)?;
        pipe.write_all([size, count + 1, distinct, each].map(|n| (n as u64).to_ne_bytes()).as_flattened())?;
        let copies = engine.totals().events[2];
        let mut total = Duration::ZERO;
        for i in 0..=count {
            if each != 0 || i <= 1 {
                let pause = Instant::now();
                while pause.elapsed() < SENDER_PAUSE {
                    std::hint::spin_loop();
                }
            }
            let begun = Instant::now();
            pipe.write_all(&memory[i % distinct * size..][..size])?;
            if each != 0 || i == 0 || i == count {
                pipe.must_fill(&mut [0])?;
            }
            if i > 0 {
                total += begun.elapsed();
            }
        }
        let ns = total.as_nanos() as f64 / count as f64;
        println!("{ns:.1} {}", engine.totals().events[2] - copies);
    }
    Ok(())
}

/// A process with many links. Commands on standard input: `take N ROUNDS` accepts N connections and echoes ROUNDS messages of 8 bytes
/// on each; `wait` waits for any of them without a limit. It ends when standard input ends.
fn hub() -> Result<()> {
    let listener = listen()?;
    let mut links = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["take", count, rounds] => {
                for _ in 0..number(count)? {
                    let mut pipe = accept_one(&listener, "engine")?;
                    let mut message = [0; 8];
                    for _ in 0..number(rounds)? {
                        pipe.must_fill(&mut message)?;
                        pipe.write_all(&message)?;
                    }
                    links.push(pipe);
                }
                let fast = links.iter().filter(|link| matches!(link, Pipe::Engine(_)) && link.share().is_ok()).count();
                println!("taken {} {fast}", links.len());
            }
            ["wait"] => {
                println!("waiting");
                wait_any(&links)?;
            }
            _ => bail!("no such command: {line}"),
        }
    }
    Ok(())
}

fn wait_any(links: &[Pipe]) -> Result<()> {
    let streams: Vec<&Stream> =
        links.iter().filter_map(|l| if let Pipe::Engine(s) = l { Some(s) } else { None }).collect();
    motet::wait_any(&streams, None)?;
    Ok(())
}

/// A peer of a hub: opens links, exchanges messages on each, then waits until the hub ends.
fn peer(host: &str, port: &str, kind: &str, links: usize, rounds: usize) -> Result<()> {
    let mut pipes = Vec::new();
    for _ in 0..links {
        let mut pipe = connect(host, port, kind)?;
        let mut message = [0; 8];
        for _ in 0..rounds {
            pipe.write_all(&message)?;
            pipe.must_fill(&mut message)?;
        }
        pipes.push(pipe);
    }
    println!("up");
    match &mut pipes[..] {
        [Pipe::Tcp(only)] => drop(only.read(&mut [0])?),
        _ => wait_any(&pipes)?,
    }
    Ok(())
}

/// Memory that another process copies: prints its addresses, and keeps it until standard input ends.
fn hold(size: usize, count: usize) -> Result<()> {
    let buffers = buffers(size, count);
    let addresses: Vec<String> = buffers.iter().map(|b| b.as_ptr().addr().to_string()).collect();
    println!("{}", addresses.join(" "));
    let _ = std::io::stdin().read(&mut [0])?;
    Ok(())
}
