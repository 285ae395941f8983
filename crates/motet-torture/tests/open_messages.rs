//! Open messages of a peer that stalls (docs/messages.md, *Nodes*): posted receives get the parts that are there, and nothing else of them changes
//! before the message is complete.
#![forbid(unsafe_code)]

use motet::node::{
    Buffer, Channel, Completion, CompletionOptions, Context, Error, Node, OperationId, OperationMemory, RecvFrom,
    Serve, Status, UserMemory,
};
use motet_torture::HANG_LIMIT;
use motet_torture::raw_peer::{FIRST_CHANNEL, HEAD_BYTES, MESSAGE, Peer, handshake, message};
use std::time::Duration;

const SERVICE: u64 = 1;
const TAG: u64 = 5;
/// Bytes of the body. A message has three parts; the headers are its first bytes.
const BODY: usize = 12_400;
const HEADERS: usize = 8;
const PART: usize = 4160;
/// Flags of a cell: the body is in the payload ring; the cell continues a message.
const BODY_IN_RING: u64 = 1 << 24;
const FOLLOWS: u64 = 0x80 << 24;

struct Pair {
    node: Node,
    context: Context,
    channel: Channel,
    peer: Peer,
    /// Bytes that the peer has written into its ring.
    written: usize,
}

fn content() -> Vec<u8> {
    (0..HEADERS + BODY).map(|n| (n % 251) as u8 | 1).collect()
}

impl Pair {
    /// A node, a raw peer, and a channel with tag matching.
    fn new() -> Self {
        let node = Node::open("").unwrap();
        let context = node.context().unwrap();
        node.serve(SERVICE, Serve::Tagged(context)).unwrap();
        let (peer, channel) = Peer::open(&node, &handshake(), SERVICE);
        Self { node, context, channel, peer, written: 0 }
    }

    fn post(&self, from: RecvFrom, room: usize) -> OperationId {
        self.node.post(from, TAG, 0, OperationMemory::Owned(vec![0; room]), CompletionOptions::default()).unwrap()
    }

    /// The peer shows the first part and announces `more` further ones.
    fn begin(&mut self, more: u64) {
        begin(&mut self.peer, self.written, more);
    }

    /// The peer shows the other parts.
    fn finish(&mut self, more: u64) {
        finish(&mut self.peer, &mut self.written, more);
    }

    /// Makes progress until the node has seen everything.
    fn poll(&self) {
        for _ in 0..100 {
            self.node.progress().unwrap();
        }
    }

    fn is_waiting(&self, operation: OperationId) -> bool {
        self.node.test(operation).unwrap().is_none()
    }

    /// The operation has received the whole message.
    fn check_received(&self, operation: OperationId) {
        check_content(&wait_for(&self.node, operation));
    }
}

fn begin(peer: &mut Peer, written: usize, more: u64) {
    let content = content();
    let packet = message(FIRST_CHANNEL, HEADERS as u16, 0, TAG, &(content.len() as u32).to_le_bytes());
    peer.write(HEAD_BYTES + written, &content[..PART]);
    peer.put_cell(&packet, packet.len() as u64 | more << 13 | u64::from(MESSAGE) << 16 | BODY_IN_RING);
}

fn finish(peer: &mut Peer, written: &mut usize, more: u64) {
    let content = content();
    peer.write(HEAD_BYTES + *written + PART, &content[PART..]);
    (0..more).for_each(|_| peer.put_cell(&[], FOLLOWS));
    *written += content.len();
    peer.read(); // credit from the node
}

fn wait_for(node: &Node, operation: OperationId) -> Completion {
    node.wait_for(operation, Some(motet::node::deadline_in(HANG_LIMIT.as_nanos() as u64))).unwrap()
}

fn check_content(end: &Completion) {
    assert_eq!((end.status, end.length, end.message_length, end.tag), (Status::Done, BODY as u64, BODY as u64, TAG));
    let content = content();
    assert_eq!((&end.headers[..], end.memory.as_deref()), (&content[..HEADERS], Some(&content[HEADERS..])));
}

#[test]
fn receive_with_part_of_its_message_cannot_be_cancelled() {
    let mut pair = Pair::new();
    let first = pair.post(RecvFrom::Channel(pair.channel), BODY);
    pair.begin(2);
    pair.poll();
    assert!(pair.is_waiting(first));
    pair.node.cancel(first).unwrap();
    pair.poll();
    assert!(pair.is_waiting(first), "a receive with part of its message cannot be cancelled");
    let second = pair.post(RecvFrom::Channel(pair.channel), BODY);
    pair.finish(2);
    pair.check_received(first);
    assert!(pair.is_waiting(second), "it waits for the next message");
    pair.begin(2);
    pair.finish(2);
    pair.check_received(second);
}

#[test]
fn in_place_receive_gets_a_whole_open_message() {
    let mut pair = Pair::new();
    let from = RecvFrom::Channel(pair.channel);
    for _ in 0..80 {
        let operation = pair.node.post_in_place(from, TAG, 0, BODY as u64, CompletionOptions::default()).unwrap();
        // A waiting thread polls while the peer continues.
        let Pair { node, peer, written, .. } = &mut pair;
        let node = &*node;
        let end = std::thread::scope(|scope| {
            let waits = scope.spawn(move || wait_for(node, operation));
            begin(peer, *written, 2);
            finish(peer, written, 2);
            waits.join().unwrap()
        });
        check_content(&end);
    }
}

