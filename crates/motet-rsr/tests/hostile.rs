//! A peer that may connect and sends what it likes: its messages are dropped and counted, and other peers are served.
#![forbid(unsafe_code)]

mod scene;

use motet::node::{Node, Serve};
use motet_rsr::wire::{DATA_TAG, Head, MAX_HEAD, ReplyPlace, ReplyStatus};
use motet_rsr::{Buffer, Format, Handler, Handlers, Options, Reception, SERVICE, Startpoint};
use scene::{LIMIT, attach, until, with};
use std::time::Duration;

const ALL: [Reception; 2] = [Reception::OneThread, Reception::ThreadPerChannel];

/// A channel to the requests of a node, made by hand.
fn attacker(to: &motet_rsr::Rsr) -> (Node, motet::node::Channel) {
    let node = Node::open("").unwrap();
    let link = node.connect(&to.node().address().unwrap(), LIMIT).unwrap();
    let serve = Serve::Tagged(node.context().unwrap());
    let channel = node.open_channel(link, SERVICE, serve, LIMIT).unwrap();
    (node, channel)
}

/// The number of the endpoint of a startpoint.
fn number(start: &Startpoint) -> u64 {
    u64::from_le_bytes(*start.to_bytes()[22..].first_chunk().unwrap())
}

#[test]
fn wrong_messages_are_dropped_and_counted() {
    for reception in ALL {
        let (server, friend) = (attach(with(reception)), attach(Options::default()));
        let endpoint = server.endpoint(Handlers::new().on(1, |request| {
            let mut reader = request.reader();
            while reader.get_block().is_ok() {}
            let _ = reader.get_startpoint().is_ok() || reader.get_str().is_ok() || reader.get_array::<u64>().is_ok();
            if request.wants_reply() {
                request.reply(&Buffer::new()).unwrap();
            }
        }));
        let endpoint = endpoint.unwrap();
        let start = endpoint.startpoint().unwrap();
        let (node, channel) = attacker(&server);
        let head = |apart, reply_to| Head {
            format: Format::HERE,
            handler: Handler::Number(1),
            apart,
            reply_to,
            is_reply: false,
        };
        let mut memory = [0; MAX_HEAD];
        let good = head(None, None).write(&mut memory).to_vec();
        // Heads that are none, at the endpoint's own number.
        let mut wrong: Vec<Vec<u8>> = (0..8).map(|cut| good[..cut].to_vec()).collect();
        for (at, value) in [(0, 9), (1, 200), (2, 16), (3, 5), (2, 1), (2, 2), (2, 4)] {
            let mut bytes = good.clone();
            bytes[at] = value;
            wrong.push(bytes);
        }
        wrong.push(vec![1; 60_000]); // longer than a first packet
        let other = Startpoint::from_bytes(&start.to_bytes()).unwrap().to_bytes();
        wrong.push(head(None, Some(ReplyPlace::Startpoint(&other))).write(&mut memory).to_vec()); // a reply to an endpoint
        wrong.push(head(None, Some(ReplyPlace::Startpoint(b"nonsense"))).write(&mut memory).to_vec());
        wrong.push(head(None, Some(ReplyPlace::Back(number(&start)))).write(&mut memory).to_vec());
        for bytes in &wrong {
            node.send(channel, number(&start), bytes, LIMIT).unwrap();
        }
        until(|| server.counts().malformed == wrong.len() as u64);
        // Replies to no call, endpoints that are not there, data that no request has announced.
        let reply = Head::reply(ReplyStatus::Done).write(&mut memory).to_vec();
        node.send(channel, number(&start), &reply, LIMIT).unwrap();
        (0..100).for_each(|other| node.send(channel, other, &good, LIMIT).unwrap());
        until(|| server.counts().no_endpoint == 100 && server.counts().no_handler == 1);
        // Data of a length that was not announced, and lengths that cannot be.
        for (announced, sent) in [(100, 99), (100, 101), (0, 5)] {
            let bytes = head(Some((announced, DATA_TAG | 1)), None).write(&mut memory).to_vec();
            node.send(channel, number(&start), &bytes, LIMIT).unwrap();
            node.send(channel, DATA_TAG | 1, &vec![1; sent], LIMIT).unwrap();
        }
        let bytes = head(Some((u64::MAX, DATA_TAG | 2)), None).write(&mut memory).to_vec();
        node.send(channel, number(&start), &bytes, LIMIT).unwrap();
        until(|| server.counts().incomplete == 3 && server.counts().too_long == 1);
        // Arrays that are longer than the data.
        for count in [1u64, 1 << 32, 1 << 61, u64::MAX] {
            node.send(channel, number(&start), &[&good[..], &count.to_le_bytes()].concat(), LIMIT).unwrap();
        }
        friend.call(&start, 1, Buffer::new().put_block(&[1; 100_000]), LIMIT).unwrap();
        until(|| server.counts().handled == 5);
        until(|| server.held() == 0);
        assert_eq!(server.counts().panics, 0);
    }
}

