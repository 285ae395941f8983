//! A FIFO with a hostile peer: the input is a program of calls at both endpoints and of writes into the memory between them.
//!
//! ```text
//!   op 1 byte: 0-3 put · 4-6 poll · 7 poll in steps · 8 room · 9 sleep · 10 new endpoints · 11 put open · 12 its next cell · else write
//!   put, room: length 2 bytes, kind 1, flags 1 · put open: continuation cells 1, kind 1, flags 1 · write: offset 2, value 8
//! ```
//!
//! As long as the memory was not written to, the packets that come out are those that were put.

use motet_sys::memory;
use motet_sys::rustix::fd::OwnedFd;
use motet_sys::rustix::io::pwrite;
use motet_wire::message::fifo::{
    Broken, Buffer, CELL_PAYLOAD, Fifo, FifoRx, FifoTx, MAX_CONTINUATIONS, MAX_PACKET, Packet, PutOutcome, SleepFence,
};
use std::collections::VecDeque;

/// Few, so that positions wrap often.
const CELLS: usize = 16;
/// Most operations of one input.
const MAX_OPERATIONS: usize = 300;
/// The flag that the FIFO uses itself.
const FIFO_FLAG: u8 = 0x80;

thread_local! {
    static MEMORY: Option<(OwnedFd, Fifo)> = exposed();
}

fn exposed() -> Option<(OwnedFd, Fifo)> {
    let size = Fifo::size(CELLS).next_multiple_of(4096);
    let (file, mapping) = memory::create_mapped("motet-fifo", size, &[], size).ok()?;
    Some((file, Fifo::over(mapping, 0, CELLS)?))
}

/// Runs one input.
pub fn run(input: &[u8]) {
    MEMORY.with(|memory| {
        if let Some((file, fifo)) = memory {
            interpret(input, file, *fifo);
        }
    });
}

/// A packet that was put.
#[derive(Debug, PartialEq, Eq)]
struct Sent {
    kind: u8,
    flags: u8,
    more: u8,
    bytes: Vec<u8>,
}

/// Both endpoints, and the packets between them while the memory was not written to.
struct Endpoints {
    producer: FifoTx,
    consumer: FifoRx,
    buffer: Buffer,
    /// Continuation cells that the producer owes to an open packet.
    owed: u8,
    /// Packets in the FIFO; only the last one may be open. `None`: the memory was written to.
    sent: Option<VecDeque<Sent>>,
}

impl Endpoints {
    fn of(fifo: Fifo, sent: Option<VecDeque<Sent>>) -> Self {
        Self { producer: fifo.tx(), consumer: fifo.rx(), buffer: Buffer::new(), owed: 0, sent }
    }

    fn put(&mut self, put: Result<PutOutcome, Broken>, packet: Sent) -> bool {
        assert!(put.is_ok() || self.sent.is_none(), "an honest fifo is never broken");
        let published = matches!(put, Ok(PutOutcome::Published | PutOutcome::Wake));
        if let (true, Some(sent)) = (published, &mut self.sent) {
            sent.push_back(packet);
        }
        published
    }

    /// Puts the next continuation cell of the open packet. The result does not matter: its room was reserved.
    fn follow(&mut self) {
        if self.owed > 0 {
            self.owed -= 1;
            let _ = self.producer.put_continuation();
        }
    }

    /// Takes the next packet, by `poll` or in steps.
    fn take(&mut self, stepwise: bool) {
        let taken = if stepwise { self.take_stepwise() } else { self.consumer.poll(&mut self.buffer) };
        let Some(sent) = &mut self.sent else {
            if let Ok(Some(packet)) = taken {
                assert!(packet.bytes(&self.buffer).len() <= MAX_PACKET, "no longer than a packet can be");
            }
            return;
        };
        let packet = taken.expect("an honest fifo is never broken");
        let packet = packet.map(|packet| {
            let (kind, flags, more) = (packet.kind, packet.flags, packet.continuations());
            Sent { kind, flags, more, bytes: packet.bytes(&self.buffer).to_vec() }
        });
        // An open packet is the last one, and arrives when it is complete.
        let whole = self.owed == 0 || sent.len() > 1;
        assert_eq!(packet, if whole { sent.pop_front() } else { None });
    }

    /// Takes a packet like a consumer that reads an open packet while it grows.
    fn take_stepwise(&mut self) -> Result<Option<Packet>, Broken> {
        let Some(packet) = self.consumer.peek(&mut self.buffer)? else { return Ok(None) };
        for more in 1..=packet.continuations() {
            if !self.consumer.has_continuations(more)? {
                return Ok(None);
            }
        }
        self.consumer.consume(&packet);
        Ok(Some(packet))
    }
}

