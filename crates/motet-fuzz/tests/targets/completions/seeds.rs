//! Inputs of an honest peer, and inputs of hostile ones.

use super::Settings;
use super::raw_peer::MESSAGE;

/// Bits of a receive: owned memory, the other completion queue, any channel, the second channel.
const OWNED: u8 = 1;
const OTHER: u8 = 2;
const ANY: u8 = 4;
const SECOND: u8 = 8;
const READ: [u8; 1] = [11];

fn message(tag: u8, headers: u8, length: u8) -> Vec<u8> {
    vec![0, headers, 0, tag, length]
}

fn granting(grant: u8) -> Vec<u8> {
    vec![0, 0, grant, 0, 8]
}

fn receive(how: u8, tag: u8, ignore: u8, room: u8) -> Vec<u8> {
    vec![8, how, tag, ignore, room]
}

/// A receive that matches any message.
fn post_any(how: u8) -> Vec<u8> {
    receive(how, 0, 255, 56)
}

fn poll(most: u8) -> Vec<u8> {
    vec![9, most - 1]
}

fn send(tag: u8, headers: u8, length: u8) -> Vec<u8> {
    vec![10, tag, headers, length]
}

fn cancel(receive: u8) -> Vec<u8> {
    vec![12, receive]
}

fn claim(tag: u8) -> Vec<u8> {
    vec![13, tag, 0]
}

const PROGRESS: [u8; 1] = [14];

/// A cell with this upper half of its control word.
fn line(length: u32, kind: u32, flags: u32) -> Vec<u8> {
    [&[4][..], &(length | kind << 16 | flags << 24).to_le_bytes(), &[0, 0, 16, 0, 0, 0, 0, 0], &[1; 48]].concat()
}

/// Writes a word of a cell near the next one. `delivered`: at the next delivery.
fn write(delivered: bool, line: u16, word: u16, value: u64) -> Vec<u8> {
    [&[6 + u8::from(delivered)][..], &((line * 8 + word) * 8 + 7).to_le_bytes(), &value.to_le_bytes()].concat()
}

/// Writes a word of 8 bytes anywhere.
fn write_at(at: u16, value: u64) -> Vec<u8> {
    [&[6][..], &(at * 8).to_le_bytes(), &value.to_le_bytes()].concat()
}

fn says_it_read(lines: u64) -> Vec<u8> {
    [&[6, 1, 0][..], &lines.to_le_bytes()].concat()
}

/// All seeds, those of an honest peer first.
pub fn seeds() -> Vec<Vec<u8>> {
    let all = |settings: u8, steps: &[Vec<u8>]| [&[settings][..], &steps.concat()].concat();
    let with = |steps: Vec<Vec<u8>>| [0, Settings::ORDERED, Settings::TWO_LINKS].map(|settings| all(settings, &steps));
    [honest(), hostile()].concat().into_iter().flat_map(with).collect()
}

/// The number of honest seeds.
pub fn honest_count() -> usize {
    honest().len() * 3
}

