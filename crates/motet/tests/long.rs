//! Long bodies by every path: through the payload ring, copied by the receiver, or by both sides.

use motet::node::{
    BodyPath, Channel, CompletionOptions, Mode, Node, OperationId, OperationMemory, Outgoing, RecvFrom, Serve,
    deadline_in, options,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));
/// Most repetitions until a schedule has occurred.
const SCHEDULE_TIMEOUT: Duration = Duration::from_secs(30);
const SERVICE: u64 = 42;
const COPY_PATHS: [BodyPath; 4] = [BodyPath::Measured, BodyPath::Ring, BodyPath::SingleCopy, BodyPath::CooperativeCopy];

/// Two nodes and a channel between them.
struct Pair {
    near: Node,
    far: Node,
    here: Channel,
    there: Channel,
}

fn node(bodies: BodyPath) -> Node {
    let mut options = options("", None);
    options.limits.body_path = bodies;
    Node::with(&options).unwrap()
}

fn pair(bodies: BodyPath) -> Pair {
    let (near, far) = (node(bodies), node(bodies));
    far.serve(SERVICE, Serve::Queue).unwrap();
    let (here, there) = std::thread::scope(|scope| {
        let there = scope.spawn(|| far.accept(SERVICE, TIMEOUT).unwrap());
        let link = near.connect(&far.name().unwrap(), TIMEOUT).unwrap();
        (near.open_channel(link, SERVICE, Serve::Queue, TIMEOUT).unwrap(), there.join().unwrap())
    });
    Pair { near, far, here, there }
}

/// Bytes that depend on the offset.
fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 256 + seed * 13) as u8).collect()
}

/// Starts a send.
fn begin(node: &Node, channel: Channel, tag: u64, body: Vec<u8>) -> OperationId {
    let message = Outgoing { channel, tag, headers: &[], mode: Mode::Automatic };
    let sent = node.start_send(&message, OperationMemory::Owned(body), Vec::new(), CompletionOptions::default());
    sent.map_err(|(error, ..)| error).unwrap().expect("too long to go at once")
}

/// Bodies that the receiver copied, and those of which the sender copied a part.
fn copies(pair: &Pair) -> [u64; 2] {
    pair.far.link_info(pair.there.link).unwrap().copied
}

/// Sends bodies of all lengths in both directions at once and checks each. Returns how many were copied, and copied by both sides.
fn exchanged(bodies: BodyPath) -> [u64; 2] {
    let lengths = [65_537, 131_071, 131_072, 200_000, 1 << 20, (3 << 20) + 1, 5 << 20, (17 << 20) + 4097];
    let pair = pair(bodies);
    let Pair { near, far, here, there } = &pair;
    let run = |node: &Node, channel: Channel, seed: usize| {
        for (turn, length) in lengths.iter().cycle().take(3 * lengths.len()).enumerate() {
            let sent = begin(node, channel, turn as u64, pattern(*length, seed + turn));
            let mut buffer = vec![0; *length];
            let got = node.receive(channel, &mut buffer, TIMEOUT).unwrap();
            assert_eq!((got.tag, got.length), (turn as u64, *length));
            assert!(buffer == pattern(*length, 1000 - seed + turn), "{bodies:?}: {length} bytes");
            assert_eq!(node.finish_operation(sent, TIMEOUT).unwrap().len(), *length);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run(near, *here, 0));
        run(far, *there, 1000);
    });
    copies(&pair)
}

#[test]
fn long_bodies_arrive_whole_in_both_directions_at_once() {
    for bodies in COPY_PATHS {
        let [copied, helped] = exchanged(bodies);
        match bodies {
            BodyPath::Ring => assert_eq!([copied, helped], [0; 2]),
            BodyPath::SingleCopy => assert!(copied == 18 && helped == 0, "{copied}, {helped}"),
            BodyPath::CooperativeCopy => {
                // The scheduler decides whether a sender has a CPU while its receiver copies.
                let (began, mut round) = (Instant::now(), [copied, helped]);
                while round == [18, 0] && began.elapsed() < SCHEDULE_TIMEOUT {
                    round = exchanged(bodies);
                }
                assert!(round[0] == 18 && round[1] > 0, "{round:?}");
            }
            BodyPath::Measured => assert!(copied > 0),
        }
    }
}

#[test]
fn receiver_copies_without_progress_of_the_sender() {
    let pair = pair(BodyPath::CooperativeCopy);
    let Pair { near, far, here, there } = &pair;
    for (turn, length) in [(1, 200_000), (2, 4 << 20), (3, 20 << 20)] {
        let sent = begin(near, *here, 1, pattern(length, turn));
        // The sender does something else meanwhile.
        let mut buffer = vec![0; length + 5];
        assert_eq!(far.receive(*there, &mut buffer, TIMEOUT).unwrap().length, length);
        assert!(buffer[..length] == pattern(length, turn) && buffer[length..] == [0; 5]);
        near.finish_operation(sent, TIMEOUT).unwrap();
    }
    assert_eq!(copies(&pair), [3, 0]);
}

/// A receive whose memory is taken away in the middle: the memory is not written after that call has returned.
#[test]
fn detached_receive_memory_is_not_written() {
    const LENGTH: usize = 4 << 20;
    let Pair { near, far, here, there } = pair(BodyPath::CooperativeCopy);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // Messages without a receive are lost with the link.
                let sent = begin(&near, here, 1, vec![1; LENGTH]);
                let _ = near.finish_operation(sent, TIMEOUT);
            }
        });
        let mut taken_away = 0;
        // The scheduler decides which turns meet a message in the middle: repeat until some do.
        let began = Instant::now();
        for turn in 0.. {
            if turn >= 120 && (taken_away > 20 || began.elapsed() > SCHEDULE_TIMEOUT) {
                break;
            }
            let from = RecvFrom::Channel(there);
            let memory = OperationMemory::Owned(vec![0; LENGTH]);
            let operation = far.post(from, 0, u64::MAX, memory, CompletionOptions::default()).unwrap();
            let looks = std::cell::Cell::new(0);
            // Some polls end before the message arrives, some after it.
            let _ = far.progress_until(|| looks.replace(looks.get() + 1) == turn % 20, Some(deadline_in(10_000_000)));
            far.detach(operation).unwrap();
            taken_away += usize::from(far.link_info(there.link).unwrap().counts[1] > 0);
            // Most likely in the memory of the detached receive.
            let other = vec![7; LENGTH];
            let until = Instant::now() + Duration::from_millis(1);
            while Instant::now() < until {
                assert!(other.iter().step_by(4099).all(|&byte| byte == 7), "written behind the end");
            }
        }
        println!("{taken_away} receives lost their memory in the middle of a message");
        assert!(taken_away > 20);
        over.store(true, Ordering::Relaxed);
        drop(far);
    });
}
