//! A caller that is gone, a caller that is only disconnected, and how the called side distinguishes them.
//!
//! The clock stands still, or each test sets it: no timeout ends a link unless a test says so.

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

/// A session with a caller that is a bare TCP connection, whose handshake says that it answers probes at `port`.
fn connect_raw_caller(listener: &mut dyn Listener, port: u16) -> (TcpStream, Box<dyn PacketTransport>) {
    let mut caller = TcpStream::connect(listener.shown_address()).expect("it listens");
    caller.write_all(&handshake(HandshakeOp::New, 0, port).encode()).expect("sent");
    let mut connected = None;
    until("it is connected", || {
        connected = listener.step(nanoseconds());
        connected.is_some()
    });
    let Some(Transport::Packet(link)) = connected.map(|connected| connected.transport) else {
        panic!("a packet transport")
    };
    let mut welcome = [0; HANDSHAKE_BYTES];
    caller.read_exact(&mut welcome).expect("a welcome");
    assert_eq!(Handshake::decode(&welcome).map(|handshake| handshake.op), Ok(HandshakeOp::Admitted));
    (caller, link)
}

/// A port without a listener.
fn unused_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

fn step(link: &mut dyn PacketTransport, now: u64) -> Option<Reason> {
    link.poll(now).err().or_else(|| link.progress(now).err()).map(|lost| lost.0)
}

/// Asserts that the link stays up at this time, however often it is stepped.
fn assert_stays_up(link: &mut dyn PacketTransport, now: u64) {
    for _ in 0..200 {
        assert_eq!(step(link, now), None);
        std::thread::yield_now();
    }
}

#[test]
fn caller_without_listener_gone_is_known_at_once() {
    let (_listener, a, mut b) = pair();
    drop(a);
    assert_eq!(lost_at_once(&mut b, "a refused connection", || ()), Reason::PEER_GONE);
}

#[test]
fn caller_without_listener_gone_in_traffic_is_known_at_once() {
    let (_listener, mut a, mut b) = pair();
    (a.sizes, b.sizes) = (vec![60_000], vec![60_000]);
    until("much is on its way", || {
        a.round(u32::MAX);
        b.round(u32::MAX);
        a.got > 20 && b.got > 20
    });
    drop(a);
    let End { link, .. } = &mut b;
    let now = nanoseconds();
    let mut lost = None;
    until("a refused connection", || {
        while matches!(link.poll(now), Ok(Some(_))) {}
        lost = step(&mut **link, now);
        lost.is_some()
    });
    assert_eq!(lost, Some(Reason::PEER_GONE));
}

#[test]
fn caller_alive_and_silent_is_waited_for() {
    let mut listener = Tcp.listen(&identity(2, true)).expect("a listener");
    let caller_port = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (caller, mut link) = connect_raw_caller(&mut *listener, caller_port.local_addr().expect("its address").port());
    drop(caller);
    let now = nanoseconds();
    assert_stays_up(&mut *link, now);
    assert_stays_up(&mut *link, now + 9 * SECOND);
    // Once the caller is gone, the called side learns it at once.
    drop(caller_port);
    let mut lost = None;
    let mut later = now + 9 * SECOND;
    until("a refused connection", || {
        // The probe that was not answered times out first.
        later = (later + 1_000_000).min(now + 10 * SECOND - 1);
        lost = step(&mut *link, later);
        lost.is_some()
    });
    assert_eq!(lost, Some(Reason::PEER_GONE));
}

#[test]
fn caller_behind_refusing_port_is_waited_for() {
    let mut listener = Tcp.listen(&identity(2, true)).expect("a listener");
    let (caller, mut link) = connect_raw_caller(&mut *listener, unused_port());
    let now = nanoseconds();
    assert_stays_up(&mut *link, now);
    // The probe was refused, and the session lives on.
    assert_stays_up(&mut *link, now + 2 * SECOND);
    drop(caller);
    assert_stays_up(&mut *link, now + 2 * SECOND);
    assert_stays_up(&mut *link, now + 11 * SECOND);
    let mut back = TcpStream::connect(listener.shown_address()).expect("it listens");
    back.write_all(&handshake(HandshakeOp::Resume, 1, 0).encode()).expect("sent");
    let mut welcome = [0; HANDSHAKE_BYTES];
    back.set_nonblocking(true).expect("nonblocking");
    until("it is back", || {
        assert!(listener.step(nanoseconds()).is_none(), "no second session");
        assert_eq!(step(&mut *link, now + 11 * SECOND), None);
        matches!(back.read(&mut welcome), Ok(HANDSHAKE_BYTES))
    });
    assert_eq!(Handshake::decode(&welcome).map(|handshake| handshake.op), Ok(HandshakeOp::Welcome));
    assert!(link.put(1, &[b"on"]));
}

#[test]
fn connector_acceptor_answers_probes_and_admits_none() {
    // The called side is a bare TCP connection here, so that the test sees the caller's bytes.
    let called = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = called.local_addr().expect("its address").to_string();
    let mut connector = Tcp.connect(&identity(1, false), &address).expect("a connector");
    assert!(connector.step(nanoseconds()).is_none());
    let (mut far, _) = called.accept().expect("a connection");
    let mut bytes = [0; HANDSHAKE_BYTES];
    until("a handshake", || {
        assert!(connector.step(nanoseconds()).is_none());
        far.set_nonblocking(true).is_ok() && matches!(far.read(&mut bytes), Ok(HANDSHAKE_BYTES))
    });
    let sent = Handshake::decode(&bytes).expect("a handshake");
    assert_eq!(sent.op, HandshakeOp::New);
    assert_ne!(sent.port, 0, "it answers probes there");
    far.write_all(&Handshake { op: HandshakeOp::Admitted, node: [9; 16], port: 0, ..sent }.encode()).expect("sent");
    let mut connected = None;
    until("it is connected", || {
        connected = connector.step(nanoseconds());
        connected.is_some()
    });
    let Some(Ok(Transport::Packet(mut link))) =
        connected.map(|connected| connected.map(|connected| connected.transport))
    else {
        panic!("a packet transport")
    };
    drop(connector);
    let known = Handshake { node: [9; 16], ..sent };
    for (handshake, expected) in [
        (Handshake { op: HandshakeOp::Probe, ..known }, HandshakeOp::Welcome),
        (handshake(HandshakeOp::Probe, 0, 0), HandshakeOp::Unknown),
        (handshake(HandshakeOp::New, 0, 0), HandshakeOp::Refused),
        (Handshake { op: HandshakeOp::Resume, epoch: 1, ..known }, HandshakeOp::Unknown),
        (Handshake { op: HandshakeOp::Rail, ..known }, HandshakeOp::Unknown),
    ] {
        let mut incoming = TcpStream::connect(("127.0.0.1", sent.port)).expect("it listens");
        incoming.write_all(&handshake.encode()).expect("sent");
        incoming.set_nonblocking(true).expect("nonblocking");
        let mut answer = [0; HANDSHAKE_BYTES];
        until("an answer", || {
            assert_eq!(step(&mut *link, nanoseconds()), None);
            matches!(incoming.read(&mut answer), Ok(HANDSHAKE_BYTES))
        });
        assert_eq!(Handshake::decode(&answer).map(|handshake| handshake.op), Ok(expected), "{:?}", handshake.op);
    }
    drop(link);
    assert!(TcpStream::connect(("127.0.0.1", sent.port)).is_err(), "the acceptor closes with the link");
}