fn interpret(input: &[u8], file: &OwnedFd, fifo: Fifo) {
    fifo.prepare(if input.len() & 1 == 0 { SleepFence::Asymmetric } else { SleepFence::Both });
    let mut endpoints = Endpoints::of(fifo, Some(VecDeque::new()));
    let mut input = input.iter().copied();
    let mut word = |bytes: u32| (0..bytes).try_fold(0u64, |n, _| input.next().map(|b| n << 8 | u64::from(b)));
    for _ in 0..MAX_OPERATIONS {
        let Some(op) = word(1) else { return };
        let done = match op {
            0..=3 => word(4).map(|w| {
                (0..endpoints.owed).for_each(|_| endpoints.follow()); // the open packet must be completed first
                let bytes = vec![w as u8; (w >> 16) as usize % (MAX_PACKET + 100)];
                let (kind, flags) = ((w >> 8) as u8, w as u8 & !FIFO_FLAG);
                let (a, b) = bytes.split_at(bytes.len() * op as usize / 4);
                let put = endpoints.producer.try_put(kind, w as u8, &[a, b]);
                endpoints.put(put, Sent { kind, flags, more: 0, bytes });
            }),
            4..=7 => {
                endpoints.take(op == 7);
                Some(())
            }
            8 => word(4).map(|w| {
                let _ = endpoints.producer.room((w >> 16) as usize);
            }),
            9 => {
                if endpoints.consumer.begin_sleep(|| ()) {
                    assert!(endpoints.consumer.is_empty());
                    endpoints.consumer.end_sleep();
                }
                Some(())
            }
            10 => {
                endpoints = Endpoints::of(fifo, None); // they assume an empty FIFO
                Some(())
            }
            11 => word(3).map(|w| {
                (0..endpoints.owed).for_each(|_| endpoints.follow());
                let (kind, flags, more) =
                    ((w >> 8) as u8, w as u8 & !FIFO_FLAG, (w >> 16) as u8 % (MAX_CONTINUATIONS + 1));
                let bytes = vec![w as u8; (w >> 8) as usize % (CELL_PAYLOAD + 1)];
                let put = endpoints.producer.try_put_open(kind, w as u8, &bytes, more);
                if endpoints.put(put, Sent { kind, flags, more, bytes }) {
                    endpoints.owed = more;
                }
            }),
            12 => {
                endpoints.follow();
                Some(())
            }
            _ => word(2).zip(word(8)).map(|(at, value)| {
                // Mostly the control words of the cells, aligned.
                let size = Fifo::size(CELLS) as u64;
                let at = if op & 1 == 0 { size - 64 * (1 + at % CELLS as u64) } else { at % size / 8 * 8 };
                let _ = pwrite(file, &value.to_be_bytes(), at);
                endpoints.sent = None;
            }),
        };
        if done.is_none() {
            return;
        }
    }
}

/// An honest exchange, a packet with too large a length, and one whose second cell is missing.
pub fn seeds() -> Vec<Vec<u8>> {
    // The control word of cell 0: stamp 1, then length, kind, flags.
    let word = |length: u64, kind: u64, flags: u64| 1 | length << 32 | kind << 48 | flags << 56;
    let put = |at: u16, value: u64| [&[13][..], &at.to_be_bytes(), &value.to_le_bytes()].concat();
    vec![
        [0, 0, 8, 1, 0, 4, 1, 1, 0, 2, 0, 9, 2, 0, 90, 3, 0, 4, 4, 8, 2, 0, 0, 0].to_vec(),
        [&put(384, word(9000, 1, 0))[..], &[4, 9, 10, 4]].concat(),
        [&put(384, word(100, 1, 0))[..], &[4], &put(448, word(100, 1, 0x80) + 1), &[4, 4]].concat(),
        [&[0, 0, 8, 1, 0][..], &put(128, 1), &[8, 2, 0, 0, 0], &put(128, 99), &[8, 3, 200, 0, 0], &put(384, 0), &[4]]
            .concat(),
        [11, 3, 5, 9, 4, 12, 7, 12, 12, 7, 0, 0, 90, 3, 0, 11, 1, 8, 1, 4, 7, 12, 4, 11, 0, 1, 1, 4].to_vec(),
        [&[11, 2, 5, 9, 12][..], &put(512, 3 | 0x80 << 56), &[7, 4, 11, 7, 9, 9, 7]].concat(),
    ]
}
