//! A caller that is gone, one that is only away, and how the called side tells them apart.
//!
//! The clock stands still, or goes where a test puts it: no time limit is what ends a link here unless a test says so.

use crate::lost_at_once;
use crate::nodes::{End, identity, pair, until};
use motet_driver_tcp::Tcp;
use motet_engine::driver::MessageDriver;
use motet_engine::message::transport::{Listener, PacketTransport, Transport};
use motet_engine::reason::Reason;
use motet_proto::message::session::handshake::{HANDSHAKE_BYTES, Handshake, HandshakeOp};
use motet_sys::clock::nanoseconds;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

const SECOND: u64 = 1_000_000_000;

fn handshake(op: HandshakeOp, epoch: u32, port: u16) -> Handshake {
    Handshake { op, epoch, node: [5; 16], session: [6; 16], expected: 0, secret: 0, largest: 65536, port }
}

/// A session with a caller that is a plain connection and says that it can be asked for at `port`.
fn call(listener: &mut dyn Listener, port: u16) -> (TcpStream, Box<dyn PacketTransport>) {
    let mut caller = TcpStream::connect(listener.place()).expect("it listens");
    caller.write_all(&handshake(HandshakeOp::New, 0, port).encode()).expect("sent");
    let mut met = None;
    until("it is met", || {
        met = listener.step(nanoseconds());
        met.is_some()
    });
    let Some(Transport::Packet(frames)) = met.map(|met| met.transport) else { panic!("frames") };
    let mut welcome = [0; HANDSHAKE_BYTES];
    caller.read_exact(&mut welcome).expect("a welcome");
    assert_eq!(Handshake::decode(&welcome).map(|handshake| handshake.op), Ok(HandshakeOp::Admitted));
    (caller, frames)
}

/// A port without a listener.
fn unused_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

fn step(frames: &mut dyn PacketTransport, now: u64) -> Option<Reason> {
    frames.poll(now).err().or_else(|| frames.progress(now).err()).map(|lost| lost.0)
}

/// It stands however often it is looked at, at this time.
fn stands(frames: &mut dyn PacketTransport, now: u64) {
    for _ in 0..200 {
        assert_eq!(step(frames, now), None);
        std::thread::yield_now();
    }
}

#[test]
fn a_caller_that_does_not_listen_is_missed_at_once() {
    let (_listener, a, mut b) = pair();
    drop(a);
    assert_eq!(lost_at_once(&mut b, "a refused connection", || ()), Reason::PEER_GONE);
}

#[test]
fn a_caller_that_does_not_listen_is_missed_at_once_in_the_middle_of_something() {
    let (_listener, mut a, mut b) = pair();
    (a.sizes, b.sizes) = (vec![60_000], vec![60_000]);
    until("much is on its way", || {
        a.round(u32::MAX);
        b.round(u32::MAX);
        a.got > 20 && b.got > 20
    });
    drop(a);
    let End { frames, .. } = &mut b;
    let now = nanoseconds();
    let mut lost = None;
    until("a refused connection", || {
        while matches!(frames.poll(now), Ok(Some(_))) {}
        lost = step(&mut **frames, now);
        lost.is_some()
    });
    assert_eq!(lost, Some(Reason::PEER_GONE));
}

#[test]
fn a_caller_that_lives_and_does_nothing_is_waited_for() {
    let mut listener = Tcp.listen(&identity(2, true)).expect("a listener");
    let door = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (caller, mut frames) = call(&mut *listener, door.local_addr().expect("its address").port());
    drop(caller);
    let now = nanoseconds();
    stands(&mut *frames, now);
    stands(&mut *frames, now + 9 * SECOND);
    // And once it is gone, that is known at once.
    drop(door);
    let mut lost = None;
    let mut later = now + 9 * SECOND;
    until("a refused connection", || {
        // The question that was not answered is given up first.
        later = (later + 1_000_000).min(now + 10 * SECOND - 1);
        lost = step(&mut *frames, later);
        lost.is_some()
    });
    assert_eq!(lost, Some(Reason::PEER_GONE));
}

