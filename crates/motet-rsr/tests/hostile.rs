//! A peer that may connect and sends what it likes: its messages are dropped and counted, and other peers are served.
#![forbid(unsafe_code)]

mod scene;

use motet::node::{
    Channel, CompletionOptions, Error as NodeError, LinkId, Mode, Node, OperationMemory, Outgoing, RecvFrom, Serve,
};
use motet_rsr::wire::{DATA_TAG, Head, MAX_HEAD, ReplyPlace, ReplyStatus};
use motet_rsr::{Buffer, Format, Handler, Handlers, Options, Reception, Request, Rsr, SERVICE, Startpoint};
use scene::{LIMIT, attach, attach_for_hosts, until, with};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const ALL: [Reception; 2] = [Reception::OneThread, Reception::ThreadPerChannel];
const WITH_CALLER: [Reception; 3] = [Reception::OneThread, Reception::ThreadPerChannel, Reception::Caller];

/// A channel to the requests of a node, made by hand.
fn attacker(to: &Rsr) -> (Node, Channel) {
    let node = Node::open("").unwrap();
    let link = node.connect(&to.node().address().unwrap(), LIMIT).unwrap();
    let channel = another_channel(&node, link);
    (node, channel)
}

fn another_channel(node: &Node, link: LinkId) -> Channel {
    let serve = Serve::Tagged(node.context().unwrap());
    node.open_channel(link, SERVICE, serve, LIMIT).unwrap()
}

/// The head of a request of which the data come apart.
fn announce(handler: u32, length: usize, tag: u64) -> Vec<u8> {
    let apart = Some((length as u64, DATA_TAG | tag));
    let head = Head { apart, handler: Handler::Number(handler), is_reply: false, ..Head::reply(ReplyStatus::Done) };
    head.write(&mut [0; MAX_HEAD]).to_vec()
}

