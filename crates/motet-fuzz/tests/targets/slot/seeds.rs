//! Inputs that keep to the protocol, and inputs of peers that write wrong values.

use super::{HEAD, LANDED_OFFSET, MODE, SECOND, STATE, Settings};

/// Offsets of a transfer's words in a direction.
const INTO: usize = 200;
const INTO_LENGTH: usize = 208;
const AT: usize = 216;
const FROM: usize = 256;
const LENGTH: usize = 264;
const PIECE: usize = 272;
const KEPT: usize = 280;
const NEXT: usize = 320;
const FINISHED: usize = 384;
/// Mapped memory of the peer.
const PEER_MEMORY: u64 = 0x10000;
/// Flags of sends and receives: may block; buffers from 700 bytes on are large; receives wait for 20 us.
const BLOCKING_SEND: u8 = 2;
const BLOCKING: u8 = 1;
const LARGE: u8 = 4;
const LONG: u8 = 0x30;
/// Kinds of a write: to the words of a direction; added to the present value.
const PUT: u8 = 32;
const ADD: u8 = 128;

fn writes(kind: u8, at: usize, value: u64) -> Vec<u8> {
    [&[kind][..], &(at as u16).to_be_bytes(), &value.to_le_bytes()].concat()
}

fn put(at: usize, value: u64) -> Vec<u8> {
    writes(PUT, at, value)
}

/// A write during calls.
fn later(every: u8, times: u8, kind: u8, at: usize, value: u64) -> Vec<u8> {
    [&[15, every, times][..], &writes(kind, at, value)].concat()
}

fn send(length: u16, flags: u8) -> Vec<u8> {
    [&[2][..], &length.to_be_bytes(), &[flags]].concat()
}

fn receive(length: u16, flags: u8) -> Vec<u8> {
    [&[4][..], &length.to_be_bytes(), &[flags]].concat()
}

/// The peer waits at `at` for `length` bytes.
fn shown(at: u64, length: u64) -> Vec<u8> {
    [put(INTO, PEER_MEMORY), put(INTO_LENGTH, length), put(AT, at), put(AT + 8, 0), put(NEXT, 0), put(FINISHED, 0)]
        .concat()
}

/// The peer's half of a transfer to us, before it is active.
fn offered(length: u64, piece: u64) -> Vec<u8> {
    [put(SECOND + FROM, PEER_MEMORY), put(SECOND + LENGTH, length), put(SECOND + PIECE, piece)].concat()
}

/// The transfer's state from step `at` on.
fn comes(at: u8, state: u64) -> Vec<u8> {
    later(at, 1, PUT, SECOND + STATE, state)
}

/// All seeds.
pub fn seeds() -> Vec<Vec<u8>> {
    [exchanges(), rates(), transfers_out(), transfers_in(), waits(), handed_over()].concat()
}

/// Hand-over of a descriptor with bytes in the ring: consistent ones, more than the ring has, and ones that the peer claims meanwhile.
fn handed_over() -> Vec<Vec<u8>> {
    let unread = |bytes: u16| [&[0, 8, 14][..], &bytes.to_be_bytes()].concat();
    let claimed = put(SECOND + HEAD, 1);
    vec![
        [&unread(50)[..], &[16], &receive(9, 0), &send(9, 0)].concat(),
        [&unread(4096)[..], &[16, 16]].concat(),
        [&unread(4097)[..], &[16]].concat(),
        [&unread(50)[..], &claimed, &[16], &receive(9, 0)].concat(),
    ]
}

/// An honest exchange, one in which both ends disagree, and one with TCP in the middle.
fn exchanges() -> Vec<Vec<u8>> {
    vec![
        [
            &[0, 8][..],
            &put(SECOND, 11),
            &receive(9, 0),
            &put(MODE, 1),
            &send(9, 0),
            &put(HEAD, 18),
            &send(4096, 0),
            &[10],
        ]
        .concat(),
        [&[0, 8][..], &put(SECOND, 1 << 20), &receive(9, 1), &put(HEAD, 7), &send(256, 0), &[10], &put(HEAD, 1), &[10]]
            .concat(),
        [&[0, 11, 30, 8][..], &put(SECOND + 64, 20), &put(SECOND, 101), &receive(200, 1), &receive(200, 3), &[9]]
            .concat(),
    ]
}

/// The peer publishes its copy rate, and gets ours.
fn rates() -> Vec<Vec<u8>> {
    let say = |settings: u8, landed: u64| {
        let say = put(LANDED_OFFSET, landed << 32);
        let again = [&say[..], &send(60_000, BLOCKING_SEND), &[13]].concat();
        [&[settings][..], &put(MODE, 3), &say, &send(20_000, BLOCKING_SEND), &[13], &again, &again].concat()
    };
    let window = Settings::WINDOW;
    let takes = |settings: u8| {
        let take = [&[14][..], &60_000u16.to_be_bytes(), &receive(61_000, 0)].concat();
        [&[settings, 8][..], &take.repeat(36)].concat()
    };
    vec![
        say(window, 777),
        say(window | Settings::FAR | Settings::COPIES, 1),
        say(window | Settings::SLOWLY, u64::from(u32::MAX)),
        [&say(window, 5_000)[..], &later(0, 255, ADD, LANDED_OFFSET, 1 << 40), &send(60_000, BLOCKING_SEND)].concat(),
        takes(0),
        takes(Settings::SLOWLY),
    ]
}

