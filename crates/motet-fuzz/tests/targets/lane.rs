//! A lane as the peer left it: the input is a program of both ends' calls and of writes into the memory between them.
//!
//! ```text
//!   op 1 byte: 0-3 put · 4-7 poll · 8 room · 9 sleep · 10 both ends anew · else write
//!   put, room: length 2 bytes, kind 1, flags 1 · write: offset 2, value 8
//! ```

use motet_sys::memory;
use motet_sys::rustix::fd::OwnedFd;
use motet_sys::rustix::io::pwrite;
use motet_wire::lane::{Buffer, Fence, Lane, MOST};

/// Few, so that positions meet.
const LINES: usize = 16;
/// Operations of one input.
const MOST_OPERATIONS: usize = 300;

thread_local! {
    static MEMORY: Option<(OwnedFd, Lane)> = exposed();
}

fn exposed() -> Option<(OwnedFd, Lane)> {
    let size = Lane::size(LINES).next_multiple_of(4096);
    let (file, mapping) = memory::create("motet-lane", size, &[], size).ok()?;
    Some((file, Lane::over(mapping, 0, LINES)?))
}

/// Runs the program.
pub fn run(input: &[u8]) {
    MEMORY.with(|memory| {
        if let Some((file, lane)) = memory {
            interpret(input, file, *lane);
        }
    });
}

fn interpret(input: &[u8], file: &OwnedFd, lane: Lane) {
    lane.prepare(if input.len() & 1 == 0 { Fence::Asymmetric } else { Fence::Both });
    let (mut producer, mut consumer, mut buffer) = (lane.producer(), lane.consumer(), Buffer::new());
    let mut input = input.iter().copied();
    let mut word = |bytes: u32| (0..bytes).try_fold(0u64, |n, _| input.next().map(|b| n << 8 | u64::from(b)));
    for _ in 0..MOST_OPERATIONS {
        let Some(op) = word(1) else { return };
        let done = match op {
            0..=3 => word(4).map(|w| {
                let data = vec![w as u8; (w >> 16) as usize % (MOST + 100)];
                let (a, b) = data.split_at(data.len() * op as usize / 4);
                let _ = producer.try_put((w >> 8) as u8, w as u8, &[a, b]);
            }),
            4..=7 => {
                if let Ok(Some(packet)) = consumer.poll(&mut buffer) {
                    assert!(packet.bytes(&buffer).len() <= lane.most(), "no longer than a packet can be");
                }
                Some(())
            }
            8 => word(4).map(|w| {
                let _ = producer.room((w >> 16) as usize);
            }),
            9 => {
                if consumer.begin_sleep(|| ()) {
                    assert!(consumer.is_empty());
                    consumer.end_sleep();
                }
                Some(())
            }
            10 => {
                (producer, consumer) = (lane.producer(), lane.consumer());
                Some(())
            }
            _ => word(2).zip(word(8)).map(|(at, value)| {
                // Mostly the words of the lines, aligned.
                let size = Lane::size(LINES) as u64;
                let at = if op & 1 == 0 { size - 64 * (1 + at % LINES as u64) } else { at % size / 8 * 8 };
                let _ = pwrite(file, &value.to_be_bytes(), at);
            }),
        };
        if done.is_none() {
            return;
        }
    }
}

/// An honest exchange, a packet that claims too much, and one whose second line is not there.
pub fn seeds() -> Vec<Vec<u8>> {
    // The word of line 0: stamp 1, then length, kind, flags.
    let word = |length: u64, kind: u64, flags: u64| 1 | length << 32 | kind << 48 | flags << 56;
    let put = |at: u16, value: u64| [&[13][..], &at.to_be_bytes(), &value.to_le_bytes()].concat();
    vec![
        [0, 0, 8, 1, 0, 4, 1, 1, 0, 2, 0, 9, 2, 0, 90, 3, 0, 4, 4, 8, 2, 0, 0, 0].to_vec(),
        [&put(384, word(9000, 1, 0))[..], &[4, 9, 10, 4]].concat(),
        [&put(384, word(100, 1, 0))[..], &[4], &put(448, word(100, 1, 0x80) + 1), &[4, 4]].concat(),
        [&[0, 0, 8, 1, 0][..], &put(128, 1), &[8, 2, 0, 0, 0], &put(128, 99), &[8, 3, 200, 0, 0], &put(384, 0), &[4]]
            .concat(),
    ]
}
