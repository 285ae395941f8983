//! Groups of a node whose gatekeeper says what no gatekeeper says.
#![forbid(unsafe_code)]

#[path = "../../motet-session/tests/fake_gatekeeper/mod.rs"]
mod fake_gatekeeper;

use fake_gatekeeper::{Connection, FakeGatekeeper, LIMIT};
use motet::node::Node;
use motet_group::{Error, Group, Membership};
use motet_session::api::{FromNode, Member, ToNode, View, ViewChange};
use motet_session::process::Process;
use std::sync::Arc;

/// A node in the group `g`, and what it is called.
struct Attached {
    /// Dropped first: a connection that ends is made again.
    _membership: Membership,
    id: String,
    group: Group,
    connection: Connection,
    _gatekeeper: FakeGatekeeper,
}

fn member(node: &str, since: u64) -> Member {
    let process = Process { pid: 1, started: 1 };
    Member { node: node.to_owned(), host: "h".to_owned(), process, address: "nowhere".to_owned(), since, rank: None }
}

fn view(number: u64, members: &[&str]) -> ToNode {
    let members = members.iter().map(|node| member(node, 1)).collect();
    ToNode::View(View { group: "g".to_owned(), number, members })
}

impl Attached {
    /// Joins; the first view has this number, and the node alone in it.
    fn new(number: u64) -> Self {
        let gatekeeper = FakeGatekeeper::start();
        let node = Arc::new(Node::open("").unwrap());
        let id: String = node.id().unwrap().0.iter().map(|byte| format!("{byte:02x}")).collect();
        let (membership, group, connection) = std::thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let mut connection = gatekeeper.welcome("one");
                assert!(matches!(connection.line(), Some(FromNode::Join { .. })));
                connection.say(&view(number, &[&id]));
                connection
            });
            let membership = Membership::attach_to(&node, &gatekeeper.paths).unwrap();
            let group = membership.join("g", None).unwrap();
            (membership, group, serving.join().unwrap())
        });
        Self { _membership: membership, id, group, connection, _gatekeeper: gatekeeper }
    }

    /// The numbers of all views until the one with the number `last`.
    fn views(&self, last: u64) -> Vec<u64> {
        let mut numbers = vec![0];
        while *numbers.last().unwrap() < last {
            numbers.push(self.group.next_view(*numbers.last().unwrap(), Some(LIMIT)).unwrap().number);
        }
        numbers.split_off(1)
    }
}

#[test]
fn views_out_of_order_are_ignored() {
    let mut joined = Attached::new(3);
    let id = joined.id.clone();
    let change = |number, left: &[&str]| {
        let (group, left) = ("g".to_owned(), left.iter().map(|node| (*node).to_owned()).collect());
        ToNode::Change(ViewChange { group, number, joined: Vec::new(), left })
    };
    let lines = [
        view(2, &[&id]),                        // older
        view(3, &[&id, &id]),                   // the same number again, with other members
        change(3, &[&id]),                      // older
        change(5, &[&id]),                      // a change after one that is missing
        change(u64::MAX, &[&id]),               //
        view(9, &["nonsense", &id]),            // a member without an identity
        ToNode::Left { group: "other".into() }, // never left
        ToNode::Refused { group: Some("other".into()), error: "x".into() },
        change(4, &[]),
    ];
    for line in &lines {
        assert!(joined.connection.say(line), "{line:?}");
    }
    assert_eq!(joined.views(4), [3, 4]);
    assert_eq!(joined.group.view().unwrap().members.len(), 1);
    // A jump is allowed: views were missed while the connection was broken.
    joined.connection.say(&view(u64::MAX, &[&id]));
    assert_eq!(joined.views(u64::MAX), [3, 4, u64::MAX]);
}

#[test]
fn view_without_the_node_ends_its_group() {
    let mut joined = Attached::new(1);
    joined.connection.say(&view(2, &[&format!("{:032x}", 1)]));
    let error = joined.group.wait_for(|_| false, Some(LIMIT)).unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
}

#[test]
fn messages_of_no_member_are_ignored() {
    let mut joined = Attached::new(1);
    let id = joined.id.clone();
    let other = format!("{:032x}", 1);
    let message = |from: &str, body| ToNode::Message { group: "g".into(), from: from.into(), body };
    let token = serde_json::json!({ "Token": { "granted": {}, "queue": [], "next_number": 9 } });
    let bodies = [
        serde_json::json!(null),
        serde_json::json!({ "from": "x", "view": 1, "message": "Ready" }),
        serde_json::json!({ "from": format!("{other}.1"), "view": 1, "message": token }),
        serde_json::json!({ "from": format!("{id}.1"), "view": 1, "message": token }),
        serde_json::json!({ "from": format!("{other}.1"), "view": 1, "message": { "Open": { "number": 7, "name": "c", "view": 1 } } }),
    ];
    for body in bodies {
        for from in [&other, &id, "nonsense"] {
            joined.connection.say(&message(from, body.clone()));
        }
    }
    joined.connection.say(&view(2, &[&id]));
    joined.views(2);
    // The node's own circuit is the first one.
    let circuit = joined.group.open("c", Some(LIMIT)).unwrap();
    assert_eq!((circuit.number(), circuit.size()), (1, 1));
    circuit.barrier().unwrap();
}
