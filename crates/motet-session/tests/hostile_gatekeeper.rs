//! The connection of a node to a gatekeeper that breaks the protocol.
#![forbid(unsafe_code)]

mod fake_gatekeeper;

use fake_gatekeeper::{Connection, FakeGatekeeper, LIMIT, UPGRADED};
use motet_session::api::{ANOTHER_SESSION, FromNode, MAX_ANSWER_LINE_BYTES, ToNode};
use motet_session::attach::{Attachment, Event};
use motet_session::circuits::{CircuitId, CircuitPart};
use motet_session::client::ClientError;
use std::sync::mpsc::{Receiver, channel};

/// Attaches a node; its events go into a channel.
fn attach(gatekeeper: &FakeGatekeeper) -> Result<(Attachment, Receiver<Event>), ClientError> {
    let (sender, events) = channel();
    let node = format!("{:032x}", 7);
    let attachment = Attachment::open(&gatekeeper.paths, &node, "nowhere", move |_, event| {
        let _ = sender.send(event);
    })?;
    Ok((attachment, events))
}

/// The error of an attachment to a gatekeeper that does this with its first connection.
fn refused(act: impl FnOnce(&mut Connection) + Send) -> ClientError {
    let gatekeeper = FakeGatekeeper::start();
    std::thread::scope(|scope| {
        scope.spawn(|| act(&mut gatekeeper.accept()));
        attach(&gatekeeper).map(drop).unwrap_err()
    })
}

/// A node that is attached, and its connection. The attachment is dropped first: a connection that ends is made again.
fn attached(gatekeeper: &FakeGatekeeper) -> (Connection, Receiver<Event>, Attachment) {
    std::thread::scope(|scope| {
        let connection = scope.spawn(|| gatekeeper.welcome("one"));
        let (attachment, events) = attach(gatekeeper).unwrap();
        (connection.join().unwrap(), events, attachment)
    })
}

#[track_caller]
fn next(events: &Receiver<Event>) -> Event {
    events.recv_timeout(LIMIT).unwrap()
}

#[test]
fn answers_that_are_no_upgrade_are_errors() {
    let answers: [&[u8]; 6] = [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 101",
        b"HTTP/1.1 99999 x\r\n\r\n",
        b"\0\xff\r\n\r\n",
    ];
    for answer in answers {
        let error = refused(|connection| {
            connection.write(answer);
        });
        let is_expected = matches!(error, ClientError::Malformed(_) | ClientError::Refused(..) | ClientError::Io(_));
        assert!(is_expected, "{answer:?}: {error}");
    }
    // A head without an end is read to its limit only: then the connection is closed, and writing fails.
    let error = refused(|connection| while connection.write(&[b'x'; 4096]) {});
    assert!(matches!(error, ClientError::Malformed(_)), "{error}");
}

#[test]
fn answers_that_are_no_welcome_are_errors() {
    let invalid = b"{\"welcome\":{\"host\":7}}\n";
    for line in [&b"\n"[..], b"nonsense\n", b"{}\n", b"{\"welcome\":{}}\n", invalid, b"\xff\xfe\n", b"{\"welcome\""] {
        let error = refused(|connection| {
            connection.write(UPGRADED);
            connection.write(line);
        });
        assert!(matches!(error, ClientError::Malformed(_) | ClientError::Io(_)), "{line:?}: {error}");
    }
    let error = refused(|connection| {
        connection.write(UPGRADED);
        connection.line();
        connection.say(&ToNode::Refused { group: None, error: "not you".to_owned() });
    });
    assert_eq!(error.to_string(), "not you");
    // A line without an end, which is read to its limit only.
    let error = refused(|connection| {
        connection.write(UPGRADED);
        while connection.write(&[b'x'; 1 << 16]) {}
    });
    assert!(matches!(error, ClientError::Malformed(_)), "{error}");
}

#[test]
fn silent_gatekeeper_is_given_up() {
    let error = refused(|connection| {
        connection.write(UPGRADED);
        while connection.line().is_some() {} // until the node closes the connection
    });
    assert!(matches!(error, ClientError::Io(_)), "{error}");
}

#[test]
fn lines_that_are_no_lines_break_the_connection_and_nothing_else() {
    let gatekeeper = FakeGatekeeper::start();
    let (mut connection, events, attachment) = attached(&gatekeeper);
    let sender = attachment.sender().clone();
    sender.join("g", Some(3)).unwrap();
    assert!(matches!(connection.line(), Some(FromNode::Join { .. })));
    let hostile: [&[u8]; 6] = [b"nonsense\n", b"\n", b"{\"view\":{\"group\":\"g\"}}\n", b"{\"left\":{", b"\xff\n", b""];
    for bytes in hostile {
        connection.write(b"{\"left\":{\"group\":\"x\"}}\n");
        connection.write(bytes);
        drop(connection);
        // The whole line before arrives, half a line does not.
        assert!(matches!(next(&events), Event::Line(ToNode::Left { group }) if group == "x"), "{bytes:?}");
        assert!(matches!(next(&events), Event::Away), "{bytes:?}");
        connection = gatekeeper.accept();
        connection.write(UPGRADED);
        // The node says again which groups it is in, and which session it has been in.
        let Some(FromNode::Hello { groups, session, .. }) = connection.line() else { panic!("no hello") };
        assert_eq!((groups, session.as_deref()), (vec![("g".to_owned(), Some(3))], Some("one")));
        connection.say(&ToNode::Welcome { host: "h".to_owned(), session: "one".to_owned() });
        assert!(matches!(next(&events), Event::Back));
    }
}

