//! Circuits, as nodes tell a gatekeeper of them: over real sockets, with nodes that are killed, and with lines that no node says.
#![forbid(unsafe_code)]

mod support;

use motet_session::api::{FromNode, ToNode};
use motet_session::circuits::{Circuit, CircuitId, CircuitPart, MAX_CIRCUITS};
use motet_session::events::{SessionEvent, What};
use support::{LIMIT, Node, Raw, Running, hello, node_id, until};

fn part(name: &str, number: u64, rank: u32, size: u32) -> CircuitPart {
    let id = CircuitId { group: "fluid".to_owned(), view: 2, number };
    CircuitPart { id, name: name.to_owned(), rank, size }
}

/// A node in the group `fluid`.
fn member(session: &Running, number: u32) -> Node {
    let node = Node::attach(session, number);
    node.attachment.sender().join("fluid", Some(number)).unwrap();
    until("it has joined", || node.last("fluid").is_some());
    node
}

fn circuits(session: &Running) -> Vec<Circuit> {
    session.client().get("/v1/circuits").unwrap()
}

/// The circuits by name, each with the ranks of the members at which it is open.
fn ranks(session: &Running) -> Vec<(String, Vec<u32>)> {
    let ranks = |circuit: Circuit| (circuit.name, circuit.members.iter().map(|member| member.rank).collect());
    circuits(session).into_iter().map(ranks).collect()
}

fn known(expected: &[(&str, &[u32])]) -> Vec<(String, Vec<u32>)> {
    expected.iter().map(|(name, ranks)| ((*name).to_owned(), ranks.to_vec())).collect()
}

/// All events that are kept.
fn events(session: &Running) -> Vec<SessionEvent> {
    let mut raw = Raw::connect(&session.paths);
    raw.write(b"GET /v1/events?follow=false HTTP/1.0\r\n\r\n");
    raw.rest().lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect()
}

/// Circuit events in their order: `+name` opened, `-name` closed.
fn happened(session: &Running) -> Vec<String> {
    let word = |event: SessionEvent| match event.what {
        What::CircuitOpened(place) => Some(format!("+{}", place.circuit)),
        What::CircuitClosed(place) => Some(format!("-{}", place.circuit)),
        _ => None,
    };
    events(session).into_iter().filter_map(word).collect()
}

#[test]
fn circuits_are_known_while_a_member_has_them() {
    let session = Running::start();
    let nodes = [member(&session, 0), member(&session, 1)];
    for (rank, node) in nodes.iter().enumerate() {
        node.attachment.sender().circuit_opened(part("halo", 1, rank as u32, 2));
    }
    nodes[1].attachment.sender().circuit_opened(part("mesh", 2, 1, 2));
    until("both circuits", || ranks(&session) == known(&[("halo", &[0, 1]), ("mesh", &[1])]));
    let halo = &circuits(&session)[0];
    assert_eq!((&halo.group[..], halo.view, halo.number, halo.size), ("fluid", 2, 1, 2));
    assert_eq!((&halo.members[1].node, &halo.members[1].host[..]), (&node_id(1), "here"));
    assert_eq!(halo.members[0].process.pid, std::process::id());
    // The end at one member, then the end of a node's membership.
    nodes[0].attachment.sender().circuit_closed(&part("halo", 1, 0, 2).id);
    until("one end", || ranks(&session) == known(&[("halo", &[1]), ("mesh", &[1])]));
    nodes[1].attachment.sender().leave("fluid").unwrap();
    until("the others", || circuits(&session).is_empty());
    until("the events", || happened(&session) == ["+halo", "+mesh", "-halo", "-mesh"]);
    assert!(nodes.iter().all(|node| !node.lines().iter().any(|line| matches!(line, ToNode::Refused { .. }))));
}

#[test]
fn circuits_of_a_killed_process_are_forgotten() {
    let session = Running::start();
    let node = member(&session, 1);
    node.attachment.sender().circuit_opened(part("halo", 1, 1, 2));
    let mut child = support::child(&session, "member");
    until("both have it", || ranks(&session) == known(&[("halo", &[0, 1])]));
    child.kill().unwrap();
    until("one is left", || ranks(&session) == known(&[("halo", &[1])]));
    child.wait().unwrap();
    assert_eq!(happened(&session), ["+halo"], "it is open still");
}

#[test]
fn gatekeeper_that_is_restarted_is_told_again() {
    let mut session = Running::start();
    let node = member(&session, 0);
    (0..600).for_each(|number| node.attachment.sender().circuit_opened(part(&format!("c{number}"), number, 0, 1)));
    until("all are known", || circuits(&session).len() == 600);
    session.kill();
    // What changes while it is away counts, too.
    node.attachment.sender().circuit_closed(&part("c0", 0, 0, 1).id);
    node.attachment.sender().circuit_opened(part("new", 900, 0, 1));
    session.start_again();
    until("all are known again", || circuits(&session).len() == 600);
    assert!(circuits(&session).iter().all(|circuit| circuit.name != "c0"));
}

