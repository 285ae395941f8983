//! Blocking calls with short messages, mixed with all other calls on the node: no message is lost, duplicated or reordered.

use motet::node::{Channel, CompletionOptions, Error, Mode, Node, OperationMemory, Outgoing, RecvFrom, Serve, Status};
use std::time::Duration;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));
const SERVICE: u64 = 43;
/// Messages at the start of a test.
const FIRST_MESSAGES: u64 = 12;

struct Pair {
    near: Node,
    far: Node,
    here: Channel,
    there: Channel,
}

impl Pair {
    fn new(serve: impl Fn(&Node) -> Serve) -> Self {
        let (near, far) = (Node::open("").unwrap(), Node::open("").unwrap());
        far.serve(SERVICE, serve(&far)).unwrap();
        let (here, there) = std::thread::scope(|scope| {
            let there = scope.spawn(|| far.accept(SERVICE, TIMEOUT).unwrap());
            let link = near.connect(&far.address().unwrap(), TIMEOUT).unwrap();
            let here = near.open_channel(link, SERVICE, serve(&near), TIMEOUT).unwrap();
            (here, there.join().unwrap())
        });
        Self { near, far, here, there }
    }

    /// Opens another channel between the two nodes.
    fn another(&self) -> (Channel, Channel) {
        std::thread::scope(|scope| {
            let there = scope.spawn(|| self.far.accept(SERVICE, TIMEOUT).unwrap());
            let here = self.near.open_channel(self.here.link, SERVICE, Serve::Queue, TIMEOUT).unwrap();
            (here, there.join().unwrap())
        })
    }

    /// Sends short messages in both directions, in turn.
    fn begin(&self) {
        (0..FIRST_MESSAGES).for_each(|tag| self.exchange(tag));
    }

    fn exchange(&self, tag: u64) {
        let mut bytes = [0; 8];
        self.near.send(self.here, tag, &tag.to_le_bytes(), TIMEOUT).unwrap();
        let received = self.far.receive(self.there, &mut bytes, TIMEOUT).unwrap();
        assert_eq!((received.tag, received.channel, bytes), (tag, self.there, tag.to_le_bytes()));
        self.far.send(self.there, !tag, &bytes, TIMEOUT).unwrap();
        let received = self.near.receive(self.here, &mut bytes, TIMEOUT).unwrap();
        assert_eq!((received.tag, received.channel, bytes), (!tag, self.here, tag.to_le_bytes()));
    }
}

fn queue(_: &Node) -> Serve {
    Serve::Queue
}

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + seed * 13 + 1) as u8).collect()
}

#[test]
fn two_cell_messages_without_end_leave_the_lock_to_others() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let pair = Pair::new(queue);
    pair.begin();
    let met = AtomicBool::new(false);
    let send = || pair.near.send(pair.here, 1, &[1; 80], TIMEOUT).unwrap();
    send(); // there is always one
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let other = Node::open("").unwrap();
            met.store(other.connect(&pair.far.address().unwrap(), TIMEOUT).is_ok(), Ordering::Relaxed);
        });
        for count in 0.. {
            send();
            assert_eq!(pair.far.receive(pair.there, &mut [0; 80], TIMEOUT).unwrap().length, 80);
            if met.load(Ordering::Relaxed) {
                break;
            }
            assert!(count < 20_000_000, "the other thread never gets the lock");
        }
    });
}

#[test]
fn headers_and_bodies_of_every_length_arrive_whole() {
    let pair = Pair::new(queue);
    pair.begin();
    let lengths = [0, 1, 3, 4, 7, 8, 9, 15, 16, 20, 24, 31, 32, 39, 40, 41, 57, 96, 97, 200, 256];
    let (mut pushed, mut buffer) = (Vec::new(), vec![0; 20_000]);
    for headers in lengths {
        for body in lengths.into_iter().chain([2000, 5000, 16_384]) {
            let (tag, headers, body) = ((headers * 1000 + body) as u64, pattern(headers, body), pattern(body, headers));
            let message = Outgoing { channel: pair.here, tag, headers: &headers, mode: Mode::Automatic };
            pair.near.send_with(&message, &[&body], TIMEOUT).unwrap();
            let from = RecvFrom::Channel(pair.there);
            let received = pair.far.receive_with(from, 0, u64::MAX, &mut pushed, &mut buffer, TIMEOUT).unwrap();
            assert_eq!((received.tag, &pushed, &buffer[..received.length]), (tag, &headers, &body[..]));
        }
    }
    pair.exchange(1);
}

#[test]
fn message_longer_than_buffer_is_truncated_within_it() {
    let pair = Pair::new(queue);
    for length in [1, 8, 20, 40, 90] {
        pair.begin();
        let body = pattern(length, 3);
        pair.near.send(pair.here, 5, &body, TIMEOUT).unwrap();
        let mut buffer = [0xee; 128];
        let cut = pair.far.receive(pair.there, &mut buffer[..length - 1], TIMEOUT);
        assert_eq!(cut, Err(Error::Truncated), "{length}");
        assert_eq!((&buffer[..length - 1], &buffer[length - 1..]), (&body[..length - 1], &[0xee; 128][length - 1..]));
    }
    pair.exchange(2);
}