/// The beginning of a block goes ahead, and the rest is written into the peer's memory.
fn transfers_out() -> Vec<Vec<u8>> {
    let large = BLOCKING_SEND | LARGE;
    let ahead =
        |settings: u8| [&[Settings::COPIES | settings][..], &put(MODE, 3), &send(40_000, large), &[13]].concat();
    let rest = || send(40_000 - 16_384, large);
    let posted = |length| [shown(16_384, length), put(STATE, 1)].concat();
    let soon = |length: u64| [shown(16_384, length), later(3, 1, PUT, STATE, 1)].concat();
    vec![
        [ahead(0), posted(60_000), rest()].concat(),
        [ahead(Settings::SLOWLY), soon(60_000), rest()].concat(),
        [ahead(0), rest(), send(40_000, large), send(40_000, large), send(40_000, large)].concat(),
        [ahead(0), posted(100), rest(), posted(0), rest()].concat(),
        // Memory that is not mapped, or only partly.
        [ahead(0), posted(60_000), put(INTO, 3), rest()].concat(),
        [ahead(0), posted(60_000), put(INTO, PEER_MEMORY + (28 << 10)), rest()].concat(),
        // Pieces claimed by the peer, finished or not, and claims that are taken back.
        [ahead(0), posted(60_000), later(6, 1, PUT, NEXT, 1), later(30, 1, ADD, FINISHED, 1), rest()].concat(),
        [ahead(Settings::SLOWLY), posted(60_000), later(6, 1, ADD, NEXT, 1), rest()].concat(),
        [ahead(0), posted(60_000), later(0, 255, PUT, NEXT, 0), rest()].concat(),
        [ahead(0), posted(60_000), later(0, 255, ADD, NEXT, u64::MAX), send(23_000, LARGE)].concat(),
        [ahead(0), posted(60_000), later(3, 1, PUT, STATE, 0), rest(), send(9, 0)].concat(),
    ]
}

/// The rest of a block is read from the peer's memory.
fn transfers_in() -> Vec<Vec<u8>> {
    let begin = |settings: u8| vec![Settings::COPIES | settings, 8];
    let wait = || receive(30_000, BLOCKING | LARGE | LONG);
    vec![
        [begin(0), offered(30_000, 16_384), comes(6, 2), comes(80, 3), wait()].concat(),
        [begin(Settings::SLOWLY), offered(3_000, 4096), comes(6, 2), comes(80, 3), wait(), wait()].concat(),
        [begin(0), offered(30_000, 16_384), put(SECOND + KEPT, 16_384), comes(6, 2), comes(80, 4), wait()].concat(),
        [begin(0), offered(30_000, 16_384), put(SECOND + KEPT, 0), comes(6, 2), comes(80, 4), wait()].concat(),
        // More than there is room for; nothing; empty pieces; more kept than agreed on; done or cut without having been active.
        [begin(0), offered(30_001, 16_384), comes(6, 2), comes(80, 3), wait()].concat(),
        [begin(0), offered(0, 16_384), comes(6, 2), comes(80, 3), wait()].concat(),
        [begin(0), offered(30_000, 0), comes(6, 2), comes(80, 3), wait()].concat(),
        [begin(0), offered(30_000, 16_384), put(SECOND + KEPT, 30_001), comes(6, 4), wait()].concat(),
        [begin(0), offered(30_000, 16_384), comes(6, 3), wait()].concat(),
        // Claims that are taken back, memory that ends, and a peer that stops.
        [begin(0), offered(30_000, 4096), later(0, 255, PUT, SECOND + NEXT, 0), comes(6, 2), comes(80, 3), wait()]
            .concat(),
        [
            begin(0),
            offered(30_000, 4096),
            put(SECOND + FROM, PEER_MEMORY + (30 << 10)),
            comes(6, 2),
            comes(80, 3),
            wait(),
        ]
        .concat(),
        [begin(0), offered(30_000, 4096), comes(6, 2), wait(), wait()].concat(),
    ]
}

/// The peer reads, or claims to, while we wait.
fn waits() -> Vec<Vec<u8>> {
    let sent = [&put(MODE, 3)[..], &send(60_000, BLOCKING_SEND), &[8]].concat();
    let wait = [12, LONG];
    let reads = |every: u8, bytes: u64| later(every, 255, ADD, HEAD, bytes << 1);
    vec![
        [&[Settings::SLOWLY][..], &sent, &reads(10, 4200), &wait, &wait].concat(),
        [&[0][..], &sent, &reads(10, 4200), &wait, &receive(9, BLOCKING | LONG)].concat(),
        // Back and forth, far beyond the end, and impossibly fast.
        [&[Settings::SLOWLY][..], &sent, &reads(3, 30_000), &later(7, 255, PUT, HEAD, 0), &wait, &wait].concat(),
        [&[Settings::SLOWLY][..], &sent, &reads(0, 1 << 61), &wait, &receive(9, BLOCKING | LONG)].concat(),
        [&[Settings::SLOWLY][..], &sent, &put(HEAD + 8, 1), &reads(10, 4200), &wait].concat(),
    ]
}
