//! A whole slot as the peer left it: the input is a program of the honest end's calls and of writes into the shared memory
//! between them.
//!
//! ```text
//!   op 1 byte: 0-3 send · 4-7 receive · 8 raise · 9 close the gate · 10 take back · 11 bytes over TCP · else write
//!   send, receive: length 2 bytes, flags 1 · TCP: length 1 · write: offset 2, value 8
//! ```

use motet_driver_loopback::clock::Clock;
use motet_driver_loopback::end::End;
use motet_driver_loopback::memory::Exposed;
use motet_driver_loopback::pipe::Connection;
use motet_driver_loopback::plan::Plan;
use motet_proto::{bulk, gate, rx, tx};
use motet_wire::record::{Record, State};
use motet_wire::sync::Ordering::Relaxed;
use std::io::{IoSlice, IoSliceMut};

const RING: usize = 4096;
/// Operations of one input.
const MOST: usize = 200;

thread_local! {
    static MEMORY: Option<Exposed> = Exposed::with_bulk(RING, 2 * RING);
}

/// Runs the program.
pub fn run(input: &[u8]) {
    MEMORY.with(|memory| {
        if let Some(memory) = memory {
            interpret(input, memory);
        }
    });
}

struct Honest<'a> {
    record: Record,
    memory: &'a Exposed,
    end: End,
}

fn interpret(input: &[u8], memory: &Exposed) {
    memory.ends[0].prepare([1, 2]);
    let clock = Clock::new(100);
    let [end, peer] = End::pair(Connection::new(clock.clone(), 3000, Plan::new()), &clock);
    let mut honest = Honest { record: Record::default(), memory, end };
    honest.record.tx.mark.store(u64::MAX, Relaxed);
    honest.record.tx.ready.store(1, Relaxed);
    honest.record.rx.ready.store(1, Relaxed);
    honest.record.rx.bulk.store(bulk::BULK, Relaxed); // as after many large receives: the large ring is wanted
    honest.record.life.state.store(State::Attached as u32, Relaxed);
    memory.ends[1].outward().mark.ready.store(1, Relaxed);
    let mut input = input.iter().copied();
    let mut word = |bytes: u32| (0..bytes).try_fold(0u64, |n, _| input.next().map(|b| n << 8 | u64::from(b)));
    for _ in 0..MOST {
        let Some(op) = word(1) else { return };
        let done = match op {
            0..=3 => word(3).map(|w| honest.send((w >> 8) as usize % 6000, w & 1 != 0)),
            4..=7 => word(3).map(|w| honest.receive((w >> 8) as usize % 6000, w & 1 != 0, w & 2 != 0)),
            8..=10 => {
                honest.gate(op);
                Some(())
            }
            11 => word(1).map(|n| {
                let _ = peer.connection(|c| c.send(1, &[7; 255][..n as usize]));
            }),
            _ => word(2).zip(word(8)).map(|(at, value)| {
                // Mostly the words of the two directions, aligned.
                let at = if op & 1 == 0 { at as usize % 2304 / 8 * 8 } else { at as usize % memory.size() };
                memory.write(at, &value.to_be_bytes());
            }),
        };
        if done.is_none() {
            return;
        }
    }
}

impl Honest<'_> {
    fn send(&mut self, length: usize, kernel_only: bool) {
        let slot = &self.memory.ends[0];
        let data = vec![3; length];
        let ask = tx::Ask { kernel_only, nonblocking: true, large: usize::MAX, large_far: usize::MAX, half: 0 };
        match tx::begin(&self.record, Some(slot), &mut self.end, &[IoSlice::new(&data)], ask) {
            tx::Step::Kernel => {
                let sent = self.end.connection(|c| c.send(0, &data)).unwrap_or(0);
                tx::end(&self.record, &mut self.end, sent);
            }
            tx::Step::Done(n) => assert!(n <= length),
            tx::Step::Failed(errno) => assert!(errno > 0),
        }
    }

    fn receive(&mut self, length: usize, blocking: bool, peek: bool) {
        let slot = &self.memory.ends[0];
        let mut data = vec![0; length];
        let ask = rx::Ask { blocking, peek, kernel_only: false, spin: 1000, large: usize::MAX };
        let mut bufs = [IoSliceMut::new(&mut data)];
        match rx::begin(
            &self.record,
            Some(slot),
            &mut self.end,
            &mut bufs,
            ask,
            || true,
            |_, may_spin| may_spin && tx::is_being_read(&self.record, slot),
        ) {
            rx::Step::Kernel => {
                let n = self.end.connection(|c| c.receive(0, &mut bufs, usize::MAX, peek)).unwrap_or(0);
                rx::end(&self.record, &mut self.end, if peek { 0 } else { n });
            }
            rx::Step::Poll => gate::leave_kernel(&self.record, &mut self.end),
            rx::Step::Done(n) => assert!(n <= length),
            rx::Step::Failed(errno) => assert!(errno > 0),
        }
    }

    fn gate(&mut self, op: u64) {
        let (record, slot) = (&self.record, &self.memory.ends[0]);
        match op {
            8 => {
                gate::raise(record, slot, &mut self.end, || true);
            }
            9 => {
                gate::close_gate(record, slot, &mut self.end);
            }
            _ => {
                tx::take_back(record, slot, &mut self.end);
            }
        }
    }
}

/// An honest exchange, one in which both ends disagree, and one with TCP in the middle.
pub fn seeds() -> Vec<Vec<u8>> {
    let put = |at: u16, value: u64| [&[12][..], &at.to_be_bytes(), &value.to_le_bytes()].concat();
    vec![
        [&[8][..], &put(1024, 11), &[4, 0, 9, 0], &put(0, 1), &[0, 0, 9, 0], &put(128, 18), &[0, 16, 0, 0, 10]]
            .concat(),
        [&[8][..], &put(1024, 1 << 20), &[4, 0, 9, 1], &put(128, 7), &[0, 1, 0, 0, 10], &put(128, 1), &[10]].concat(),
        [&[11, 30, 8][..], &put(1024 + 64, 20), &put(1024, 101), &[4, 0, 200, 1, 4, 0, 200, 3, 9, 4, 0, 8, 1]].concat(),
    ]
}
