//! Programs that sleep on a node's descriptor: a message on any link ends the sleep and is taken at once, and so is what comes on the
//! other links as long as the program polls.

use motet::node::{Channel, Message, Node, Serve};
use motet_sys::socket::{self, READABLE};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(20));
const SERVICE: u64 = 44;
const PEERS: usize = 12;
/// Looks in vain after which a link is silent, and more.
const LONG: usize = 25_000;

/// One that many peers send to.
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
        middle.serve(SERVICE, middle.handler(Arc::new(count)).unwrap()).unwrap();
        let name = middle.name().unwrap();
        let peers = (0..PEERS).map(|_| join(&middle, &name)).collect();
        Self { middle, peers, came }
    }

    fn send(&self, peer: usize) {
        let (node, channel) = &self.peers[peer];
        node.send(*channel, peer as u64, b"8 bytes.", LIMIT).unwrap();
    }

    /// What came in one round.
    fn round(&self) -> usize {
        let before = self.came.load(Ordering::Relaxed);
        self.middle.progress().unwrap();
        self.came.load(Ordering::Relaxed) - before
    }

    /// The peers ring from now on.
    fn prepare(&self) {
        while !self.middle.prepare_sleep().unwrap() {
            assert_eq!(self.round(), 0);
        }
    }

    fn is_woken(&self, patience: u64) -> bool {
        socket::poll([(self.middle.descriptor(), READABLE)], Some(patience)).unwrap()[0] != 0
    }
}

fn join(middle: &Node, name: &str) -> (Node, Channel) {
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| middle.accept(SERVICE, LIMIT).unwrap());
        let peer = Node::open("").unwrap();
        let link = peer.connect(name, LIMIT).unwrap();
        let channel = peer.open_channel(link, SERVICE, Serve::Queue, LIMIT).unwrap();
        accepted.join().unwrap();
        (peer, channel)
    })
}

/// Busy links and those that have been silent for long.
#[test]
fn a_message_on_any_link_ends_a_sleep_and_is_taken_in_the_next_round() {
    const PATIENCE: u64 = 15_000_000_000;
    let crowd = Crowd::new();
    for turn in 0..20 * PEERS {
        let peer = turn * 5 % PEERS;
        if turn % (4 * PEERS) == 0 {
            for _ in 0..LONG {
                assert_eq!(crowd.round(), 0);
            }
        }
        crowd.prepare();
        if turn % 3 == 0 {
            crowd.prepare(); // twice
        }
        crowd.send(peer);
        assert!(crowd.is_woken(PATIENCE), "the peer has not rung");
        assert_eq!(crowd.round(), 1, "turn {turn}: what has ended the sleep was not found");
    }
}

/// An MPI rank, say, that was woken by something else than what it waits for, and has fewer polls than others have links.
#[test]
fn who_has_slept_and_polls_takes_what_comes_on_any_busy_link_in_the_next_round() {
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
        assert!(!crowd.is_woken(0), "somebody has rung for nobody who sleeps");
    }
}
