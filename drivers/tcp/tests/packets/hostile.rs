//! Incoming connections that send no valid handshake, or invalid packets after it; outgoing connections to wrong peers.

use crate::nodes::{End, connect_nodes, identity, pair, until};
use motet_driver_tcp::Tcp;
use motet_engine::driver::MessageDriver;
use motet_engine::message::transport::{Listener, Transport};
use motet_engine::reason::Reason;
use motet_proto::message::session::handshake::{HANDSHAKE_BYTES, Handshake, HandshakeOp, VERSION};
use motet_sys::clock::nanoseconds;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

fn handshake(op: HandshakeOp) -> Handshake {
    Handshake { op, epoch: 0, node: [5; 16], session: [6; 16], expected: 0, secret: 0, largest: 65536, port: 0 }
}

/// What a listener answers to these bytes, until it closes the connection.
fn answer(listener: &mut dyn Listener, bytes: &[u8]) -> Vec<u8> {
    let mut incoming = TcpStream::connect(listener.shown_address()).expect("it listens");
    incoming.write_all(bytes).expect("sent");
    incoming.set_nonblocking(true).expect("nonblocking");
    let mut got = Vec::new();
    until("an answer", || {
        assert!(listener.step(nanoseconds()).is_none(), "no node has connected");
        let mut chunk = [0; 256];
        match incoming.read(&mut chunk) {
            Ok(0) => return true,
            Ok(n) => got.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return true, // reset: there were unread bytes
        }
        false
    });
    got
}

fn op(bytes: &[u8]) -> Option<HandshakeOp> {
    Handshake::decode(bytes.first_chunk::<HANDSHAKE_BYTES>()?).ok().map(|handshake| handshake.op)
}

#[test]
fn incoming_without_permitted_handshake_is_turned_away() {
    let mut listener = Tcp.listen(&identity(2, true)).expect("a listener");
    let listener = &mut *listener;
    assert_eq!(answer(listener, b"GET / HTTP/1.1\r\n\r\n"), b"");
    assert_eq!(answer(listener, &[0; 64]), b"");
    assert_eq!(op(&answer(listener, &handshake(HandshakeOp::Resume).encode())), Some(HandshakeOp::Unknown));
    assert_eq!(op(&answer(listener, &handshake(HandshakeOp::Rail).encode())), Some(HandshakeOp::Unknown));
    assert_eq!(op(&answer(listener, &handshake(HandshakeOp::Probe).encode())), Some(HandshakeOp::Unknown));
    for op in [HandshakeOp::Welcome, HandshakeOp::Admitted, HandshakeOp::NotPermitted] {
        assert_eq!(answer(listener, &handshake(op).encode()), b"");
    }
    let tiny = Handshake { largest: 10, ..handshake(HandshakeOp::New) };
    assert_eq!(op(&answer(listener, &tiny.encode())), Some(HandshakeOp::Refused));
    let begun = Handshake { epoch: 1, ..handshake(HandshakeOp::New) };
    assert_eq!(op(&answer(listener, &begun.encode())), Some(HandshakeOp::Refused));
    let mut other = handshake(HandshakeOp::New).encode();
    other[8..10].copy_from_slice(&(VERSION + 1).to_le_bytes());
    other[10..].fill(0xee);
    assert_eq!(op(&answer(listener, &other)), Some(HandshakeOp::Version));
}

#[test]
fn incoming_many_and_silent_keep_no_peer_out() {
    let mut listener = Tcp.listen(&identity(2, true)).expect("a listener");
    let silent: Vec<_> = (0..200)
        .map(|n| {
            let mut incoming = TcpStream::connect(listener.shown_address()).expect("it listens");
            incoming.write_all(&handshake(HandshakeOp::New).encode()[..n % HANDSHAKE_BYTES]).expect("sent");
            assert!(listener.step(nanoseconds()).is_none());
            incoming
        })
        .collect();
    let address = listener.address();
    let (mut a, mut b) = connect_nodes(&identity(1, false), &mut *listener, &address);
    until("packets arrive", || {
        a.round(100);
        b.round(100);
        a.got == 100 && b.got == 100
    });
    // They time out; then the listener has nothing to wait for.
    assert!(listener.due().is_some());
    assert!(listener.step(nanoseconds() + 60_000_000_000).is_none());
    assert_eq!(listener.due(), None);
    drop(silent);
}

