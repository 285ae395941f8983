//! One thread that receives from any of several peers, one message at a time: it takes no more from their FIFOs than it waits for, and
//! each peer has its turn.

use motet::node::{Node, RecvFrom, Serve};
use std::time::Duration;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));
const SERVICE: u64 = 42;
const PEERS: usize = 3;
/// Messages of each peer: its FIFO has room for them.
const MESSAGES_PER_PEER: usize = 60;
/// Messages in a row from one of several links.
const MAX_MESSAGES_IN_A_ROW: usize = 16;
/// Polls of the only busy link before the others are polled, and rounds until the last of them is found.
const MAX_POLLS_BEFORE_OTHERS: usize = 64 + 4 * PEERS;

#[test]
fn receiver_takes_turns_and_leaves_the_rest_in_fifos() {
    let server = Node::open("").unwrap();
    let context = server.context().unwrap();
    server.serve(SERVICE, Serve::Tagged(context)).unwrap();
    let name = server.name().unwrap();
    let peers: Vec<_> = (0..PEERS)
        .map(|_| {
            std::thread::scope(|scope| {
                let accepted = scope.spawn(|| server.accept(SERVICE, TIMEOUT).unwrap());
                let peer = Node::open("").unwrap();
                let link = peer.connect(&name, TIMEOUT).unwrap();
                let channel = peer.open_channel(link, SERVICE, Serve::Queue, TIMEOUT).unwrap();
                accepted.join().unwrap();
                (peer, channel)
            })
        })
        .collect();
    for at in 0..MESSAGES_PER_PEER {
        for (number, (peer, channel)) in peers.iter().enumerate() {
            peer.send(*channel, number as u64, &[at as u8; 100], TIMEOUT).unwrap();
        }
    }
    let any = RecvFrom::Any(context);
    let (mut body, mut seen) = ([0; 100], Vec::new());
    for _ in 0..PEERS * MESSAGES_PER_PEER {
        let received = server.receive_tagged(any, 0, u64::MAX, &mut body, TIMEOUT).unwrap();
        assert_eq!(server.peek(any, 0, u64::MAX).unwrap(), None, "a message too many after {}", seen.len());
        seen.push((received.tag as usize, body[99]));
    }
    for peer in 0..PEERS {
        let of: Vec<_> = seen.iter().filter(|(from, _)| *from == peer).map(|(_, at)| usize::from(*at)).collect();
        assert_eq!(of, (0..MESSAGES_PER_PEER).collect::<Vec<_>>(), "in order");
        let turns: Vec<_> = (0..seen.len()).filter(|&at| seen[at].0 == peer).collect();
        let most = turns.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!(
            most <= MAX_MESSAGES_IN_A_ROW * (PEERS - 1) + 1
                && turns[0] <= MAX_POLLS_BEFORE_OTHERS + MAX_MESSAGES_IN_A_ROW * (PEERS - 1),
            "peer {peer} was passed over: {turns:?}"
        );
    }
}
