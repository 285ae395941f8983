//! Long bodies, however they come: through the ring, copied by the receiver, or by both.

use motet::node::{Bodies, Channel, From, Memory, Mode, Node, Notice, OperationId, Outgoing, Serve, in_ns, options};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LIMIT: Option<Duration> = Some(Duration::from_secs(20));
/// Of what is repeated until the scheduler has shown it.
const LIMIT_OF_TURNS: Duration = Duration::from_secs(30);
const SERVICE: u64 = 42;
const WAYS: [Bodies; 4] = [Bodies::Measured, Bodies::Ring, Bodies::Copied, Bodies::CopiedByBoth];

/// Two nodes and a channel between them.
struct Pair {
    near: Node,
    far: Node,
    here: Channel,
    there: Channel,
}

fn node(bodies: Bodies) -> Node {
    let mut options = options("", None);
    options.limits.bodies = bodies;
    Node::with(&options).unwrap()
}

fn pair(bodies: Bodies) -> Pair {
    let (near, far) = (node(bodies), node(bodies));
    far.serve(SERVICE, Serve::Queue).unwrap();
    let (here, there) = std::thread::scope(|scope| {
        let there = scope.spawn(|| far.accept(SERVICE, LIMIT).unwrap());
        let link = near.connect(&far.name().unwrap(), LIMIT).unwrap();
        (near.open_channel(link, SERVICE, Serve::Queue, LIMIT).unwrap(), there.join().unwrap())
    });
    Pair { near, far, here, there }
}

/// Bytes that tell where they are from.
fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 256 + seed * 13) as u8).collect()
}

/// Begins to send.
fn begin(node: &Node, channel: Channel, tag: u64, body: Vec<u8>) -> OperationId {
    let message = Outgoing { channel, tag, headers: &[], mode: Mode::Automatic };
    let sent = node.start_send(&message, Memory::Owned(body), Vec::new(), Notice::default());
    sent.map_err(|(error, ..)| error).unwrap().expect("too long to go at once")
}

/// Bodies copied by the receiver, and those of which the sender has copied some.
fn copies(pair: &Pair) -> [u64; 2] {
    pair.far.link_info(pair.there.link).unwrap().copied
}

/// Bodies of all lengths in both directions at once, each looked at; then how many were copied, and helped with.
fn exchanged(bodies: Bodies) -> [u64; 2] {
    let lengths = [65_537, 131_071, 131_072, 200_000, 1 << 20, (3 << 20) + 1, 5 << 20, (17 << 20) + 4097];
    let pair = pair(bodies);
    let Pair { near, far, here, there } = &pair;
    let run = |node: &Node, channel: Channel, seed: usize| {
        for (turn, length) in lengths.iter().cycle().take(3 * lengths.len()).enumerate() {
            let sent = begin(node, channel, turn as u64, pattern(*length, seed + turn));
            let mut buffer = vec![0; *length];
            let got = node.receive(channel, &mut buffer, LIMIT).unwrap();
            assert_eq!((got.tag, got.length), (turn as u64, *length));
            assert!(buffer == pattern(*length, 1000 - seed + turn), "{bodies:?}: {length} bytes");
            assert_eq!(node.finish_operation(sent, LIMIT).unwrap().len(), *length);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run(near, *here, 0));
        run(far, *there, 1000);
    });
    copies(&pair)
}

#[test]
fn bodies_come_whole_in_both_directions_at_once() {
    for bodies in WAYS {
        let [copied, helped] = exchanged(bodies);
        match bodies {
            Bodies::Ring => assert_eq!([copied, helped], [0; 2]),
            Bodies::Copied => assert!(copied == 18 && helped == 0, "{copied}, {helped}"),
            Bodies::CopiedByBoth => {
                // Whether a sender has a CPU while its receiver copies is the scheduler's affair.
                let (began, mut round) = (Instant::now(), [copied, helped]);
                while round == [18, 0] && began.elapsed() < LIMIT_OF_TURNS {
                    round = exchanged(bodies);
                }
                assert!(round[0] == 18 && round[1] > 0, "{round:?}");
            }
            Bodies::Measured => assert!(copied > 0),
        }
    }
}

#[test]
fn a_sender_that_makes_no_progress_is_not_waited_for() {
    let pair = pair(Bodies::CopiedByBoth);
    let Pair { near, far, here, there } = &pair;
    for (turn, length) in [(1, 200_000), (2, 4 << 20), (3, 20 << 20)] {
        let sent = begin(near, *here, 1, pattern(length, turn));
        // It does something else meanwhile.
        let mut buffer = vec![0; length + 5];
        assert_eq!(far.receive(*there, &mut buffer, LIMIT).unwrap().length, length);
        assert!(buffer[..length] == pattern(length, turn) && buffer[length..] == [0; 5]);
        near.finish_operation(sent, LIMIT).unwrap();
    }
    assert_eq!(copies(&pair), [3, 0]);
}

/// A receive whose memory is taken away in the middle: nobody writes there any more once that call has returned.
#[test]
fn memory_that_is_taken_away_is_let_alone() {
    const LENGTH: usize = 4 << 20;
    let Pair { near, far, here, there } = pair(Bodies::CopiedByBoth);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // What nobody takes in the end is lost with the link.
                let sent = begin(&near, here, 1, vec![1; LENGTH]);
                let _ = near.finish_operation(sent, LIMIT);
            }
        });
        let mut taken_away = 0;
        // Which turns meet a message in its middle is the scheduler's affair: as many as it takes to meet some.
        let began = Instant::now();
        for turn in 0.. {
            if turn >= 120 && (taken_away > 20 || began.elapsed() > LIMIT_OF_TURNS) {
                break;
            }
            let from = From::Channel(there);
            let memory = Memory::Owned(vec![0; LENGTH]);
            let operation = far.post(from, 0, u64::MAX, memory, Notice::default()).unwrap();
            let looks = std::cell::Cell::new(0);
            // So many looks: some end before the message comes, some when it is here.
            let _ = far.until(|| looks.replace(looks.get() + 1) == turn % 20, Some(in_ns(10_000_000)));
            far.detach(operation).unwrap();
            taken_away += usize::from(far.link_info(there.link).unwrap().counts[1] > 0);
            // Most likely this is where the other was.
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
