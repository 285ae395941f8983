//! Handshakes and frames of a hostile peer: the input is a program of both.
//!
//! ```text
//!   op 1 byte: 0 handshake that resumes: epoch 1, expected 4 · 1 another rail: epoch 1 · 2 put: length 2 · 3 send
//!              4 a header: what 1, kind 1, length 2, position 3, acknowledged 3 · 5 time: seconds 1 · 6 goodbye · 7 break
//!              else: length 1 and as many bytes of the stream
//! ```

use motet_proto::message::session::frame::{HEADER_BYTES, Header};
use motet_proto::message::session::handshake::{HANDSHAKE_BYTES, Handshake, HandshakeOp};
use motet_proto::message::session::{MAX_IO_SLICES, MAX_PACKET_BYTES, MAX_RAILS, MAX_UNACKED_BYTES, Role, Session};
use std::io::IoSlice;

/// Most operations of one input.
const MOST_OPERATIONS: usize = 300;

fn handshake(node: u8, op: HandshakeOp) -> Handshake {
    Handshake {
        op,
        epoch: 0,
        node: [node; 16],
        session: [7; 16],
        expected: 0,
        secret: 0,
        largest: MAX_PACKET_BYTES as u32,
        port: 0,
    }
}

/// Runs one input.
pub fn run(input: &[u8]) {
    if let Some(bytes) = input.first_chunk::<HANDSHAKE_BYTES>()
        && let Ok(handshake) = Handshake::decode(bytes)
    {
        assert_eq!(handshake.encode(), *bytes, "what was understood comes back as it was");
        let _ = Session::new(Role::Caller, handshake, &handshake, 0);
    }
    if let Some(bytes) = input.first_chunk::<HEADER_BYTES>()
        && let Ok(header) = Header::decode(bytes, MAX_PACKET_BYTES)
    {
        assert_eq!(header.encode(), *bytes, "and so does a header");
        assert!(header.size() <= HEADER_BYTES + MAX_PACKET_BYTES);
    }
    let session = Session::new(Role::Called, handshake(1, HandshakeOp::Welcome), &handshake(0, HandshakeOp::New), 0);
    play(input, session.expect("two that fit"));
}

fn play(input: &[u8], mut session: Session) -> Option<()> {
    let mut input = input.iter().copied();
    let mut slot = 0;
    let mut now = 0;
    for _ in 0..MOST_OPERATIONS {
        let mut word = |bytes: u32| (0..bytes).try_fold(0u64, |n, _| input.next().map(|b| n << 8 | u64::from(b)));
        match word(1)? {
            0 => {
                let visit =
                    Handshake { epoch: word(1)? as u32, expected: word(4)?, ..handshake(0, HandshakeOp::Resume) };
                slot = session.visited(&visit, now).ok()?.unwrap_or(slot);
            }
            1 => {
                let visit = Handshake { epoch: word(1)? as u32, ..handshake(0, HandshakeOp::Rail) };
                slot = session.visited(&visit, now).ok()?.unwrap_or(slot);
            }
            2 => {
                let bytes = vec![2; word(2)? as usize];
                let room = session.room();
                assert!(!session.put(1, &[&bytes]) || bytes.len() <= room, "no more than there is room for");
            }
            3 => send(&mut session),
            4 => {
                let mut bytes = [0; HEADER_BYTES];
                (bytes[0], bytes[1]) = (word(1)? as u8, word(1)? as u8);
                bytes[4..8].copy_from_slice(&(word(2)? as u32).to_le_bytes());
                bytes[8..12].copy_from_slice(&(word(3)? as u32).to_le_bytes());
                bytes[12..16].copy_from_slice(&(word(3)? as u32).to_le_bytes());
                receive(&mut session, slot, &bytes, now)?;
            }
            5 => {
                now += word(1)? * 1_000_000_000;
                session.tick(now).then_some(())?;
            }
            6 => session.say_goodbye(),
            7 => session.lost(now),
            n => {
                let length = word(1)?;
                let bytes: Vec<u8> = (0..length).map(|_| n as u8).collect();
                receive(&mut session, slot, &bytes, now)?;
            }
        }
        // Buffers of the rails, and unacknowledged bytes.
        assert!(session.memory() as u64 <= MAX_UNACKED_BYTES + (2 << 20), "memory is bounded");
    }
    Some(())
}

fn send(session: &mut Session) {
    for slot in 0..MAX_RAILS {
        let mut pieces = [IoSlice::new(&[]); MAX_IO_SLICES];
        let n = session.outgoing(slot, &mut pieces);
        let size = pieces[..n].iter().map(|piece| piece.len()).sum();
        session.sent(slot, size);
    }
}

/// Receives bytes. `None`: the peer broke the protocol.
fn receive(session: &mut Session, slot: usize, mut bytes: &[u8], now: u64) -> Option<()> {
    loop {
        while session.ready(now).ok()? {
            let (_, packet) = session.packet().expect("it is ready");
            assert!(packet.len() <= MAX_PACKET_BYTES);
        }
        if session.has_ended(slot) || bytes.is_empty() {
            return Some(());
        }
        let Some(space) = session.space(slot) else { return Some(()) };
        let n = space.len().min(bytes.len());
        space[..n].copy_from_slice(&bytes[..n]);
        session.received(slot, n);
        bytes = &bytes[n..];
    }
}

/// A handshake, a header, and sessions: packets both ways, rails and their ends, breaks and resumption, a goodbye.
pub fn seeds() -> Vec<Vec<u8>> {
    let header = |what: u8, length: u16, position: u32, acknowledged: u32| {
        let (l, p, a) = (length.to_be_bytes(), position.to_be_bytes(), acknowledged.to_be_bytes());
        [&[4, what, 9][..], &l, &p[1..], &a[1..]].concat()
    };
    let bytes = |n: u8| vec![42, n];
    vec![
        handshake(0, HandshakeOp::New).encode().to_vec(),
        Header {
            what: motet_proto::message::session::frame::FrameKind::Packet,
            kind: 1,
            length: 5,
            position: 7,
            acknowledged: 8,
        }
        .encode()
        .to_vec(),
        [header(1, 5, 0, 0), bytes(5), vec![2, 0, 100, 3], header(1, 0, 21, 116)].concat(),
        [vec![3, 1, 0], header(1, 5, 21, 0), bytes(5), vec![3]].concat(),
        [vec![2, 0, 50, 3, 7, 5, 1, 0, 1, 0, 0, 0, 0, 3], vec![0, 2, 0, 0, 0, 66, 3]].concat(),
        [header(1, 200, 0, 0), bytes(200), vec![6, 3, 4, 3, 0, 0, 0, 0, 0, 216, 0, 0, 16, 3]].concat(),
        vec![3, 1, 0, 3, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 5, 2],
    ]
}
