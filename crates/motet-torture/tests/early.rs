//! Open messages of a peer that does not go on (docs/messages.md, *Nodes*): posted receives get what it shows, and nothing else of them changes
//! before all of it is there.
#![forbid(unsafe_code)]

use motet::node::{Channel, Context, From, Memory, Node, Notice, OperationId, Serve, Status};
use motet_torture::LIMIT;
use motet_torture::by_hand::{DENSE, FIRST, MESSAGE, Peer, greeting, message};

const SERVICE: u64 = 1;
const TAG: u64 = 5;
/// A message of three parts, of which the first bytes are its headers.
const BODY: usize = 10_000;
const HEADERS: usize = 8;
const PART: usize = 4096;
/// In the ring, by a line's flags; a line that follows another.
const IN_RING: u64 = 1 << 24;
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
    /// With a channel on which tags count.
    fn new() -> Self {
        let node = Node::open("").unwrap();
        let context = node.context().unwrap();
        node.serve(SERVICE, Serve::Tagged(context)).unwrap();
        let (peer, channel) = Peer::open(&node, &greeting(), SERVICE);
        Self { node, context, channel, peer, written: 0 }
    }

    fn post(&self, from: From, room: usize) -> OperationId {
        self.node.post(from, TAG, 0, Memory::Owned(vec![0; room]), Notice::default()).unwrap()
    }

    /// The peer shows the first part, and says that so many others follow.
    fn begin(&mut self, more: u64) {
        let content = content();
        let packet = message(FIRST, HEADERS as u16, 0, TAG, &(content.len() as u32).to_le_bytes());
        self.peer.write(DENSE + self.written, &content[..PART]);
        self.peer.line(&packet, packet.len() as u64 | more << 13 | u64::from(MESSAGE) << 16 | IN_RING);
    }

    /// It shows the others.
    fn finish(&mut self, more: u64) {
        let content = content();
        self.peer.write(DENSE + self.written + PART, &content[PART..]);
        (0..more).for_each(|_| self.peer.line(&[], FOLLOWS));
        self.written += content.len();
    }

    /// The node looks, as often as it takes to have found what there is.
    fn look(&self) {
        for _ in 0..100 {
            self.node.progress().unwrap();
        }
    }

    fn is_waiting(&self, operation: OperationId) -> bool {
        self.node.test(operation).unwrap().is_none()
    }

    /// The operation has all of the message.
    fn has_it(&self, operation: OperationId) {
        let end = self.node.wait_for(operation, Some(motet::node::in_ns(LIMIT.as_nanos() as u64))).unwrap();
        assert_eq!((end.status, end.length, end.full, end.tag), (Status::Done, BODY as u64, BODY as u64, TAG));
        assert_eq!(
            (end.headers.as_slice(), end.memory.as_deref()),
            content().split_at_checked(HEADERS).map(|(a, b)| (a, Some(b))).unwrap()
        );
    }
}

#[test]
fn a_receive_that_has_part_of_its_message_is_not_cancelled_but_gets_the_rest() {
    let mut pair = Pair::new();
    let first = pair.post(From::Channel(pair.channel), BODY);
    pair.begin(2);
    pair.look();
    assert!(pair.is_waiting(first));
    pair.node.cancel(first).unwrap();
    pair.look();
    assert!(pair.is_waiting(first), "as it would have ended");
    let second = pair.post(From::Channel(pair.channel), BODY);
    pair.finish(2);
    pair.has_it(first);
    assert!(pair.is_waiting(second), "it waits for the next message");
    pair.begin(2);
    pair.finish(2);
    pair.has_it(second);
}

#[test]
fn a_receive_from_anywhere_gets_all_of_it_or_nothing() {
    let mut pair = Pair::new();
    let operation = pair.post(From::Any(pair.context), BODY);
    pair.begin(2);
    pair.look();
    pair.node.cancel(operation).unwrap();
    let end = pair.node.wait_for(operation, None).unwrap();
    assert_eq!((end.status, end.length), (Status::Cancelled, 0));
    assert!(end.memory.unwrap().iter().all(|&byte| byte == 0), "nothing has come");
    let again = pair.post(From::Any(pair.context), BODY);
    pair.finish(2);
    pair.has_it(again);
}

#[test]
fn who_divides_a_message_otherwise_is_read_when_all_of_it_is_there() {
    for more in [1, 3, 7] {
        let mut pair = Pair::new();
        let operation = pair.post(From::Channel(pair.channel), BODY);
        pair.begin(more);
        pair.look();
        assert!(pair.is_waiting(operation));
        pair.finish(more);
        pair.has_it(operation);
    }
}

#[test]
fn a_receive_with_too_little_room_is_truncated_when_all_of_it_is_there() {
    let mut pair = Pair::new();
    let operation = pair.post(From::Channel(pair.channel), BODY - 1);
    pair.begin(2);
    pair.look();
    assert!(pair.is_waiting(operation));
    pair.finish(2);
    pair.look();
    let end = pair.node.test(operation).unwrap().unwrap();
    assert_eq!((end.status, end.length, end.full), (Status::Truncated, BODY as u64 - 1, BODY as u64));
    assert_eq!(end.memory.unwrap(), content()[HEADERS..][..BODY - 1]);
}

#[test]
fn a_peer_that_goes_in_the_middle_ends_the_receive() {
    let mut pair = Pair::new();
    let operation = pair.post(From::Channel(pair.channel), BODY);
    pair.begin(2);
    pair.look();
    let Pair { node, peer, .. } = pair;
    drop(peer);
    let end = node.wait_for(operation, Some(motet::node::in_ns(LIMIT.as_nanos() as u64))).unwrap();
    assert_eq!((end.status, end.length), (Status::Broken, 0));
}

#[test]
fn a_line_that_does_not_follow_breaks_the_link() {
    let mut pair = Pair::new();
    let operation = pair.post(From::Channel(pair.channel), BODY);
    pair.begin(2);
    pair.peer.line(&[], FOLLOWS);
    pair.peer.line(&[0; 16], 16 | u64::from(MESSAGE) << 16);
    pair.look();
    assert_eq!(pair.node.test(operation).unwrap().unwrap().status, Status::Broken);
    assert!(pair.node.link_info(pair.channel.link).unwrap().gone.is_some());
}
