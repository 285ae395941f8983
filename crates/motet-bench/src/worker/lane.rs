//! Two processes with a lane each way, in a memfd that the caller opens at the server's: nothing of the engine above it.
//!
//! `--worker lane … serve` prints `port PID:FD`; `--worker lane ping|rate call HOST PID:FD SIZE MS` measures.

use super::{measure, number};
use anyhow::{Context, Result, bail};
use motet_sys::memory;
use motet_sys::rustix::fd::AsRawFd;
use motet_wire::mapping::Mapping;
use motet_wire::message::fifo::{Broken, Buffer, DEFAULT_CELLS, Fifo, FifoRx, FifoTx, Packet, PutOutcome, SleepFence};
use std::fs::File;
use std::hint::{black_box, spin_loop};
use std::time::{Duration, Instant};

/// Kinds of packets: one that is only received, one that is sent back, the last one.
const TAKE: u8 = 1;
const ANSWER: u8 = 2;
const END: u8 = 3;

/// Of a block. Given, not found by trying: a try during which the other end had to wait for its CPU would make blocks so short
/// that the clock is what they measure.
const ROUND_TRIPS: usize = 1000;
/// The same of messages one way; the last one is answered.
const MESSAGES: usize = 16384;

/// Looks between two at the clock.
const LOOKS: u32 = 1 << 20;
/// A peer that is silent for so long is gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// Receives until it is told to end.
pub fn serve() -> Result<()> {
    let size = 2 * half();
    let (file, mapping) = memory::create_mapped("motet-lanes", size, &[], size).context("no memory for lanes")?;
    let mut lanes = Lanes::over(mapping, true)?;
    println!("port {}:{}", std::process::id(), file.as_raw_fd());
    let mut buffer = Buffer::new();
    loop {
        let packet = receive(&mut lanes.inward, &mut buffer)?;
        let bytes = black_box(packet.bytes(&buffer));
        match packet.kind {
            ANSWER => send(&mut lanes.outward, TAKE, bytes)?,
            END => return Ok(()),
            _ => {}
        }
    }
}

/// Half a round trip, or what one of many packets in one direction takes.
pub fn call(what: &str, port: &str, size: usize, ms: usize) -> Result<()> {
    let (pid, fd) = port.split_once(':').context("a server of lanes says PID:FD")?;
    let path = format!("/proc/{}/fd/{}", number(pid)?, number(fd)?);
    let file = File::options().read(true).write(true).open(&path).with_context(|| format!("cannot open {path}"))?;
    let mut lanes = Lanes::over(memory::map(&file, 2 * half()).context("cannot map the lanes")?, false)?;
    let (data, mut buffer) = (vec![7u8; size], Buffer::new());
    let mut exchange = |lanes: &mut Lanes| -> Result<()> {
        send(&mut lanes.outward, ANSWER, black_box(&data))?;
        let answer = receive(&mut lanes.inward, &mut buffer)?;
        if black_box(answer.bytes(&buffer)).len() != size {
            bail!("an answer of {} bytes", answer.bytes(&buffer).len());
        }
        Ok(())
    };
    let result = match what {
        "ping" => measure(ROUND_TRIPS, ms, 2.0, |count| (0..count).try_for_each(|_| exchange(&mut lanes)))?,
        "rate" => measure(MESSAGES, ms, 1.0, |count| {
            (1..count).try_for_each(|_| send(&mut lanes.outward, TAKE, black_box(&data)))?;
            exchange(&mut lanes)
        })?,
        _ => bail!("no such measurement of lanes: {what}"),
    };
    send(&mut lanes.outward, END, &[])?;
    println!("{result}");
    Ok(())
}

/// Bytes of one direction.
fn half() -> usize {
    Fifo::size(DEFAULT_CELLS).next_multiple_of(4096)
}

struct Lanes {
    outward: FifoTx,
    inward: FifoRx,
}

impl Lanes {
    fn over(mapping: Mapping, serves: bool) -> Result<Self> {
        let lane = |offset| Fifo::over(mapping, offset, DEFAULT_CELLS).context("the lanes do not fit");
        let (there, back) = (lane(0)?, lane(half())?);
        if serves {
            there.prepare(SleepFence::Asymmetric);
            back.prepare(SleepFence::Asymmetric);
            return Ok(Self { outward: back.tx(), inward: there.rx() });
        }
        Ok(Self { outward: there.tx(), inward: back.rx() })
    }
}

// The two below are loops over one call each: what is wrapped around that shows in the figures.

#[inline(always)]
fn send(lane: &mut FifoTx, kind: u8, data: &[u8]) -> Result<()> {
    let mut patience = Patience(None);
    loop {
        for _ in 0..LOOKS {
            match lane.try_put(kind, 0, &[data]) {
                Ok(PutOutcome::Published | PutOutcome::Wake) => return Ok(()),
                Ok(PutOutcome::Full) => spin_loop(),
                other => return refused(other),
            }
        }
        patience.still()?;
    }
}

#[inline(always)]
fn receive(lane: &mut FifoRx, buffer: &mut Buffer) -> Result<Packet> {
    let mut patience = Patience(None);
    loop {
        for _ in 0..LOOKS {
            match lane.poll(buffer) {
                Ok(Some(packet)) => return Ok(packet),
                Ok(None) => spin_loop(),
                Err(Broken) => return broken(),
            }
        }
        patience.still()?;
    }
}

#[cold]
fn refused(put: Result<PutOutcome, Broken>) -> Result<()> {
    bail!("a put failed: {put:?}")
}

#[cold]
fn broken() -> Result<Packet> {
    bail!("the peer broke the lane")
}

/// Since when a peer has been silent, as far as that is known.
struct Patience(Option<Instant>);

impl Patience {
    #[cold]
    fn still(&mut self) -> Result<()> {
        if self.0.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            bail!("the peer is silent");
        }
        Ok(())
    }
}