#[test]
fn other_channels_and_posted_receives_get_their_messages() {
    let pair = Pair::new(queue);
    pair.begin();
    let (here, there) = pair.another();
    let mut bytes = [0; 8];
    for round in 0..200u64 {
        pair.begin();
        match round % 4 {
            // A message of another channel arrives first and does not match.
            0 => {
                pair.near.send(here, 7, &7u64.to_le_bytes(), TIMEOUT).unwrap();
                pair.exchange(round);
                assert_eq!(pair.far.receive(there, &mut bytes, TIMEOUT).unwrap().tag, 7);
            }
            // A receive that was posted earlier gets the first message.
            1 => {
                let memory = OperationMemory::Owned(vec![0; 8]);
                let first = pair
                    .far
                    .post(RecvFrom::Channel(pair.there), 0, u64::MAX, memory, CompletionOptions::default())
                    .unwrap();
                pair.near.send(pair.here, 8, &8u64.to_le_bytes(), TIMEOUT).unwrap();
                pair.near.send(pair.here, 9, &9u64.to_le_bytes(), TIMEOUT).unwrap();
                assert_eq!(pair.far.receive(pair.there, &mut bytes, TIMEOUT).unwrap().tag, 9);
                let first = pair.far.wait_for(first, Some(motet::node::deadline_in(20_000_000_000))).unwrap();
                assert_eq!((first.status, first.tag), (Status::Done, 8));
            }
            // An unexpected message is received before later ones.
            2 => {
                pair.near.send(pair.here, 10, &10u64.to_le_bytes(), TIMEOUT).unwrap();
                while pair.far.peek(RecvFrom::Channel(pair.there), 0, u64::MAX).unwrap().is_none() {
                    pair.far.progress().unwrap();
                }
                pair.near.send(pair.here, 11, &11u64.to_le_bytes(), TIMEOUT).unwrap();
                assert_eq!(pair.far.receive(pair.there, &mut bytes, TIMEOUT).unwrap().tag, 10);
                assert_eq!(pair.far.receive(pair.there, &mut bytes, TIMEOUT).unwrap().tag, 11);
            }
            // Both channels in turn.
            _ => {
                for tag in 0..FIRST_MESSAGES {
                    pair.near.send(here, tag, &tag.to_le_bytes(), TIMEOUT).unwrap();
                    assert_eq!(pair.far.receive(there, &mut bytes, TIMEOUT).unwrap().tag, tag);
                    pair.exchange(tag);
                }
            }
        }
    }
}

#[test]
fn tags_are_matched_on_a_channel_and_in_its_context() {
    let context = std::cell::Cell::new(None);
    let pair = Pair::new(|node| {
        let known = node.context().unwrap();
        let first = context.get();
        context.set(first.or(Some(known)));
        Serve::Tagged(known)
    });
    let context = context.get().unwrap(); // the far node's, which serves first
    let mut bytes = [0; 8];
    for round in 0..100u64 {
        pair.begin();
        for tag in [1, 2, 3] {
            pair.near.send(pair.here, tag + 10 * round, &tag.to_le_bytes(), TIMEOUT).unwrap();
        }
        let mut take = |from, tag, ignore| pair.far.receive_tagged(from, tag, ignore, &mut bytes, TIMEOUT).unwrap().tag;
        assert_eq!(take(RecvFrom::Channel(pair.there), 3 + 10 * round, 0), 3 + 10 * round);
        assert_eq!(take(RecvFrom::Any(context), 2 + 10 * round, 0), 2 + 10 * round);
        assert_eq!(take(RecvFrom::Any(context), 0, u64::MAX), 1 + 10 * round);
    }
}

#[test]
fn blocking_receive_fails_when_channel_or_link_ends() {
    let pair = Pair::new(queue);
    pair.begin();
    // One side of a channel is closed while messages use another channel.
    let (here, there) = pair.another();
    for tag in 0..FIRST_MESSAGES {
        pair.near.send(here, tag, &tag.to_le_bytes(), TIMEOUT).unwrap();
        assert_eq!(pair.far.receive(there, &mut [0; 8], TIMEOUT).unwrap().tag, tag);
    }
    pair.near.close_channel(here).unwrap();
    assert_eq!(pair.near.send(here, 1, b"too late", TIMEOUT), Err(Error::Unknown));
    assert_eq!(pair.far.receive(there, &mut [0; 8], TIMEOUT), Err(Error::Closed));
    pair.begin();
    pair.near.disconnect(pair.here.link).unwrap();
    assert_eq!(pair.near.send(pair.here, 1, b"no link", TIMEOUT), Err(Error::Unknown));
    let lost = pair.far.receive(pair.there, &mut [0; 8], TIMEOUT).unwrap_err();
    assert!(matches!(lost, Error::Lost(_)), "{lost}");
}

/// Threads send, receive and use the node concurrently: every message arrives once, in order on its channel.
#[test]
fn threads_send_receive_and_use_the_node_concurrently() {
    const COUNT: u64 = 30_000;
    let pair = Pair::new(queue);
    let (here, there) = pair.another();
    std::thread::scope(|scope| {
        for (here, there) in [(pair.here, pair.there), (here, there)] {
            let (near, far) = (&pair.near, &pair.far);
            scope.spawn(move || (0..COUNT).for_each(|tag| near.send(here, tag, &tag.to_le_bytes(), None).unwrap()));
            scope.spawn(move || {
                let mut bytes = [0; 8];
                for tag in 0..COUNT {
                    let received = far.receive(there, &mut bytes, TIMEOUT).unwrap();
                    assert_eq!((received.tag, bytes), (tag, tag.to_le_bytes()));
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..200 {
                pair.near.progress().unwrap();
                pair.far.link_info(pair.there.link).unwrap();
                std::thread::sleep(Duration::from_micros(200));
            }
        });
    });
    pair.begin();
}