/// A server; where no thread receives, one that polls.
struct Server(Arc<Rsr>, Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Server {
    fn new(options: Options) -> Self {
        Self::of(attach(options))
    }

    /// One that is reached by all drivers.
    fn for_hosts(options: Options) -> Self {
        Self::of(attach_for_hosts(options))
    }

    fn of(rsr: Rsr) -> Self {
        let polls = rsr.poll(Some(Duration::ZERO)).is_ok();
        let (rsr, ended) = (Arc::new(rsr), Arc::new(AtomicBool::new(false)));
        let (server, end) = (rsr.clone(), ended.clone());
        let poll = move || {
            while !end.load(Ordering::SeqCst) {
                server.poll(Some(Duration::from_millis(1))).unwrap();
            }
        };
        Self(rsr, ended, polls.then(|| std::thread::spawn(poll)))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.1.store(true, Ordering::SeqCst);
        let ended = self.2.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking(), "reception has ended");
    }
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

fn answer(request: &mut Request<'_>) {
    if request.wants_reply() {
        request.reply(&Buffer::new()).unwrap();
    }
}

/// A peer announces data again and again, of handlers that are there or not, by one channel or several, and sends none.
#[test]
fn data_that_are_announced_and_not_sent_end_the_link() {
    for (reception, handler, channels) in WITH_CALLER.into_iter().flat_map(|reception| {
        // Each thread of a channel has bounds of its own.
        let channels = if reception == Reception::ThreadPerChannel { 1 } else { 4 };
        [(1, 1), (1, channels), (9, 1), (9, channels)].map(|(handler, channels)| (reception, handler, channels))
    }) {
        let (server, friend) = (Server::new(with(reception)), attach(Options::default()));
        let server = &server.0;
        let endpoint = server.endpoint(Handlers::new().on(1, answer)).unwrap();
        let start = endpoint.startpoint().unwrap();
        let (node, first) = attacker(server);
        let others = (1..channels).map(|_| another_channel(&node, first.link));
        let channels: Vec<_> = [first].into_iter().chain(others).collect();
        let heads = (0..800).take_while(|at| {
            let channel = channels[at % channels.len()];
            node.send(channel, number(&start), &announce(handler, 1, *at as u64), LIMIT).is_ok()
        });
        let heads = heads.count() as u64;
        // It has taken all, or has ended the link.
        node.send(first, 77, &announce(handler, 1, 1000), LIMIT).err();
        until(|| server.counts().malformed >= 1 || server.counts().no_endpoint >= 1);
        let counts = server.counts();
        assert!(counts.malformed >= 1, "{reception:?} {heads} {counts:?}");
        for _ in 0..10 {
            friend.call(&start, 1, Buffer::new().put_block(&[1; 100_000]), LIMIT).unwrap();
        }
        until(|| server.held() == 0);
    }
}

/// A peer opens channel after channel, each of which would get a thread.
#[test]
fn a_peer_gets_few_threads() {
    let (server, friend) = (attach(with(Reception::ThreadPerChannel)), attach(Options::default()));
    let endpoint = server.endpoint(Handlers::new().on(1, answer)).unwrap();
    let (node, first) = attacker(&server);
    for _ in 0..100 {
        let serve = Serve::Tagged(node.context().unwrap());
        if node.open_channel(first.link, SERVICE, serve, LIMIT).is_err() {
            break;
        }
    }
    until(|| server.counts().malformed >= 1);
    friend.call(&endpoint.startpoint().unwrap(), 1, &Buffer::new(), LIMIT).unwrap();
}

/// The program's own receives use the node up. Requests need no more operations than there are.
#[test]
fn a_node_without_operations_receives_on() {
    for reception in [Reception::OneThread, Reception::Caller] {
        let (server, friend) = (Server::new(with(reception)), attach(Options::default()));
        let server = &server.0;
        let endpoint = server.endpoint(Handlers::new().on(1, answer)).unwrap();
        let start = endpoint.startpoint().unwrap();
        friend.call(&start, 1, &Buffer::new(), LIMIT).unwrap();
        let node = server.node();
        let context = node.context().unwrap();
        let post = || {
            let (from, memory) = (RecvFrom::Any(context), OperationMemory::Owned(Vec::new()));
            node.post(from, 1, 0, memory, CompletionOptions::default())
        };
        let mut posted = Vec::new();
        let full = loop {
            match post() {
                Ok(operation) => posted.push(operation),
                Err(error) => break error,
            }
        };
        assert_eq!(full, NodeError::Full);
        for _ in 0..50 {
            // The receive of a request that is handled leaves room for another operation of the program.
            posted.extend(post());
            friend.call(&start, 1, &Buffer::new(), LIMIT).unwrap();
        }
        for operation in posted {
            node.cancel(operation).unwrap();
            node.wait_for(operation, None).unwrap();
        }
        friend.call(&start, 1, Buffer::new().put_block(&[1; 100_000]), LIMIT).unwrap();
    }
}

/// A peer announces data, sends as many requests behind them as a line takes, and more, and then waits with the data.
#[test]
fn a_peer_that_waits_with_its_data_stops_no_other() {
    const BEHIND: u64 = 3000;
    for reception in WITH_CALLER {
        let (server, friend) = (Server::new(with(reception)), attach(Options::default()));
        let server = &server.0;
        let (last, wrong) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (note, fail) = (last.clone(), wrong.clone());
        let handlers = Handlers::new().on(1, answer).on(2, move |request| {
            let number = request.reader().get::<u64>().unwrap();
            fail.fetch_or(note.swap(number, Ordering::SeqCst) + 1 != number, Ordering::SeqCst);
        });
        let endpoint = server.endpoint(handlers).unwrap();
        let start = endpoint.startpoint().unwrap();
        friend.call(&start, 1, &Buffer::new(), LIMIT).unwrap();
        let (node, channel) = attacker(server);
        let short = Head { handler: Handler::Number(2), is_reply: false, ..Head::reply(ReplyStatus::Done) };
        let short = short.write(&mut [0; MAX_HEAD]).to_vec();
        let short = |at: u64| [&short[..], &at.to_le_bytes(), &[0; 1000]].concat();
        node.send(channel, number(&start), &announce(1, 100_000, 1), LIMIT).unwrap();
        let sent = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for at in 1..=BEHIND {
                    node.send(channel, number(&start), &short(at), LIMIT).unwrap();
                    sent.fetch_add(1, Ordering::SeqCst);
                }
            });
            until(|| sent.load(Ordering::SeqCst) > 520);
            for _ in 0..50 {
                friend.call(&start, 1, &Buffer::new(), Some(Duration::from_secs(5))).unwrap();
                friend.call(&start, 1, Buffer::new().put_block(&[1; 100_000]), Some(Duration::from_secs(5))).unwrap();
            }
            assert!(sent.load(Ordering::SeqCst) < BEHIND, "its sender waits");
            node.send(channel, DATA_TAG | 1, &[0; 100_000], LIMIT).unwrap();
        });
        until(|| server.counts().handled == 1 + 100 + 1 + BEHIND);
        assert!(!wrong.load(Ordering::SeqCst), "they are handled in order");
        assert_eq!((server.counts().malformed, server.counts().incomplete, server.held()), (0, 0, 0));
    }
}