#[test]
fn data_that_do_not_come_hold_a_bounded_part_and_end_the_channel() {
    for reception in ALL {
        let options = Options { memory: 4 << 20, ..with(reception) };
        let (server, friend) = (attach(options), attach(Options::default()));
        let endpoint =
            server.endpoint(Handlers::new().on(1, |request| request.reply(&Buffer::new()).unwrap())).unwrap();
        let start = endpoint.startpoint().unwrap();
        let (node, channel) = attacker(&server);
        for at in 0..5000 {
            let apart = Some((1 << 20, DATA_TAG | at));
            let head = Head { apart, handler: Handler::Number(1), is_reply: false, ..Head::reply(ReplyStatus::Done) };
            let mut memory = [0; MAX_HEAD];
            if node.send(channel, number(&start), head.write(&mut memory), Some(Duration::from_secs(5))).is_err() {
                break; // the channel is closed
            }
        }
        until(|| server.counts().malformed >= 1);
        assert!(server.held() <= 1 << 20, "{}", server.held());
        friend.call(&start, 1, Buffer::new().put_block(&[1; 1_000_000]), LIMIT).unwrap();
        drop(node);
        until(|| server.held() == 0);
    }
}

/// Four peers announce as much as a channel may hold each, and stop.
#[test]
fn peers_that_stop_within_long_requests_do_not_keep_all_memory() {
    const LONG: usize = 1 << 20;
    for reception in ALL {
        let options = Options { memory: 4 * LONG, reply_limit_ns: 100_000_000, ..with(reception) };
        let (server, friend) = (attach(options), attach(Options::default()));
        let endpoint =
            server.endpoint(Handlers::new().on(1, |request| request.reply(&Buffer::new()).unwrap())).unwrap();
        let start = endpoint.startpoint().unwrap();
        let stopped: Vec<_> = (0..4).map(|_| attacker(&server)).collect();
        for (node, channel) in &stopped {
            let apart = Some((LONG as u64, DATA_TAG | 1));
            let head = Head { apart, handler: Handler::Number(1), is_reply: false, ..Head::reply(ReplyStatus::Done) };
            node.send(*channel, number(&start), head.write(&mut [0; MAX_HEAD]), LIMIT).unwrap();
        }
        until(|| server.held() == 3 * LONG);
        // A short one finds room at once, and a long one when those have had the time for their data.
        friend.call(&start, 1, Buffer::new().put_block(&vec![1; LONG / 8]), LIMIT).unwrap();
        assert_eq!(server.counts().malformed, 0);
        until(|| server.held() == 3 * LONG);
        friend.call(&start, 1, Buffer::new().put_block(&vec![1; LONG - 1000]), LIMIT).unwrap();
        assert!(server.counts().malformed >= 1);
        drop(stopped);
        until(|| server.held() == 0);
    }
}
