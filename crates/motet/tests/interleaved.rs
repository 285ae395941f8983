//! Posted receives, sends and polls with any other calls between two of them, which must not change what the next one does.

use motet::node::{
    Channel, CompletionOptions, Context, CqId, Error, Mode, Node, OperationId, OperationMemory, Outgoing, RecvFrom,
    Serve, Status, UserMemory,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));
const SERVICE: u64 = 42;

/// A node that receives by posted receives, and a node that sends.
struct Pair {
    near: Node,
    far: Node,
    cq: CqId,
    context: Context,
    /// The channel's end at the receiving node, and at the sending node.
    channels: [Channel; 2],
}

/// A completion: context, status, tag.
type End = (u64, Status, u64);

impl Pair {
    fn new() -> Self {
        let (near, far) = (Node::open("").unwrap(), Node::open("").unwrap());
        let (cq, context) = (near.add_cq().unwrap(), near.context().unwrap());
        near.serve(SERVICE, Serve::Tagged(context)).unwrap();
        let channels = Self::meet(&near, &far);
        let pair = Self { near, far, cq, context, channels };
        pair.settle();
        pair
    }

    fn meet(near: &Node, far: &Node) -> [Channel; 2] {
        std::thread::scope(|scope| {
            let accepts = scope.spawn(|| near.accept(SERVICE, TIMEOUT).unwrap());
            let link = far.connect(&near.address().unwrap(), TIMEOUT).unwrap();
            let there = far.open_channel(link, SERVICE, Serve::Queue, TIMEOUT).unwrap();
            [accepts.join().unwrap(), there]
        })
    }

    /// Exchanges a few messages, so that all caches are filled.
    fn settle(&self) {
        for tag in 0..4 {
            self.post(tag, 900 + tag);
            self.send(tag);
            assert_eq!(self.ends(1), [(900 + tag, Status::Done, tag)]);
        }
    }

    fn post(&self, tag: u64, context: u64) -> OperationId {
        self.try_post(RecvFrom::Any(self.context), tag, context, self.cq).unwrap()
    }

    fn try_post(&self, from: RecvFrom, tag: u64, context: u64, cq: CqId) -> Result<OperationId, Error> {
        let options = CompletionOptions { cq: Some(cq), user_data: context, errors_only: false };
        self.near.post(from, tag, 0, OperationMemory::User(UserMemory::EMPTY), options)
    }

    /// Sends a message as soon as there is credit for it.
    fn send(&self, tag: u64) {
        let until = Instant::now() + TIMEOUT.unwrap();
        while let Err(error) = self.try_send(self.channels[1], tag) {
            assert!(error == Error::WouldBlock && Instant::now() < until, "{error}");
            self.far.progress().unwrap();
        }
    }

    fn try_send(&self, channel: Channel, tag: u64) -> Result<(), Error> {
        self.far.try_inject(&Outgoing { channel, tag, headers: &[], mode: Mode::Inject }, &[&[]])
    }

    /// Takes `count` completions.
    fn ends(&self, count: usize) -> Vec<End> {
        ends(&self.near, self.cq, count)
    }

    /// Checks that there is no completion.
    fn nothing(&self) {
        for _ in 0..50 {
            let told = self.near.poll_cq(self.cq, 8, |end| panic!("{end:?}")).unwrap();
            assert_eq!(told, (0, false));
        }
    }
}

fn ends(node: &Node, cq: CqId, count: usize) -> Vec<End> {
    let (mut ends, until) = (Vec::new(), Instant::now() + TIMEOUT.unwrap());
    while ends.len() < count && Instant::now() < until {
        node.poll_cq(cq, count - ends.len(), |end| ends.push((end.user_data, end.status, end.tag))).unwrap();
    }
    ends
}

#[test]
fn cancelled_receive_gets_no_message() {
    let pair = Pair::new();
    for oldest in [true, false] {
        let names = [pair.post(7, 1), pair.post(7, 2)];
        pair.near.cancel(names[usize::from(!oldest)]).unwrap();
        let (gone, left) = if oldest { (1, 2) } else { (2, 1) };
        pair.send(7);
        assert_eq!(pair.ends(2), [(gone, Status::Cancelled, 0), (left, Status::Done, 7)]);
        pair.send(7);
        pair.nothing();
        pair.post(7, 3); // the message waits for it
        assert_eq!(pair.ends(1), [(3, Status::Done, 7)]);
        pair.settle();
    }
}

#[test]
fn messages_match_receives_in_posting_order() {
    let pair = Pair::new();
    let other = pair.near.add_cq().unwrap();
    let [here, _] = pair.channels;
    pair.post(5, 1);
    pair.try_post(RecvFrom::Channel(here), 5, 2, pair.cq).unwrap();
    pair.try_post(RecvFrom::Any(pair.context), 5, 3, other).unwrap();
    pair.post(6, 4);
    pair.post(5, 5);
    [6, 5, 5, 5, 5].into_iter().for_each(|tag| pair.send(tag));
    assert_eq!(pair.ends(4), [(4, Status::Done, 6), (1, Status::Done, 5), (2, Status::Done, 5), (5, Status::Done, 5)]);
    assert_eq!(ends(&pair.near, other, 1), [(3, Status::Done, 5)]);
    pair.settle();
}

