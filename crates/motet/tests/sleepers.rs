//! Programs that sleep on a node's descriptor: a message on any link ends the sleep and is taken at once, and so are messages on the other
//! links as long as the program polls.

use motet::node::{Channel, Message, Node, Serve};
use motet_sys::socket::{self, READABLE_EVENTS};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));
const SERVICE: u64 = 44;
const PEERS: usize = 12;
/// More empty polls than make a link idle.
const IDLE_POLLS: usize = 25_000;

/// A node to which many peers send.
struct Crowd {
    middle: Node,
    peers: Vec<(Node, Channel)>,
    came: Arc<AtomicUsize>,
}

impl Crowd {
    fn new() -> Self {
        let (middle, came) = (Node::open("").unwrap(), Arc::<AtomicUsize>::default());
        let counter = came.clone();
        let count = move |_: &_, _: Message<'_>| {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        middle.serve(SERVICE, middle.handler(count).unwrap()).unwrap();
        let name = middle.name().unwrap();
        let peers = (0..PEERS).map(|_| join(&middle, &name)).collect();
        Self { middle, peers, came }
    }

    fn send(&self, peer: usize) {
        let (node, channel) = &self.peers[peer];
        node.send(*channel, peer as u64, b"8 bytes.", TIMEOUT).unwrap();
    }

    /// The messages of one round of progress.
    fn round(&self) -> usize {
        let before = self.came.load(Ordering::Relaxed);
        self.middle.progress().unwrap();
        self.came.load(Ordering::Relaxed) - before
    }

    /// Prepares the sleep: the peers write to the doorbell from here on.
    fn prepare(&self) {
        while !self.middle.arm().unwrap() {
            assert_eq!(self.round(), 0);
        }
    }

    fn is_woken(&self, patience: u64) -> bool {
        socket::poll([(self.middle.descriptor(), READABLE_EVENTS)], Some(patience)).unwrap()[0] != 0
    }
}

fn join(middle: &Node, name: &str) -> (Node, Channel) {
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| middle.accept(SERVICE, TIMEOUT).unwrap());
        let peer = Node::open("").unwrap();
        let link = peer.connect(name, TIMEOUT).unwrap();
        let channel = peer.open_channel(link, SERVICE, Serve::Queue, TIMEOUT).unwrap();
        accepted.join().unwrap();
        (peer, channel)
    })
}

/// Busy and idle links.
#[test]
fn message_on_any_link_wakes_and_is_taken_at_once() {
    const WAKE_TIMEOUT_NS: u64 = 15_000_000_000;
    let crowd = Crowd::new();
    for turn in 0..20 * PEERS {
        let peer = turn * 5 % PEERS;
        if turn % (4 * PEERS) == 0 {
            for _ in 0..IDLE_POLLS {
                assert_eq!(crowd.round(), 0);
            }
        }
        crowd.prepare();
        if turn % 3 == 0 {
            crowd.prepare(); // twice
        }
        crowd.send(peer);
        assert!(crowd.is_woken(WAKE_TIMEOUT_NS), "the peer has not rung");
        assert_eq!(crowd.round(), 1, "turn {turn}: what has ended the sleep was not found");
    }
}

/// A program, an MPI rank for example, that was woken by an event that it does not wait for, and makes fewer polls than it has links.
#[test]
fn polls_after_a_sleep_take_messages_of_all_busy_links() {
    let crowd = Crowd::new();
    (0..PEERS).for_each(|peer| crowd.send(peer));
    while crowd.came.load(Ordering::Relaxed) < PEERS {
        crowd.round(); // now all are busy
    }
    for turn in 0..20 {
        crowd.prepare();
        if turn % 2 == 0 {
            crowd.send(turn % PEERS);
            assert_eq!(crowd.round(), 1);
        } else {
            assert_eq!(crowd.round(), 0, "it was not woken: its time was over");
        }
        for peer in 0..PEERS {
            crowd.send(peer);
            assert_eq!(crowd.round(), 1, "turn {turn}: the message of peer {peer} was not found");
        }
        assert!(!crowd.is_woken(0), "a doorbell was rung while no thread sleeps");
    }
}
