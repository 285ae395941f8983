//! A link with a hostile peer that writes its memory: cells of the FIFO, and bytes of the payload ring that packets claim.
//!
//! What it is: the receiving side as in production (the consumers of a FIFO and of a ring, and the link with its owner), while the peer writes
//! anywhere; and this side's sending end of a ring, whose peer publishes read positions. The checks are those of [`super::message`], and that no more
//! is read or written than there is.
//!
//! ```text
//!   op 1 byte: below 190 a packet of this kind · 190-194 write · 195 send · 196 release pages · 197 poll · from 200 steps of this side
//!   packet: flags 1 (BODY_IN_RING is 1), length 2, bytes · write: offset 2, value 8 · send: length 2
//! ```

use super::message::{self, Model, OWN_STEPS};
use motet_proto::message::ProtocolViolation;
use motet_proto::message::packet::Kind;
use motet_sys::memory;
use motet_sys::rustix::fd::OwnedFd;
use motet_sys::rustix::io::pwrite;
use motet_wire::message::fifo::payload_ring::{BODY_IN_RING, PayloadRing, PayloadRx, PayloadTx};
use motet_wire::message::fifo::{Buffer, Fifo, FifoRx, FifoTx, SleepFence};

/// Cells of the FIFO, and bytes of each ring: few, so that positions wrap often.
const CELLS: usize = 64;
const RING: usize = 4096;
/// Offsets of the rings' control words, and of the rings.
const WORDS: usize = 8192;
const RINGS: [usize; 2] = [3 * 4096, 4 * 4096];
const BYTES: usize = 5 * 4096;
/// Most operations of one input.
const MAX_OPERATIONS: usize = 300;
const BROKEN: ProtocolViolation = ProtocolViolation("the memory makes no sense");

thread_local! {
    static MEMORY: Option<(OwnedFd, Fifo, [PayloadRing; 2])> = exposed();
}

fn exposed() -> Option<(OwnedFd, Fifo, [PayloadRing; 2])> {
    assert!(Fifo::size(CELLS) <= WORDS);
    let (file, mapping) = memory::create_mapped("motet-ring", BYTES, &[], BYTES).ok()?;
    let inward = PayloadRing::over(mapping, WORDS, RINGS[0], RING)?;
    let outward = PayloadRing::over(mapping, WORDS + 128, RINGS[1], RING)?;
    Some((file, Fifo::over(mapping, 0, CELLS)?, [inward, outward]))
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let _why = play(input);
}

/// Runs one input. Returns what broke the link.
pub fn play(input: &[u8]) -> Option<ProtocolViolation> {
    MEMORY.with(|memory| {
        let (file, fifo, rings) = memory.as_ref()?;
        fifo.prepare(SleepFence::Both);
        rings.iter().for_each(PayloadRing::prepare);
        let [inward, outward] = *rings;
        let (producer, consumer) = (fifo.tx(), fifo.rx());
        let (inward, outward, buffer) = (inward.rx(), outward.tx(), Buffer::new());
        Harness { file, producer, consumer, inward, outward, buffer, model: Model::new() }.play(input)
    })
}

/// The state of one input.
struct Harness<'a> {
    file: &'a OwnedFd,
    /// The peer's end.
    producer: FifoTx,
    /// Our end.
    consumer: FifoRx,
    inward: PayloadRx,
    outward: PayloadTx,
    buffer: Buffer,
    model: Model,
}