#[test]
fn endless_line_is_read_to_its_limit_only() {
    let gatekeeper = FakeGatekeeper::start();
    let (mut connection, events, _attachment) = attached(&gatekeeper);
    let (block, mut written) = ([b'x'; 1 << 16], 0);
    while connection.write(&block) {
        written += block.len();
        assert!(written <= MAX_ANSWER_LINE_BYTES + (16 << 20), "the node reads on");
    }
    assert!(written >= MAX_ANSWER_LINE_BYTES, "{written} bytes");
    assert!(matches!(next(&events), Event::Away));
}

#[test]
fn gatekeeper_of_another_session_ends_the_attachment() {
    let gatekeeper = FakeGatekeeper::start();
    let (connection, events, attachment) = attached(&gatekeeper);
    drop(connection);
    assert!(matches!(next(&events), Event::Away));
    let mut connection = gatekeeper.accept();
    connection.write(UPGRADED);
    connection.line();
    connection.say(&ToNode::Refused { group: None, error: ANOTHER_SESSION.to_owned() });
    assert!(matches!(next(&events), Event::Gone));
    assert!(!attachment.sender().leave("g").unwrap(), "there is no connection");
}

#[test]
fn attempts_that_fail_are_repeated() {
    let gatekeeper = FakeGatekeeper::start();
    let (connection, events, _attachment) = attached(&gatekeeper);
    drop(connection);
    assert!(matches!(next(&events), Event::Away));
    for answer in [&b""[..], b"nonsense\r\n\r\n", UPGRADED] {
        gatekeeper.accept().write(answer);
    }
    let mut connection = gatekeeper.welcome("one");
    assert!(matches!(next(&events), Event::Back));
    connection.write(b"{\"left\":{\"group\":\"x\"}}\n");
    assert!(matches!(next(&events), Event::Line(ToNode::Left { .. })));
}

#[test]
fn node_does_not_wait_for_a_gatekeeper_that_reads_nothing() {
    const COUNT: u64 = 5000;
    let gatekeeper = FakeGatekeeper::start();
    let (mut connection, _events, attachment) = attached(&gatekeeper);
    let sender = attachment.sender();
    let id = |number| CircuitId { group: "g".to_owned(), view: 1, number };
    let part = |number| CircuitPart { id: id(number), name: "c".repeat(256), rank: 0, size: 1 };
    // More than the connection holds. A write that waited would give up, and break the connection.
    (0..COUNT).for_each(|number| sender.circuit_opened(part(number)));
    (0..COUNT).filter(|number| number % 2 == 0).for_each(|number| sender.circuit_closed(&id(number)));
    // Once it reads, it gets what has not changed back meanwhile, although the node does nothing more.
    let mut open = std::collections::BTreeSet::new();
    while !(open.len() as u64 == COUNT / 2 && open.iter().all(|number| number % 2 == 1)) {
        match connection.line() {
            Some(FromNode::CircuitOpened(said)) => assert!(said == part(said.id.number) && open.insert(said.id.number)),
            Some(FromNode::CircuitClosed(id)) => assert!(open.remove(&id.number)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn open_circuits_are_said_again_on_a_new_connection() {
    let gatekeeper = FakeGatekeeper::start();
    let (mut connection, events, attachment) = attached(&gatekeeper);
    let id = |number| CircuitId { group: "g".to_owned(), view: 1, number };
    let part = |number| CircuitPart { id: id(number), name: "c".to_owned(), rank: 0, size: 1 };
    (0..3).for_each(|number| attachment.sender().circuit_opened(part(number)));
    (0..3).for_each(|number| assert_eq!(connection.line(), Some(FromNode::CircuitOpened(part(number)))));
    drop(connection);
    assert!(matches!(next(&events), Event::Away));
    attachment.sender().circuit_closed(&id(1));
    let mut connection = gatekeeper.accept();
    connection.write(UPGRADED);
    assert!(matches!(connection.line(), Some(FromNode::Hello { circuits: 2, .. })));
    connection.say(&ToNode::Welcome { host: "h".to_owned(), session: "one".to_owned() });
    [0, 2].into_iter().for_each(|number| assert_eq!(connection.line(), Some(FromNode::CircuitOpened(part(number)))));
}