#[test]
fn broken_connection_closes_what_is_not_said_again() {
    let session = Running::start();
    let say = |raw: &mut Raw, line: &FromNode| raw.write(&[&serde_json::to_vec(line).unwrap()[..], b"\n"].concat());
    let attach = |circuits: usize| {
        let mut raw = Raw::upgraded(&session.paths);
        let (node, address, groups) = (node_id(7), "a".to_owned(), vec![("fluid".to_owned(), None)]);
        say(&mut raw, &FromNode::Hello { node, address, groups, session: None, circuits });
        raw
    };
    let mut first = attach(0);
    (1..=3).for_each(|number| say(&mut first, &FromNode::CircuitOpened(part(&format!("c{number}"), number, 0, 1))));
    until("three", || circuits(&session).len() == 3);
    let mut second = attach(2);
    drop(first);
    say(&mut second, &FromNode::CircuitOpened(part("c2", 2, 0, 1)));
    say(&mut second, &FromNode::CircuitOpened(part("c4", 4, 0, 1)));
    until("two", || ranks(&session) == known(&[("c2", &[0]), ("c4", &[0])]));
    until("the events", || happened(&session) == ["+c1", "+c2", "+c3", "+c4", "-c1", "-c3"]);
    drop(second);
    let _third = attach(0);
    until("none", || circuits(&session).is_empty());
}

#[test]
fn lines_that_no_node_says_are_refused() {
    let session = Running::start();
    let mut raw = Raw::upgraded(&session.paths);
    raw.write(&hello(1));
    raw.write(b"{\"join\":{\"group\":\"fluid\",\"rank\":null}}\n");
    let line = |group: &str, view: i64, name: &str, rank: u64, size: u64| {
        format!(
            "{{\"circuit_opened\":{{\"group\":\"{group}\",\"view\":{view},\"number\":1,\"name\":\"{name}\",\"rank\":{rank},\"size\":{size}}}}}\n"
        )
    };
    let wrong = [
        line("other", 1, "c", 0, 1),
        line(&"x".repeat(100_000), 1, "c", 0, 1),
        line("fluid", 0, "c", 0, 1),
        line("fluid", 1, "", 0, 1),
        line("fluid", 1, &"x".repeat(257), 0, 1),
        line("fluid", 1, "c", 1, 1),
        line("fluid", 1, "c", 0, 0),
        line("fluid", 1, "c", 0, 1025),
    ];
    wrong.iter().for_each(|line| raw.write(line.as_bytes()));
    raw.write(b"{\"circuit_closed\":{\"group\":\"fluid\",\"view\":1,\"number\":9}}\n");
    raw.write(line("fluid", 1, "right", 0, 1).as_bytes());
    until("the right one", || ranks(&session) == known(&[("right", &[0])]));
    // What is no circuit at all is no line.
    raw.write(line("fluid", -1, "c", 0, 1).as_bytes());
    let answer = raw.rest();
    assert_eq!(answer.matches("{\"refused\":").count(), wrong.len() + 1, "{answer}");
    assert!(answer.len() < 4000, "what was said is not repeated");
    until("it is gone", || circuits(&session).is_empty());
}

#[test]
fn node_cannot_make_the_gatekeeper_grow() {
    let session = Running::start();
    let mut raw = Raw::upgraded(&session.paths);
    let mut reader = raw.0.try_clone().unwrap();
    std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    let boast = format!(
        "{{\"hello\":{{\"node\":\"{}\",\"address\":\"a\",\"groups\":[[\"fluid\",null]],\"circuits\":{}}}}}\n",
        node_id(1),
        u64::MAX
    );
    raw.write(boast.as_bytes());
    for number in 0..10 * MAX_CIRCUITS as u64 {
        let line = FromNode::CircuitOpened(part(&"x".repeat(256), number, 0, 1));
        raw.write(&[&serde_json::to_vec(&line).unwrap()[..], b"\n"].concat());
    }
    raw.write(b"{\"circuit_closed\":{\"group\":\"fluid\",\"view\":2,\"number\":0}}\n");
    until("all is read", || circuits(&session).first().is_some_and(|circuit| circuit.number == 1));
    assert_eq!(circuits(&session).len(), MAX_CIRCUITS - 1);
}

#[test]
fn circuits_of_another_host_are_asked_for_there() {
    let here = Running::start();
    let there = Running::join(&here, "b");
    let nodes = [member(&here, 0), member(&there, 1)];
    for (rank, node) in nodes.iter().enumerate() {
        node.attachment.sender().circuit_opened(part("halo", 1, rank as u32, 2));
    }
    let of = |session: &Running, host: &str| {
        session.client().get::<Vec<Circuit>>(&format!("/v1/hosts/{host}/circuits")).unwrap()
    };
    for session in [&here, &there] {
        until("both hosts", || of(session, "here").len() + of(session, "b").len() == 2);
        let whole = Circuit::of_hosts(["here", "b"].map(|host| of(session, host)));
        assert_eq!(whole.len(), 1);
        let hosts: Vec<_> = whole[0].members.iter().map(|member| &member.host[..]).collect();
        assert_eq!(hosts, ["here", "b"]);
    }
}

#[test]
fn document_describes_circuits() {
    let session = Running::start();
    let document: serde_json::Value = session.client().get("/v1/openapi.json").unwrap();
    let answer = &document["paths"]["/v1/circuits"]["get"]["responses"]["200"];
    assert!(answer.to_string().contains("#/components/schemas/Circuit"), "{answer}");
    for name in ["Circuit", "CircuitMember", "CircuitPlace"] {
        assert!(document["components"]["schemas"][name].is_object(), "{name}");
    }
}

/// A process of the session, started by the tests above.
#[test]
#[ignore = "a role of other tests"]
fn child() {
    if std::env::var("MOTET_TEST_ROLE").is_err() {
        return;
    }
    let node = Node::attach_to(&support::paths_from_env(), 99);
    node.attachment.sender().join("fluid", None).unwrap();
    until("it has joined", || node.last("fluid").is_some());
    node.attachment.sender().circuit_opened(part("halo", 1, 0, 2));
    std::thread::sleep(LIMIT);
}