#[test]
fn message_of_a_timed_out_receive_goes_to_the_next() {
    let mut pair = Pair::new();
    pair.begin(2);
    let (limit, mut buffer) = (Some(Duration::from_millis(20)), vec![0; BODY]);
    let from = RecvFrom::Channel(pair.channel);
    let got = pair.node.receive_with(from, TAG, 0, &mut Vec::new(), &mut buffer, limit);
    assert!(matches!(got, Err(Error::TimedOut)), "{got:?}");
    let next = pair.post(from, BODY);
    pair.finish(2);
    pair.check_received(next);
}

#[test]
fn receive_from_any_gets_a_whole_message_or_none() {
    let mut pair = Pair::new();
    let operation = pair.post(RecvFrom::Any(pair.context), BODY);
    pair.begin(2);
    pair.poll();
    pair.node.cancel(operation).unwrap();
    let end = pair.node.wait_for(operation, None).unwrap();
    assert_eq!((end.status, end.length), (Status::Cancelled, 0));
    assert!(end.memory.unwrap().iter().all(|&byte| byte == 0), "no bytes were written");
    let again = pair.post(RecvFrom::Any(pair.context), BODY);
    pair.finish(2);
    pair.check_received(again);
}

#[test]
fn message_in_other_parts_is_received_once_complete() {
    for more in [1, 3, 7] {
        let mut pair = Pair::new();
        let operation = pair.post(RecvFrom::Channel(pair.channel), BODY);
        pair.begin(more);
        pair.poll();
        assert!(pair.is_waiting(operation));
        pair.node.cancel(operation).unwrap();
        assert_eq!(pair.node.wait_for(operation, None).unwrap().status, Status::Cancelled, "it got no message");
        let next = pair.post(RecvFrom::Channel(pair.channel), BODY);
        pair.finish(more);
        pair.check_received(next);
    }
}

#[test]
fn short_receive_is_truncated_once_message_is_complete() {
    let mut pair = Pair::new();
    let operation = pair.post(RecvFrom::Channel(pair.channel), BODY - 1);
    pair.begin(2);
    pair.poll();
    assert!(pair.is_waiting(operation));
    pair.finish(2);
    pair.poll();
    let end = pair.node.test(operation).unwrap().unwrap();
    assert_eq!((end.status, end.length, end.message_length), (Status::Truncated, BODY as u64 - 1, BODY as u64));
    assert_eq!(end.memory.unwrap(), content()[HEADERS..][..BODY - 1]);
}

#[test]
fn peer_lost_in_mid_message_ends_the_receive() {
    let mut pair = Pair::new();
    let operation = pair.post(RecvFrom::Channel(pair.channel), BODY);
    pair.begin(2);
    pair.poll();
    let Pair { node, peer, .. } = pair;
    drop(peer);
    let end = node.wait_for(operation, Some(motet::node::deadline_in(HANG_LIMIT.as_nanos() as u64))).unwrap();
    assert_eq!((end.status, end.length), (Status::LinkDown, 0));
}

#[test]
fn missing_continuation_cell_breaks_the_link() {
    let mut pair = Pair::new();
    let operation = pair.post(RecvFrom::Channel(pair.channel), BODY);
    pair.begin(2);
    pair.peer.put_cell(&[], FOLLOWS);
    pair.peer.put_cell(&[0; 16], 16 | u64::from(MESSAGE) << 16);
    pair.poll();
    assert_eq!(pair.node.test(operation).unwrap().unwrap().status, Status::LinkDown);
    assert!(pair.node.link_info(pair.channel.link).unwrap().gone.is_some());
}

/// A peer may announce an open message without bytes, which has no parts.
#[test]
fn empty_open_message_waits_until_complete() {
    let mut pair = Pair::new();
    let cq = pair.node.add_cq().unwrap();
    let buffer = Buffer { span: UserMemory::EMPTY, user_data: 7 };
    pair.node.post_unnamed((RecvFrom::Channel(pair.channel), TAG, 0), buffer, cq).unwrap();
    let packet = message(FIRST_CHANNEL, 0, 0, TAG, &0u32.to_le_bytes());
    pair.peer.put_cell(&packet, packet.len() as u64 | 2 << 13 | u64::from(MESSAGE) << 16 | BODY_IN_RING);
    for _ in 0..100 {
        assert_eq!(pair.node.poll_cq(cq, 4, |end| panic!("{end:?}")).unwrap(), (0, false));
    }
    (0..2).for_each(|_| pair.peer.put_cell(&[], FOLLOWS));
    let mut ends = Vec::new();
    while ends.is_empty() {
        pair.node.poll_cq(cq, 4, |end| ends.push((end.user_data, end.status, end.length, end.tag))).unwrap();
    }
    assert_eq!(ends, [(7, Status::Done, 0, TAG)]);
}