#[test]
fn message_of_another_channel_matches_only_there() {
    let pair = Pair::new();
    let [here, there] = Pair::meet(&pair.near, &pair.far);
    for turn in 0..20 {
        let from = [here, pair.channels[0]][turn % 2];
        pair.try_post(RecvFrom::Channel(from), 1, turn as u64, pair.cq).unwrap();
        // A message of one channel does not match a receive on the other.
        pair.try_send([pair.channels[1], there][turn % 2], 1).unwrap();
        pair.nothing();
        pair.try_send([there, pair.channels[1]][turn % 2], 1).unwrap();
        assert_eq!(pair.ends(1), [(turn as u64, Status::Done, 1)]);
        pair.post(1, 100);
        assert_eq!(pair.ends(1), [(100, Status::Done, 1)]);
    }
}

#[test]
fn closed_channel_refuses_receives_and_messages() {
    let pair = Pair::new();
    let [here, there] = pair.channels;
    pair.try_post(RecvFrom::Channel(here), 1, 1, pair.cq).unwrap();
    pair.send(1);
    assert_eq!(pair.ends(1), [(1, Status::Done, 1)]);
    pair.near.close_channel(here).unwrap();
    assert!(pair.try_post(RecvFrom::Channel(here), 1, 2, pair.cq).is_err(), "it is not known any more");
    pair.far.close_channel(there).unwrap();
    assert!(pair.try_send(there, 1).is_err());
    pair.nothing();
}

#[test]
fn removed_context_and_queue_are_unknown() {
    let pair = Pair::new();
    let other = pair.near.add_cq().unwrap();
    pair.try_post(RecvFrom::Any(pair.context), 1, 1, other).unwrap();
    pair.send(1);
    assert_eq!(ends(&pair.near, other, 1), [(1, Status::Done, 1)]);
    pair.near.remove_cq(other).unwrap();
    assert_eq!(pair.try_post(RecvFrom::Any(pair.context), 1, 2, other), Err(Error::Unknown));
    assert!(pair.near.poll_cq(other, 1, |end| panic!("{end:?}")).is_err());
    pair.settle();
    pair.near.withdraw(SERVICE).unwrap();
    pair.near.close_channel(pair.channels[0]).unwrap();
    pair.near.remove_context(pair.context).unwrap();
    assert_eq!(pair.try_post(RecvFrom::Any(pair.context), 1, 3, pair.cq), Err(Error::Unknown));
}

#[test]
fn lost_link_fails_receives_after_sent_messages() {
    let pair = Pair::new();
    let [here, there] = pair.channels;
    for context in 1..=3 {
        pair.try_post(RecvFrom::Channel(here), 1, context, pair.cq).unwrap();
    }
    pair.send(1);
    assert_eq!(pair.ends(1), [(1, Status::Done, 1)]);
    pair.send(1);
    pair.far.disconnect(there.link).unwrap();
    assert_eq!(pair.ends(2), [(2, Status::Done, 1), (3, Status::LinkDown, 0)]);
    let late = pair.try_post(RecvFrom::Channel(here), 1, 4, pair.cq);
    assert!(late.is_err() || pair.ends(1) == [(4, Status::LinkDown, 0)], "{late:?}");
    assert!(pair.try_send(there, 1).is_err());
}

#[test]
fn claimed_message_matches_no_receive() {
    let pair = Pair::new();
    let from = RecvFrom::Any(pair.context);
    pair.post(2, 1);
    pair.send(1);
    pair.nothing();
    assert_eq!(pair.near.peek(from, 1, 0).unwrap().map(|seen| seen.tag), Some(1));
    let held = pair.near.claim(from, 1, 0).unwrap().expect("it waits");
    pair.post(1, 2);
    pair.send(2);
    assert_eq!(pair.ends(1), [(1, Status::Done, 2)]);
    pair.nothing();
    pair.near.discard_body(held).unwrap();
    pair.send(1);
    assert_eq!(pair.ends(1), [(2, Status::Done, 1)]);
    pair.settle();
}

/// Another thread uses the node all the time: makes progress, cancels receives, peeks.
#[test]
fn other_threads_use_the_node_between_calls() {
    let pair = Pair::new();
    let over = AtomicBool::new(false);
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed); // with a failure, too
        }
    }
    std::thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| {
            for turn in 0u32.. {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                match turn % 4 {
                    0 => assert!(pair.near.progress().is_ok()),
                    1 => assert!(pair.near.peek(RecvFrom::Any(pair.context), 99, 0).unwrap().is_none()),
                    2 => {
                        let own = pair.near.add_cq().unwrap();
                        let spare = pair.try_post(RecvFrom::Any(pair.context), 99, 0, own).unwrap();
                        pair.near.cancel(spare).unwrap();
                        assert_eq!(ends(&pair.near, own, 1), [(0, Status::Cancelled, 0)]);
                        pair.near.remove_cq(own).unwrap();
                    }
                    _ => std::thread::yield_now(),
                }
            }
        });
        for turn in 0..1500u64 {
            let (first, second) = (2 * turn, 2 * turn + 1);
            pair.post(1, first);
            pair.post(1, second);
            pair.send(1);
            pair.send(1);
            assert_eq!(pair.ends(2), [(first, Status::Done, 1), (second, Status::Done, 1)]);
        }
    });
    assert_eq!(pair.near.cq_counts(pair.cq).unwrap(), [3004, 0, 0]);
}