fn honest() -> Vec<Vec<Vec<u8>>> {
    let turn = || [post_any(0), poll(1), message(1, 0, 8), poll(1), send(1, 0, 8), READ.to_vec()].concat();
    vec![
        // Windows of messages; messages one by one.
        vec![post_any(0).repeat(20), poll(1), message(7, 0, 8).repeat(20), poll(40), poll(1), poll(40)],
        vec![turn().repeat(10)],
        // Headers, truncated bodies, empty bodies.
        vec![
            post_any(0).repeat(4),
            message(1, 8, 40),
            message(1, 40, 40),
            message(1, 0, 0),
            message(2, 3, 24),
            poll(3),
            poll(4),
        ],
        vec![receive(0, 0, 255, 4).repeat(3), receive(0, 0, 255, 0), message(9, 0, 40).repeat(4), poll(4)],
        // By tags, from any channel, with other completion queues, with owned memory; and messages before their receives.
        vec![receive(0, 3, 0, 56), receive(0, 4, 0, 56), message(4, 0, 8), poll(2), message(3, 0, 8), poll(2)],
        vec![post_any(ANY).repeat(3), message(1, 0, 8).repeat(2), poll(1), message(1, 0, 9), poll(1)],
        vec![post_any(0), post_any(OTHER), post_any(0), message(5, 0, 8).repeat(3), poll(9), poll(9)],
        vec![post_any(0), post_any(OWNED), post_any(0), message(5, 0, 8).repeat(3), poll(9), poll(9)],
        vec![message(5, 0, 8).repeat(3), poll(1), post_any(0).repeat(5), poll(2), message(6, 0, 8).repeat(2), poll(2)],
        vec![
            post_any(SECOND).repeat(2),
            post_any(0),
            message(1, 0, 8),
            [1, 0, 0, 2, 8].to_vec(),
            poll(4),
            [1, 0, 0, 3, 8].to_vec(),
            poll(4),
        ],
        // Credit in both directions: half a window of messages, and a lap of the FIFO.
        vec![[post_any(0).repeat(8), message(1, 0, 40).repeat(8), poll(32)].concat().repeat(6)],
        vec![send(1, 0, 40).repeat(8), READ.to_vec(), granting(5), post_any(0), poll(1), send(1, 9, 20)],
        // Another use of the node between a receive and its message: it cancels the oldest receive or another one, claims a waiting message, or makes
        // progress, so that the completion is in its queue.
        vec![turn(), post_any(0).repeat(3), cancel(1), message(1, 0, 8), poll(1), cancel(3), message(2, 0, 8), poll(2)],
        vec![turn(), post_any(0).repeat(3), poll(1), cancel(2), message(1, 0, 8).repeat(2), poll(4), turn()],
        vec![turn(), receive(0, 3, 0, 56), message(4, 0, 8), poll(1), claim(4), message(3, 0, 8), poll(1), turn()],
        vec![turn(), message(4, 0, 8), poll(1), post_any(0), message(5, 0, 8), poll(1), claim(4), turn()],
        vec![turn(), post_any(0).repeat(2), message(1, 0, 8), PROGRESS.to_vec(), message(2, 8, 8), poll(1), turn()],
        // Receives from other sources, with other queues and with other memory, alternating with the usual ones.
        vec![
            [turn(), post_any(ANY), turn(), post_any(OTHER), turn(), post_any(OWNED), message(9, 0, 8), poll(3)]
                .concat()
                .repeat(3),
        ],
    ]
}

fn hostile() -> Vec<Vec<Vec<u8>>> {
    let three = || [post_any(0).repeat(3), poll(1)].concat();
    let broken = |bytes: Vec<u8>| {
        vec![three(), message(1, 0, 8), bytes, message(1, 0, 8), poll(32), post_any(0), send(1, 0, 8), poll(1)]
    };
    let short = u32::from(MESSAGE);
    // A posted receive when messages without a receive have taken all of the window, or nearly all.
    let full = |held: usize| {
        vec![message(1, 0, 8).repeat(held), poll(1), receive(0, 2, 0, 56), poll(1), message(2, 0, 8), poll(1)]
    };
    let mut hostile = vec![
        // Lengths beyond a cell or below a message's header; wrong continuation counts, flags and kinds.
        broken(line(57, short, 0)),
        broken(line(255, short, 0)),
        broken(line(15, short, 0)),
        broken(line(0, short, 0)),
        broken(line(24 | 1 << 13, short, 0)),
        broken(line(24, short, 1)),
        broken(line(24, short, 0x80)),
        broken(line(24, 255, 0)),
        broken(line(4096, short, 0)),
        // More headers than bytes; unknown channels; more credit than allowed.
        broken(vec![0, 200, 0, 1, 8]),
        broken(vec![2, 0, 0xf0, 1, 8]),
        broken(granting(15)),
        vec![three(), message(1, 0, 8), write(false, 1, 1, 1 << 63), poll(1), poll(1)],
        // More than the window without a receive; then with one.
        vec![message(1, 0, 40).repeat(58), poll(1), post_any(0), poll(1)],
        // A cell that changes when the one before it is delivered, or whose stamp is too old or too new.
        vec![three(), message(1, 0, 8).repeat(3), write(true, 1, 0, 0), poll(32), poll(1)],
        vec![three(), message(1, 0, 8).repeat(3), write(true, 1, 1, u64::MAX), write(true, 1, 2, 5), poll(32)],
        vec![three(), message(1, 0, 8).repeat(3), write(true, 0, 0, 3 | 56 << 32 | 2 << 48), poll(32), poll(1)],
        vec![three(), message(1, 0, 8), write(false, 1, 0, 99), poll(1), write(false, 2, 0, 0xffff_ffff), poll(1)],
        vec![three(), message(1, 0, 8), poll(1), says_it_read(1 << 40), send(1, 0, 8).repeat(3), poll(1)],
        vec![three(), write_at(16, 1), write_at(32, 1), write_at(0, 7), message(1, 0, 8), poll(1), send(1, 0, 8)],
    ];
    hostile.extend((48..52).map(full));
    hostile
}
