//! Remote service requests that are measured, beside messages of the engine between the same two processes.
//!
//! `--worker rsr serve RECEPTION ONE_PACKET [ADDRESS]` prints its startpoint; it listens for other hosts at ADDRESS. `--worker rsr call RECEPTION ONE_PACKET START` answers each line `WHAT SIZE MS` on
//! standard input with `MEDIAN MEAN COUNT`, times in ns. `RECEPTION`: caller, thread or channel; `engine`: messages without requests, and START is an
//! address.

use super::number;
use anyhow::{Context, Result, bail, ensure};
use motet::node::{Channel, Node, Serve};
use motet_rsr::{Buffer, Element, Endpoint, Format, Handlers, Options, Reader, Reception, Request, Rsr, Startpoint};
use std::cell::Cell;
use std::io::BufRead;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Nothing takes so long.
const LIMIT: Option<Duration> = Some(Duration::from_secs(20));
/// Where processes of one host listen.
const HERE: &str = "127.0.0.1";
/// The service of the engine's messages.
const SERVICE: u64 = u64::from_be_bytes(*b"rsrbench");
/// Messages or requests of a stream before their receiver answers once.
const WINDOW: u64 = 16;
/// Longest message of the engine here, bytes.
const LONGEST: usize = 4 << 20;
/// Operations that are timed together.
const BLOCK: u32 = 16;
/// The handlers.
const PING: u32 = 1;
const BLOCK_OF_BYTES: u32 = 2;
const CALL: u32 = 3;
const MEET: u32 = 4;
const MAKE: u32 = 5;
const FOREIGN: u32 = 6;

/// Runs a role.
pub fn run(words: &[&str]) -> Result<()> {
    match *words {
        ["serve", "engine", _] => serve_messages(),
        ["call", "engine", _, address] => Messages::new(address)?.answer(),
        ["serve", reception, one_packet] => serve(options(reception, one_packet)?, HERE),
        ["serve", reception, one_packet, address] => serve(options(reception, one_packet)?, address),
        ["call", reception, one_packet, start] => Caller::new(options(reception, one_packet)?, start)?.answer(),
        _ => bail!("no such role: {}", words.join(" ")),
    }
}

fn options(reception: &str, one_packet: &str) -> Result<Options> {
    let reception = match reception {
        "caller" => Reception::Caller,
        "thread" => Reception::OneThread,
        "channel" => Reception::ThreadPerChannel,
        _ => bail!("no such reception: {reception}"),
    };
    Ok(Options { reception, one_packet: number(one_packet)?, ..Options::default() })
}

fn attach(options: &Options, address: &str) -> Result<Rsr> {
    Ok(Rsr::attach(&Arc::new(Node::listen("", SocketAddr::new(address.parse()?, 0))?), options.clone())?)
}

// ---- the server ----------------------------------------------------------------------------------------------------

/// What the handlers of the server share.
struct Server {
    rsr: OnceLock<Rsr>,
    /// Where pings go back.
    back: OnceLock<Startpoint>,
    blocks: AtomicU64,
    numbers: Mutex<Vec<f64>>,
    made: Mutex<Vec<Endpoint>>,
}

fn serve(options: Options, address: &str) -> Result<()> {
    let rsr = attach(&options, address)?;
    let server: Arc<Server> = Arc::new(Server {
        rsr: OnceLock::new(),
        back: OnceLock::new(),
        blocks: AtomicU64::new(0),
        numbers: Mutex::default(),
        made: Mutex::default(),
    });
    let _ = server.rsr.set(rsr.clone());
    let with = |run: fn(&Server, &mut Request<'_>) -> Result<()>| {
        let server = server.clone();
        move |request: &mut Request<'_>| run(&server, request).unwrap_or_else(|error| eprintln!("{error:#}"))
    };
    let handlers = Handlers::new()
        .on(PING, with(|server, request| server.send_back(request.bytes())))
        .on(BLOCK_OF_BYTES, with(|server, _| server.count()))
        .on(FOREIGN, with(Server::convert))
        .on(CALL, with(|_, request| Ok(request.reply(&Buffer::new())?)))
        .on(
            MEET,
            with(|server, request| {
                let _ = server.back.set(request.reader().get_startpoint()?);
                Ok(request.reply(&Buffer::new())?)
            }),
        )
        .on(
            MAKE,
            with(|server, request| {
                let handlers = Handlers::new().on(CALL, |request| _ = request.reply(&Buffer::new()));
                let endpoint = server.rsr.get().context("attached")?.endpoint(handlers)?;
                let text = endpoint.startpoint()?.to_text();
                server.made.lock().unwrap_or_else(PoisonError::into_inner).push(endpoint);
                Ok(request.reply(Buffer::new().put_str(&text))?)
            }),
        );
    let endpoint = rsr.endpoint(handlers)?;
    println!("{}", endpoint.startpoint()?.to_text());
    end_with_caller();
    loop {
        match options.reception {
            Reception::Caller => _ = rsr.poll(Some(Duration::from_secs(1)))?,
            _ => std::thread::sleep(Duration::from_secs(1)),
        }
    }
}

