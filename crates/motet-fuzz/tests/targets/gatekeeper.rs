//! What a gatekeeper reads of other gatekeepers, and what a gatekeeper and a node read of each other.

use motet_session::api::{FromNode, Member, ToNode, View, ViewChange};
use motet_session::circuits::{CircuitId, CircuitPart};
use motet_session::link_frame::{HEAD_BYTES, Head, MAX_BODY_BYTES, MAX_MESSAGE_BYTES, Message};
use motet_session::process::Process;

/// The frames of a link between two gatekeepers, one after the other.
pub fn link_frame(input: &[u8]) {
    let mut rest = input;
    while let Some((head, after)) = rest.split_first_chunk::<HEAD_BYTES>() {
        let Ok(head) = Head::parse(*head) else { return };
        assert!(
            head.message_bytes() <= MAX_MESSAGE_BYTES && head.body_bytes() <= MAX_BODY_BYTES,
            "no more is allocated"
        );
        let Some((message, after)) = after.split_at_checked(head.message_bytes()) else { return };
        let Ok(message) = Message::parse(message) else { return };
        let Some((body, after)) = after.split_at_checked(head.body_bytes()) else { return };
        // JSON has more forms of one message; the one that is written may be too long.
        if let Ok(bytes) = message.frame(body) {
            let (head, written) = bytes.split_first_chunk().expect("a whole frame");
            let head = Head::parse(*head).expect("its own lengths");
            let (again, same) = written.split_at(head.message_bytes());
            assert_eq!(Message::parse(again), Ok(message), "what was understood comes back as it was");
            assert_eq!(same, body, "and so does the body");
        }
        rest = after;
    }
}

/// Well-formed frames.
pub fn link_frame_seeds() -> Vec<Vec<u8>> {
    let text = |text: &str| text.to_owned();
    let messages = [
        (Message::Request { id: 7, method: text("POST"), path: text("/v1/store?x=1") }, &b"{\"get\":1}"[..]),
        (Message::Answer { id: 7, status: 200, content_type: Some(text("application/json")) }, b""),
        (Message::Part { id: 7 }, b"[1,2]"),
        (Message::End { id: u64::MAX, complete: true }, b""),
        (Message::Cancel { id: 1 }, b""),
        (Message::Deliver { host: text("b"), group: text("fluid"), from: text("f"), to: text("t") }, b"[]"),
        (Message::Alive, b""),
    ];
    let frames = messages.map(|(message, body)| message.frame(body).expect("a short frame"));
    let all = frames.concat();
    frames.into_iter().chain([all]).collect()
}

/// The lines between a node and its gatekeeper, in both directions. A change is applied to the view before it.
pub fn node_line(input: &[u8]) {
    match serde_json::from_slice::<FromNode>(input) {
        // Numbers with a fraction may not come back as they were.
        Ok(FromNode::Send { .. }) | Err(_) => {}
        Ok(line) => {
            let text = serde_json::to_vec(&line).expect("a line is text");
            assert_eq!(serde_json::from_slice::<FromNode>(&text).ok(), Some(line), "what was understood comes back");
        }
    }
    if let Ok(ToNode::Change(change)) = serde_json::from_slice::<ToNode>(input) {
        let (group, number) = (change.group.clone(), change.number.wrapping_sub(1));
        let mut view = View { group, number, members: vec![member("a"), member("b")] };
        let follows = view.apply(&change);
        assert_eq!(follows, change.number != 0, "it follows the view before");
        assert!(
            !follows
                || change.left.iter().all(|left| {
                    view.rank_of(left).is_none() || change.joined.iter().any(|joined| joined.node == *left)
                })
        );
    }
}

fn member(node: &str) -> Member {
    let process = Process { pid: 1, started: 1 };
    Member { node: node.to_owned(), host: "h".to_owned(), process, address: "x".to_owned(), since: 1, rank: None }
}

/// Well-formed lines.
pub fn node_line_seeds() -> Vec<Vec<u8>> {
    let group = || "fluid".to_owned();
    let id = CircuitId { group: group(), view: 3, number: 1 };
    let from = [
        FromNode::Hello {
            node: "0".repeat(32),
            address: "a".to_owned(),
            groups: vec![(group(), Some(1))],
            session: Some("s".to_owned()),
            circuits: 1,
        },
        FromNode::Join { group: group(), rank: Some(2) },
        FromNode::Leave { group: group() },
        FromNode::CircuitOpened(CircuitPart { id: id.clone(), name: "halo".to_owned(), rank: 1, size: 2 }),
        FromNode::CircuitClosed(id),
        FromNode::Modules { is_default: false, modules: Vec::new() },
        FromNode::Bye,
    ];
    let change = ViewChange { group: group(), number: 4, joined: vec![member("c")], left: vec!["a".to_owned()] };
    let change = serde_json::to_vec(&ToNode::Change(change));
    let lines = from.iter().map(serde_json::to_vec).chain([change]);
    lines.map(|line| line.expect("a line is text")).collect()
}
