//! Sessions as pairs under a virtual clock, over byte streams that break.
//!
//! [`simulation`] is the network between the two: connections that may be cut at any byte, handshakes that may be lost or late. All
//! random choices follow from a seed that a failure prints.

#[path = "../support/prng.rs"]
mod prng;
mod simulation;

use motet_proto::message::session::frame::{FrameKind, HEADER_BYTES, Header};
use motet_proto::message::session::handshake::{Handshake, HandshakeOp};
use motet_proto::message::session::{MAX_PACKET_BYTES, MAX_RAILS, MAX_UNACKED_BYTES, Role, Session};
use simulation::{Simulation, handshake};

/// `MOTET_SESSION_SEEDS=n` runs n schedules of each kind.
fn seeds(most: u64) -> std::ops::Range<u64> {
    0..std::env::var("MOTET_SESSION_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(most)
}

fn run(seed: u64, cuts: bool, rails: bool) -> Simulation {
    let mut world = Simulation::new(seed);
    (world.cuts, world.more_rails) = (cuts, rails);
    for _ in 0..1500 {
        world.step();
    }
    world.settle();
    world
}

#[test]
fn packets_arrive_once_and_in_order_over_one_rail() {
    for seed in seeds(300) {
        let world = run(seed, false, false);
        assert_eq!(world.resumed, 0, "seed {seed}");
    }
}

#[test]
fn packets_of_several_rails_arrive_in_order() {
    let most = seeds(700).map(|seed| run(seed, false, true).most_rails).max();
    assert_eq!(most, Some(MAX_RAILS), "as many as there may be were used");
}

#[test]
fn sessions_survive_breaks_at_any_byte() {
    let (mut resumed, mut resent) = (0, 0);
    for seed in seeds(2500) {
        let world = run(seed, true, seed % 2 == 0);
        resumed += world.resumed;
        resent += world.lost_bytes;
    }
    assert!(resumed > 1000 && resent > 1_000_000, "{resumed} resumptions, {resent} bytes lost on the way");
}

#[test]
fn session_that_is_not_resumed_ends() {
    let mut world = Simulation::new(7);
    (world.cuts, world.more_rails) = (false, false);
    for _ in 0..200 {
        world.step();
    }
    let broken = world.now;
    world.cut_all();
    for side in 0..2 {
        let session = &mut world.sides[side].session;
        assert!(session.tick(broken + 9_999_999_999), "not yet");
        assert!(!session.tick(world.now + 10_000_000_000), "over");
    }
}

/// A called side, and the bytes that a hostile caller sends.
fn called(bytes: &[u8]) -> (Session, Result<Vec<Vec<u8>>, motet_proto::message::ProtocolViolation>) {
    let mut session =
        Session::new(Role::Called, handshake(1, HandshakeOp::Welcome), &handshake(0, HandshakeOp::New), 0)
            .expect("a session");
    let mut left = bytes;
    let mut packets = Vec::new();
    loop {
        match session.ready(0) {
            Ok(true) => packets.push(session.packet().expect("a packet").1.to_vec()),
            Ok(false) => {
                let Some(space) = session.space(0) else { break };
                let n = space.len().min(left.len());
                if n == 0 {
                    break;
                }
                space[..n].copy_from_slice(&left[..n]);
                left = &left[n..];
                session.received(0, n);
            }
            Err(broken) => return (session, Err(broken)),
        }
    }
    (session, Ok(packets))
}

fn packet(position: u32, bytes: &[u8]) -> Vec<u8> {
    let length = bytes.len() as u32;
    let header = Header { what: FrameKind::Packet, kind: 1, length, position, acknowledged: 0 };
    [&header.encode()[..], bytes].concat()
}

#[test]
fn invalid_frames_break_the_session() {
    let first = packet(0, b"first");
    let next = (HEADER_BYTES + 5) as u32;
    let good = [first.clone(), packet(next, b"second")].concat();
    assert_eq!(called(&good).1, Ok(vec![b"first".to_vec(), b"second".to_vec()]));
    let again = [first.clone(), first.clone(), packet(next, b"second")].concat();
    assert_eq!(called(&again).1, Ok(vec![b"first".to_vec(), b"second".to_vec()]), "an old frame is dropped");
    let overlapping = [first.clone(), packet(next - 1, b"second")].concat();
    let early = [first.clone(), packet(next + 1, b"third")].concat();
    assert_eq!(called(&early).1, Ok(vec![b"first".to_vec()]), "what is early waits");
    let gap = [first.clone(), packet(next + (16 << 20), b"third")].concat();
    let acknowledged = Header { acknowledged: 1, ..Header::bare(FrameKind::Acknowledgement, 0) }.encode();
    let goodbye = Header { what: FrameKind::Goodbye, kind: 0, length: 0, position: 0, acknowledged: 0 }.encode();
    let after = [&goodbye[..], &packet(HEADER_BYTES as u32, b"x")].concat();
    let end = Header::bare(FrameKind::End, 0).encode();
    let more = Header::bare(FrameKind::More, 0).encode();
    for (what, bytes) in [
        ("overlap", &overlapping[..]),
        ("gap", &gap),
        ("an acknowledgement of nothing", &acknowledged),
        ("a packet after the goodbye", &after),
        ("the end of the first rail", &end),
        ("a caller that asks for rails", &more),
        ("noise", &[0xff; 64]),
    ] {
        assert!(called(bytes).1.is_err(), "{what}");
    }
}

#[test]
fn peer_that_sends_little_costs_little_memory() {
    let mut header = packet(0, b"").to_vec();
    header[4..8].copy_from_slice(&(MAX_PACKET_BYTES as u32).to_le_bytes());
    let (session, packets) = called(&header);
    assert_eq!(packets, Ok(Vec::new()));
    assert!(session.memory() <= MAX_PACKET_BYTES + HEADER_BYTES, "{} bytes", session.memory());
}

#[test]
fn unacknowledged_bytes_are_bounded() {
    let mut session =
        Session::new(Role::Caller, handshake(0, HandshakeOp::New), &handshake(1, HandshakeOp::Welcome), 0)
            .expect("a session");
    let (mut put, mut sent) = (0u64, 0u64);
    let bytes = vec![1; MAX_PACKET_BYTES];
    loop {
        while session.put(1, &[&bytes]) {
            put += (HEADER_BYTES + MAX_PACKET_BYTES) as u64;
        }
        let mut pieces = [std::io::IoSlice::new(&[]); motet_proto::message::session::MAX_IO_SLICES];
        let n = session.outgoing(0, &mut pieces);
        let bytes: usize = pieces[..n].iter().map(|piece| piece.len()).sum();
        if bytes == 0 {
            break;
        }
        session.sent(0, bytes);
        sent += bytes as u64;
    }
    assert_eq!(put, sent);
    assert!(
        put <= MAX_UNACKED_BYTES && put > MAX_UNACKED_BYTES - (HEADER_BYTES + MAX_PACKET_BYTES) as u64,
        "{put} bytes"
    );
    assert!(!session.put(1, &[&bytes]) && session.put(1, &[b"short"]), "a short one still fits");
}

#[test]
fn handshakes_of_other_nodes_resume_nothing() {
    let mut world = Simulation::new(3);
    for _ in 0..100 {
        world.step();
    }
    let (now, called) = (world.now, &mut world.sides[1].session);
    let right = Handshake { epoch: 1000, ..handshake(0, HandshakeOp::Resume) };
    for wrong in [
        Handshake { session: [9; 16], ..right },
        Handshake { node: [9; 16], ..right },
        Handshake { epoch: 0, ..right },
        Handshake { op: HandshakeOp::Rail, ..right },
        Handshake { op: HandshakeOp::New, ..right },
    ] {
        assert_eq!(called.visited(&wrong, now), Ok(None), "{wrong:?}");
    }
    assert!(called.visited(&Handshake { expected: 1 << 40, ..right }, now).is_err());
}