/// Ends this process when its standard input ends.
fn end_with_caller() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().lock().lines().count();
        std::process::exit(0);
    });
}

impl Server {
    fn send_back(&self, bytes: &[u8]) -> Result<()> {
        let (rsr, back) = (self.rsr.get().context("attached")?, self.back.get().context("no startpoint")?);
        let mut buffer = Buffer::new();
        if !bytes.is_empty() {
            buffer.borrow(bytes);
        }
        Ok(rsr.request(back, PING, &buffer, LIMIT)?)
    }

    fn count(&self) -> Result<()> {
        if (self.blocks.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(WINDOW) {
            self.send_back(&[])?;
        }
        Ok(())
    }

    /// Takes a block as one of the other byte order.
    fn convert(&self, request: &mut Request<'_>) -> Result<()> {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.resize((request.bytes().len() - 8) / 8, 0.0);
        let format = Format { big_endian: !Format::HERE.big_endian, ..Format::HERE };
        Reader::new(request.bytes(), format).get_array_into(&mut numbers)?;
        drop(numbers);
        self.count()
    }
}

// ---- messages of the engine ----------------------------------------------------------------------------------------

/// Answers messages: those with tag 1 by the same message, of those with tag 2 every [`WINDOW`]th by an empty one.
fn serve_messages() -> Result<()> {
    let node = Node::open("")?;
    node.serve(SERVICE, Serve::Queue)?;
    println!("{}", node.address()?);
    end_with_caller();
    let channel = node.accept(SERVICE, None)?;
    let (mut bytes, mut count) = (vec![0; LONGEST], 0u64);
    loop {
        let got = node.receive(channel, &mut bytes, None)?;
        count += u64::from(got.tag == 2);
        match got.tag {
            1 => node.send(channel, 1, &bytes[..got.length], LIMIT)?,
            _ if count.is_multiple_of(WINDOW) => node.send(channel, 1, &[], LIMIT)?,
            _ => {}
        }
    }
}

struct Messages {
    node: Node,
    channel: Channel,
}

impl Messages {
    fn new(address: &str) -> Result<Self> {
        let node = Node::open("")?;
        let link = node.connect(address, LIMIT)?;
        let channel = node.open_channel(link, SERVICE, Serve::Queue, LIMIT)?;
        Ok(Self { node, channel })
    }

    fn answer(&self) -> Result<()> {
        let mut into = vec![0u8; LONGEST];
        each_question(|what, block, ms| match what {
            "ping" => timed(ms, 2 * BLOCK, || (0..BLOCK).try_for_each(|_| self.ping(block, &mut into))),
            "stream" => timed(ms, WINDOW as u32, || self.stream(block, &mut into)),
            _ => bail!("no such command: {what}"),
        })
    }

    fn ping(&self, block: &[u8], into: &mut [u8]) -> Result<()> {
        self.node.send(self.channel, 1, block, LIMIT)?;
        self.node.receive(self.channel, into, LIMIT)?;
        Ok(())
    }

    fn stream(&self, block: &[u8], into: &mut [u8]) -> Result<()> {
        (0..WINDOW).try_for_each(|_| self.node.send(self.channel, 2, block, LIMIT))?;
        self.node.receive(self.channel, into, LIMIT)?;
        Ok(())
    }
}

/// Answers the questions on standard input, each with a block of its size.
fn each_question(mut answer: impl FnMut(&str, &[u8], usize) -> Result<()>) -> Result<()> {
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let [what, size, ms] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            bail!("no such command: {line}")
        };
        let size = number(size)?;
        ensure!(size <= LONGEST, "{size} bytes are too long");
        answer(what, &vec![1u8; size], number(ms)?)?;
    }
    Ok(())
}

// ---- the caller ----------------------------------------------------------------------------------------------------

struct Caller {
    rsr: Rsr,
    options: Options,
    start: Startpoint,
    /// Pings that have come back.
    pings: Arc<AtomicU64>,
    sent: Cell<u64>,
    _own: Endpoint,
}

