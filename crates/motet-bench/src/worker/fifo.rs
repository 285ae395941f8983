//! Two processes with a FIFO each way, without the engine, in a memfd of the server that the caller opens.
//!
//! `--worker fifo … serve` prints `port PID:FD`; `--worker fifo ping|rate call HOST PID:FD SIZE MS` measures.

use super::{measure, number};
use anyhow::{Context, Result, bail};
use motet_sys::memory;
use motet_sys::rustix::fd::AsRawFd;
use motet_wire::mapping::Mapping;
use motet_wire::message::fifo::{Broken, Buffer, DEFAULT_CELLS, Fifo, FifoRx, FifoTx, Packet, PutOutcome, SleepFence};
use std::fs::File;
use std::hint::{black_box, spin_loop};
use std::time::{Duration, Instant};

/// Kinds of packets: one that is only received, one that is answered, the last one.
const TAKE: u8 = 1;
const ANSWER: u8 = 2;
const END: u8 = 3;

/// Round trips of a block. The number is fixed: if it were found by a trial in which the other end waits for its CPU, blocks would be so
/// short that they measure the clock.
const ROUND_TRIPS: usize = 1000;
/// Messages of a block one way. The last one is answered.
const MESSAGES: usize = 16384;

/// Polls between two reads of the clock.
const POLLS_PER_CLOCK_READ: u32 = 1 << 20;
/// How long a peer may be silent.
const PEER_TIMEOUT: Duration = Duration::from_secs(10);

/// Receives until the last packet.
pub fn serve() -> Result<()> {
    let size = 2 * fifo_bytes();
    let (file, mapping) = memory::create_mapped("motet-fifos", size, &[], size).context("no memory for FIFOs")?;
    let mut fifos = Fifos::over(mapping, true)?;
    println!("port {}:{}", std::process::id(), file.as_raw_fd());
    let mut buffer = Buffer::new();
    loop {
        let packet = receive(&mut fifos.inward, &mut buffer)?;
        let bytes = black_box(packet.bytes(&buffer));
        match packet.kind {
            ANSWER => send(&mut fifos.outward, TAKE, bytes)?,
            END => return Ok(()),
            _ => {}
        }
    }
}

/// Measures fifo_bytes a round trip, or one of many packets in one direction.
pub fn call(what: &str, port: &str, size: usize, ms: usize) -> Result<()> {
    let (pid, fd) = port.split_once(':').context("a server of FIFOs prints PID:FD")?;
    let path = format!("/proc/{}/fd/{}", number(pid)?, number(fd)?);
    let file = File::options().read(true).write(true).open(&path).with_context(|| format!("cannot open {path}"))?;
    let mut fifos = Fifos::over(memory::map(&file, 2 * fifo_bytes()).context("cannot map the FIFOs")?, false)?;
    let (data, mut buffer) = (vec![7u8; size], Buffer::new());
    let mut exchange = |fifos: &mut Fifos| -> Result<()> {
        send(&mut fifos.outward, ANSWER, black_box(&data))?;
        let answer = receive(&mut fifos.inward, &mut buffer)?;
        if black_box(answer.bytes(&buffer)).len() != size {
            bail!("an answer of {} bytes", answer.bytes(&buffer).len());
        }
        Ok(())
    };
    let result = match what {
        "ping" => measure(ROUND_TRIPS, ms, 2.0, |count| (0..count).try_for_each(|_| exchange(&mut fifos)))?,
        "rate" => measure(MESSAGES, ms, 1.0, |count| {
            (1..count).try_for_each(|_| send(&mut fifos.outward, TAKE, black_box(&data)))?;
            exchange(&mut fifos)
        })?,
        _ => bail!("no such measurement of FIFOs: {what}"),
    };
    send(&mut fifos.outward, END, &[])?;
    println!("{result}");
    Ok(())
}

/// Bytes of one FIFO.
fn fifo_bytes() -> usize {
    Fifo::size(DEFAULT_CELLS).next_multiple_of(4096)
}

struct Fifos {
    outward: FifoTx,
    inward: FifoRx,
}

impl Fifos {
    fn over(mapping: Mapping, serves: bool) -> Result<Self> {
        let fifo = |offset| Fifo::over(mapping, offset, DEFAULT_CELLS).context("the FIFOs do not fit");
        let (there, back) = (fifo(0)?, fifo(fifo_bytes())?);
        if serves {
            there.prepare(SleepFence::Asymmetric);
            back.prepare(SleepFence::Asymmetric);
            return Ok(Self { outward: back.tx(), inward: there.rx() });
        }
        Ok(Self { outward: there.tx(), inward: back.rx() })
    }
}

// The next two functions are loops over one call each. Any wrapper around that call shows in the figures.

#[inline(always)]
fn send(fifo: &mut FifoTx, kind: u8, data: &[u8]) -> Result<()> {
    let mut silence = Silence(None);
    loop {
        for _ in 0..POLLS_PER_CLOCK_READ {
            match fifo.try_put(kind, 0, &[data]) {
                Ok(PutOutcome::Published | PutOutcome::Wake) => return Ok(()),
                Ok(PutOutcome::Full) => spin_loop(),
                other => return refused(other),
            }
        }
        silence.check()?;
    }
}

#[inline(always)]
fn receive(fifo: &mut FifoRx, buffer: &mut Buffer) -> Result<Packet> {
    let mut silence = Silence(None);
    loop {
        for _ in 0..POLLS_PER_CLOCK_READ {
            match fifo.poll(buffer) {
                Ok(Some(packet)) => return Ok(packet),
                Ok(None) => spin_loop(),
                Err(Broken) => return broken(),
            }
        }
        silence.check()?;
    }
}

#[cold]
fn refused(put: Result<PutOutcome, Broken>) -> Result<()> {
    bail!("a put failed: {put:?}")
}

#[cold]
fn broken() -> Result<Packet> {
    bail!("the peer broke the FIFO")
}

/// The time of the first clock read in which a peer was silent.
struct Silence(Option<Instant>);

impl Silence {
    #[cold]
    fn check(&mut self) -> Result<()> {
        if self.0.get_or_insert_with(Instant::now).elapsed() > PEER_TIMEOUT {
            bail!("the peer is silent");
        }
        Ok(())
    }
}