impl Harness<'_> {
    fn play(mut self, mut input: &[u8]) -> Option<ProtocolViolation> {
        for _ in 0..MAX_OPERATIONS {
            let Some((&op, rest)) = input.split_first() else { break };
            input = rest;
            if op >= OWN_STEPS {
                self.model.own_step(op - OWN_STEPS);
                continue;
            }
            let Some((&[low, high, third], rest)) = input.split_first_chunk::<3>() else { break };
            input = rest;
            let done = match op {
                0..190 => {
                    let length = usize::from(u16::from_le_bytes([high, third])).min(input.len());
                    let (bytes, rest) = input.split_at(length);
                    input = rest;
                    let _ = self.producer.try_put(op, low, &[bytes]);
                    self.poll()
                }
                190..195 => {
                    let Some((value, rest)) = input.split_first_chunk::<8>() else { break };
                    input = rest;
                    // Mostly the positions, and cells.
                    let at = usize::from(u16::from_le_bytes([low, high]));
                    let at = match third % 4 {
                        0 => at % BYTES,
                        1 => WORDS + at % 2 * 128,
                        2 => WORDS - 64 * (1 + at % CELLS),
                        _ => RINGS[at % 2] + at % RING,
                    };
                    let _ = pwrite(self.file, value, (at / 8 * 8) as u64);
                    Ok(())
                }
                195 => self.send(usize::from(u16::from_le_bytes([low, high])) % (2 * RING)),
                196 => {
                    self.outward.trim(|_, _, _| ());
                    Ok(())
                }
                _ => self.poll(),
            };
            if let Err(broken) = done {
                self.model.end();
                return Some(broken);
            }
        }
        self.model.end()
    }

    /// Takes the packets that are there, as a link over FIFOs does.
    fn poll(&mut self) -> Result<(), ProtocolViolation> {
        for _ in 0..8 {
            let Some(packet) = self.consumer.poll(&mut self.buffer).map_err(|_| BROKEN)? else { break };
            let bytes = packet.bytes(&self.buffer);
            if packet.flags & BODY_IN_RING == 0 {
                self.model.arrived(|link, side, now| link.arrived(side, packet.kind, bytes, now));
                continue;
            }
            let (head, run) = self.inward.split_packet(bytes).map_err(|_| BROKEN)?;
            assert!(run.len() <= RING && head.len() + 4 == bytes.len(), "no more than there is");
            self.model.arrived(|link, side, now| link.arrived_in_ring(side, packet.kind, head, run, now));
            self.inward.release(run.len());
            self.consumer.notify_freed();
        }
        Ok(())
    }

    /// Writes bytes to the peer, if the read position leaves room.
    fn send(&mut self, length: usize) -> Result<(), ProtocolViolation> {
        let before = self.outward.tail();
        if self.outward.ensure_pages(length, |_, _, _| true) && self.outward.fits(length).map_err(|_| BROKEN)? {
            assert!(length <= RING, "what is longer never fits");
            assert_eq!(self.outward.write(&[&vec![7; length]], length % 2 == 1), length);
            assert_eq!(self.outward.tail(), before + length as u64);
        }
        Ok(())
    }
}

/// Seeds of [`message`] with their pieces in the ring, and a peer that forges the ring's words.
pub fn seeds() -> Vec<Vec<u8>> {
    let honest = message::seeds().into_iter().map(|seed| translated(&seed));
    let write =
        |words: u8, at: u16, value: u64| [&[190][..], &at.to_le_bytes(), &[words], &value.to_le_bytes()].concat();
    let send = |length: u16| [&[195][..], &length.to_le_bytes(), &[0]].concat();
    let empty = |length: u32| [&[Kind::Piece as u8, BODY_IN_RING, 4, 0][..], &length.to_le_bytes()].concat();
    let hostile = [
        [send(4096), write(1, 1, 4096), send(100), write(1, 1, u64::MAX), send(4096)].concat(),
        [send(4000), write(1, 1, 4001), send(4000)].concat(),
        [empty(4096), empty(4097)].concat(),
        [empty(u32::MAX), write(1, 0, 0)].concat(),
        [Kind::Hello as u8, BODY_IN_RING, 4, 0, 24, 0, 0, 0].to_vec(),
    ];
    honest.chain(hostile).collect()
}

/// Converts a seed of [`message`] to an input of this target.
fn translated(mut seed: &[u8]) -> Vec<u8> {
    let mut input = Vec::new();
    while let Some((&[kind, low, high], rest)) = seed.split_first_chunk::<3>() {
        let (packet, rest) = rest.split_at(usize::from(u16::from_le_bytes([low, high])));
        seed = rest;
        const HEAD: usize = motet_proto::message::packet::MESSAGE_HEAD_BYTES;
        if kind >= OWN_STEPS {
            input.push(kind);
        } else if kind == Kind::Piece as u8 {
            let inside = (packet.len() - HEAD) as u32;
            let packet = [&packet[..HEAD], &inside.to_le_bytes()].concat();
            input.extend([&[kind, BODY_IN_RING][..], &(packet.len() as u16).to_le_bytes(), &packet].concat());
        } else {
            input.extend([&[kind, 0][..], &[low, high], packet].concat());
        }
    }
    input
}