impl Caller {
    fn new(options: Options, start: &str) -> Result<Self> {
        let rsr = attach(&options, HERE)?;
        let pings = Arc::new(AtomicU64::new(0));
        let count = pings.clone();
        let own = rsr.endpoint(Handlers::new().on(PING, move |_| _ = count.fetch_add(1, Ordering::Release)))?;
        let start: Startpoint = start.parse()?;
        rsr.call(&start, MEET, Buffer::new().put_startpoint(&own.startpoint()?), LIMIT)?;
        Ok(Self { rsr, options, start, pings, sent: Cell::new(0), _own: own })
    }

    fn answer(&self) -> Result<()> {
        each_question(|what, block, ms| match what {
            "ping" => timed(ms, 2 * BLOCK, || (0..BLOCK).try_for_each(|_| self.ping(block))),
            "call" => timed(ms, BLOCK, || (0..BLOCK).try_for_each(|_| self.call())),
            "stream" => timed(ms, WINDOW as u32, || self.stream(block, BLOCK_OF_BYTES)),
            "foreign" => timed(ms, WINDOW as u32, || self.stream(block, FOREIGN)),
            "swap" => swap(ms, block.len()),
            "take-up" => self.take_up(ms),
            _ => bail!("no such command: {what}"),
        })
    }

    fn ping(&self, block: &[u8]) -> Result<()> {
        let mut buffer = Buffer::new();
        if !block.is_empty() {
            buffer.borrow(block);
        }
        self.rsr.request(&self.start, PING, &buffer, None)?;
        self.wait()
    }

    /// Waits for a request that comes back.
    fn wait(&self) -> Result<()> {
        self.sent.set(self.sent.get() + 1);
        let is_here = || self.pings.load(Ordering::Acquire) >= self.sent.get();
        if self.options.reception == Reception::Caller {
            // As a receive of the engine's messages, this reads no clock of its own.
            while !is_here() {
                ensure!(self.rsr.poll(LIMIT)? > 0, "no request has come back");
            }
            return Ok(());
        }
        let began = Instant::now();
        while !is_here() {
            match began.elapsed() {
                elapsed if elapsed > Duration::from_secs(20) => bail!("no request has come back"),
                elapsed if elapsed > Duration::from_micros(20) => std::thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
        Ok(())
    }

    fn call(&self) -> Result<()> {
        self.rsr.call(&self.start, CALL, &Buffer::new(), LIMIT)?;
        Ok(())
    }

    fn stream(&self, block: &[u8], handler: u32) -> Result<()> {
        let count = (block.len() / 8) as u64;
        let mut buffer = Buffer::new();
        buffer.put(if handler == FOREIGN { count.swap_bytes() } else { count }).borrow(block);
        (0..WINDOW).try_for_each(|_| self.rsr.request(&self.start, handler, &buffer, LIMIT))?;
        self.wait()
    }

    /// Times an endpoint that is made, its startpoint as text, and the first call of a node that has no link to it.
    fn take_up(&self, ms: usize) -> Result<()> {
        let mut times = Vec::new();
        let began = Instant::now();
        while times.len() < 3 || began.elapsed().as_millis() < ms as u128 {
            let fresh = attach(&self.options, HERE)?;
            let since = Instant::now();
            let made = self.rsr.call(&self.start, MAKE, &Buffer::new(), LIMIT)?;
            let start: Startpoint = made.reader().get_str()?.parse()?;
            fresh.call(&start, CALL, &Buffer::new(), LIMIT)?;
            times.push(since.elapsed().as_nanos() as f64);
            drop(fresh);
        }
        say(times)
    }
}

/// Times copies of numbers that swap their bytes.
fn swap(ms: usize, size: usize) -> Result<()> {
    let (from, mut into) = (vec![1u8; size], vec![0f64; size / 8]);
    timed(ms, 1, || {
        f64::read(std::hint::black_box(&from), true, &mut into);
        std::hint::black_box(&into);
        Ok(())
    })
}

/// Repeats something for this time, and prints the time of one operation, of which each repetition has `each`.
fn timed(ms: usize, each: u32, mut run: impl FnMut() -> Result<()>) -> Result<()> {
    run()?;
    let (mut times, began) = (Vec::new(), Instant::now());
    while times.is_empty() || began.elapsed().as_millis() < ms as u128 {
        let since = Instant::now();
        run()?;
        times.push(since.elapsed().as_nanos() as f64 / f64::from(each));
    }
    say(times)
}

fn say(mut times: Vec<f64>) -> Result<()> {
    times.sort_by(f64::total_cmp);
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    println!("{} {mean} {}", times[times.len() / 2], times.len());
    Ok(())
}