#[test]
fn invalid_frames_break_only_their_own_link() {
    let (mut listener, mut a, mut b) = pair();
    let mut incoming = TcpStream::connect(listener.shown_address()).expect("it listens");
    incoming.write_all(&handshake(HandshakeOp::New).encode()).expect("sent");
    let mut hostile = None;
    until("it is connected", || {
        hostile = listener.step(nanoseconds());
        hostile.is_some()
    });
    let Some(Transport::Packet(mut link)) = hostile.map(|connected| connected.transport) else {
        panic!("a packet transport")
    };
    let mut welcome = [0; HANDSHAKE_BYTES];
    incoming.read_exact(&mut welcome).expect("a welcome");
    assert_eq!(op(&welcome), Some(HandshakeOp::Admitted));
    incoming.write_all(&[0xff; 1000]).expect("sent");
    let mut lost = None;
    until("the link breaks", || {
        lost = link.poll(nanoseconds()).err();
        lost.is_some()
    });
    assert_eq!(lost.map(|lost| lost.0), Some(Reason::BROKEN));
    until("the other link works", || {
        a.round(10);
        b.round(10);
        a.got == 10 && b.got == 10
    });
}

#[test]
fn connector_with_wrong_peer_reports_reason() {
    let reason_of = |address: &str, bytes: &[u8]| {
        let server = TcpListener::bind(address).expect("a port");
        let mut connector = Tcp
            .connect(&identity(1, false), &server.local_addr().expect("its address").to_string())
            .expect("a connector");
        let (mut far, _) = server.accept().expect("a connection");
        far.write_all(bytes).expect("sent");
        let mut outcome = None;
        until("an outcome", || {
            outcome = connector.step(nanoseconds());
            outcome.is_some()
        });
        match outcome {
            Some(Err(reason)) => reason,
            _ => panic!("connected, although no node is there"),
        }
    };
    assert_eq!(reason_of("127.0.0.1:0", b"220 mail.example ESMTP\r\n"), Reason::NO_SUCH_NODE);
    assert_eq!(reason_of("127.0.0.1:0", &handshake(HandshakeOp::Version).encode()), Reason::VERSION);
    assert_eq!(reason_of("127.0.0.1:0", &handshake(HandshakeOp::Refused).encode()), Reason::NO_SUCH_NODE);
    assert_eq!(
        reason_of("127.0.0.1:0", &handshake(HandshakeOp::Welcome).encode()),
        Reason::NO_SUCH_NODE,
        "no answer to a new session"
    );
    assert_eq!(
        reason_of("127.0.0.1:0", &handshake(HandshakeOp::Admitted).encode()),
        Reason::BROKEN,
        "another session's"
    );
    assert_eq!(reason_of("127.0.0.1:0", &handshake(HandshakeOp::NotPermitted).encode()), Reason::BAD_SECRET);
    assert!(Tcp.connect(&identity(1, false), "nowhere").is_err());
    assert!(Tcp.listen(&identity(1, false)).is_err());
}

#[test]
fn node_that_connects_to_itself_is_refused() {
    let own = identity(1, true);
    let mut listener = Tcp.listen(&own).expect("a listener");
    let mut connector = Tcp.connect(&own, &listener.address()).expect("a connector");
    let mut outcome = None;
    until("an outcome", || {
        assert!(listener.step(nanoseconds()).is_none());
        outcome = connector.step(nanoseconds());
        outcome.is_some()
    });
    assert!(matches!(outcome, Some(Err(Reason::NO_SUCH_NODE))));
}

#[test]
fn packets_without_reader_are_bounded() {
    let (_listener, mut a, _b) = pair();
    let End { link, .. } = &mut a;
    let mut put = 0;
    while link.put(1, &[&[1; 1000]]) {
        put += 1016;
    }
    assert!((100_000..=motet_proto::message::session::MAX_UNACKED_BYTES).contains(&put), "{put} bytes and no reader");
}