/// A handler runs for longer than peers have for their data while others wait for memory: the data are there, and are not taken.
#[test]
fn a_server_that_stands_still_disconnects_no_peer() {
    const LONG: usize = 400_000;
    for reception in ALL {
        let options = Options { memory: 4 << 20, reply_limit_ns: 1_000_000_000, ..with(reception) };
        let (server, friend) = (attach(options), attach(Options::default()));
        let release = Arc::new(AtomicBool::new(false));
        let released = release.clone();
        let handlers = Handlers::new()
            .on(1, answer)
            .on(2, |_| std::thread::sleep(Duration::from_secs(3)))
            .threaded(3, move |_| until(|| released.load(Ordering::SeqCst)));
        let endpoint = server.endpoint(handlers).unwrap();
        let start = endpoint.startpoint().unwrap();
        let (node, channel) = attacker(&server);
        std::thread::scope(|scope| {
            // The second one waits for memory until the handler of the first one ends.
            let request = |handler: u32| friend.request(&start, handler, Buffer::new().put_block(&[1; 700_000]), LIMIT);
            request(3).unwrap();
            scope.spawn(move || request(1).unwrap());
            for (handler, tag) in [(2, 1), (1, 2)] {
                node.send(channel, number(&start), &announce(handler, LONG, tag), LIMIT).unwrap();
            }
            until(|| server.held() > 700_000 + 2 * LONG);
            node.send(channel, DATA_TAG | 1, &[0; LONG], LIMIT).unwrap();
            node.send(channel, DATA_TAG | 2, &[0; LONG], LIMIT).unwrap();
            until(|| server.counts().handled >= 3 || server.counts().malformed > 0);
            assert_eq!((server.counts().malformed, server.counts().incomplete), (0, 0));
            release.store(true, Ordering::SeqCst);
        });
        until(|| server.counts().handled == 4);
    }
}

/// A peer begins first packets that are longer than any may be, as many as are received ahead, and stops within them.
#[test]
fn a_peer_that_stops_within_first_packets_stops_no_other() {
    let cases = ["shm", "tcp"].into_iter().flat_map(|driver| {
        [(driver, ALL[0], 8), (driver, ALL[0], 16), (driver, ALL[1], 16)] // a poll waits for the rest of a packet
    });
    for (driver, reception, packets) in cases {
        let (server, friend) = (Server::for_hosts(with(reception)), attach(Options::default()));
        let server = &server.0;
        let endpoint = server.endpoint(Handlers::new().on(1, answer)).unwrap();
        let start = endpoint.startpoint().unwrap();
        friend.call(&start, 1, &Buffer::new(), LIMIT).unwrap();
        let node = Node::open("").unwrap();
        let address = server.node().address().unwrap();
        let address = address.split(',').find(|part| part.starts_with(driver)).unwrap();
        let link = node.connect(address, LIMIT).unwrap();
        let channel = another_channel(&node, link);
        let message = Outgoing { channel, tag: number(&start), headers: &[], mode: Mode::Automatic };
        for _ in 0..packets {
            let memory = OperationMemory::Owned(vec![0; 1 << 20]);
            node.start_send(&message, memory, Vec::new(), CompletionOptions::default()).unwrap();
        }
        for _ in 0..20 {
            friend.call(&start, 1, &Buffer::new(), Some(Duration::from_secs(5))).unwrap();
        }
        drop(node);
    }
}