#[test]
fn a_caller_behind_something_that_refuses_is_waited_for() {
    let mut listener = Tcp.listen(&identity(2, true)).expect("a listener");
    let (caller, mut frames) = call(&mut *listener, unused_port());
    let now = nanoseconds();
    stands(&mut *frames, now);
    // It has been refused, and the session has outlived that.
    stands(&mut *frames, now + 2 * SECOND);
    drop(caller);
    stands(&mut *frames, now + 2 * SECOND);
    stands(&mut *frames, now + 11 * SECOND);
    let mut back = TcpStream::connect(listener.place()).expect("it listens");
    back.write_all(&handshake(HandshakeOp::Resume, 1, 0).encode()).expect("sent");
    let mut welcome = [0; HANDSHAKE_BYTES];
    back.set_nonblocking(true).expect("nonblocking");
    until("it is back", || {
        assert!(listener.step(nanoseconds()).is_none(), "no second session");
        assert_eq!(step(&mut *frames, now + 11 * SECOND), None);
        matches!(back.read(&mut welcome), Ok(HANDSHAKE_BYTES))
    });
    assert_eq!(Handshake::decode(&welcome).map(|handshake| handshake.op), Ok(HandshakeOp::Welcome));
    assert!(frames.put(1, &[b"on"]));
}

#[test]
fn connector_acceptor_answers_questions_and_admits_none() {
    // The called side is a plain connection here, so that it can be seen what the caller says.
    let called = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = called.local_addr().expect("its address").to_string();
    let mut calling = Tcp.connect(&identity(1, false), &address).expect("a call");
    assert!(calling.step(nanoseconds()).is_none());
    let (mut far, _) = called.accept().expect("it comes");
    let mut bytes = [0; HANDSHAKE_BYTES];
    until("a handshake", || {
        assert!(calling.step(nanoseconds()).is_none());
        far.set_nonblocking(true).is_ok() && matches!(far.read(&mut bytes), Ok(HANDSHAKE_BYTES))
    });
    let said = Handshake::decode(&bytes).expect("a handshake");
    assert_eq!(said.op, HandshakeOp::New);
    assert_ne!(said.port, 0, "it can be asked for");
    far.write_all(&Handshake { op: HandshakeOp::Admitted, node: [9; 16], port: 0, ..said }.encode()).expect("sent");
    let mut met = None;
    until("they meet", || {
        met = calling.step(nanoseconds());
        met.is_some()
    });
    let Some(Ok(Transport::Packet(mut frames))) = met.map(|met| met.map(|met| met.transport)) else { panic!("frames") };
    drop(calling);
    let known = Handshake { node: [9; 16], ..said };
    for (handshake, expected) in [
        (Handshake { op: HandshakeOp::Probe, ..known }, HandshakeOp::Welcome),
        (handshake(HandshakeOp::Probe, 0, 0), HandshakeOp::Unknown),
        (handshake(HandshakeOp::New, 0, 0), HandshakeOp::Refused),
        (Handshake { op: HandshakeOp::Resume, epoch: 1, ..known }, HandshakeOp::Unknown),
        (Handshake { op: HandshakeOp::Rail, ..known }, HandshakeOp::Unknown),
    ] {
        let mut guest = TcpStream::connect(("127.0.0.1", said.port)).expect("it listens");
        guest.write_all(&handshake.encode()).expect("sent");
        guest.set_nonblocking(true).expect("nonblocking");
        let mut answer = [0; HANDSHAKE_BYTES];
        until("an answer", || {
            assert_eq!(step(&mut *frames, nanoseconds()), None);
            matches!(guest.read(&mut answer), Ok(HANDSHAKE_BYTES))
        });
        assert_eq!(Handshake::decode(&answer).map(|handshake| handshake.op), Ok(expected), "{:?}", handshake.op);
    }
    drop(frames);
    assert!(TcpStream::connect(("127.0.0.1", said.port)).is_err(), "it goes with the link");
}
