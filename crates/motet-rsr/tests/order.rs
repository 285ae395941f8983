//! Requests of all lengths are handled in the order in which they were sent, and a peer that does not send what it has announced holds up nothing for long.
#![forbid(unsafe_code)]

mod scene;

use motet::node::{Node, Serve};
use motet_rsr::wire::{DATA_TAG, Head, MAX_HEAD, ReplyStatus};
use motet_rsr::{Buffer, Handler, Handlers, MAX_ONE_PACKET, Options, Reception, Request, SERVICE, Startpoint};
use scene::{LIMIT, attach, attach_for_hosts, until, with};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const ALL: [Reception; 3] = [Reception::OneThread, Reception::ThreadPerChannel, Reception::Caller];
/// Lengths in one packet; in two, eager; in two, fetched by the receiver.
const LENGTHS: [usize; 7] = [0, MAX_ONE_PACKET + 1, 50, 60_000, MAX_ONE_PACKET - 16, 700_000, 3000];
const SENDERS: usize = 3;
const ROUNDS: usize = 60;

/// Receives while `run` runs, if the process has no threads for that.
fn receiving<R>(rsr: &motet_rsr::Rsr, reception: Reception, run: impl FnOnce() -> R) -> R {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if reception == Reception::Caller {
            scope.spawn(|| {
                while !ended.load(Ordering::SeqCst) {
                    rsr.poll(Some(Duration::from_millis(5))).unwrap();
                }
            });
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        ended.store(true, Ordering::SeqCst);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn requests_of_all_lengths_are_handled_in_order() {
    for driver in ["shm", "tcp"] {
        for reception in ALL {
            for memory in [1 << 30, 1 << 20] {
                in_order(driver, reception, memory);
            }
        }
    }
}

/// Three threads of one process send requests of all lengths; the numbers of each arrive in order.
fn in_order(driver: &str, reception: Reception, memory: usize) {
    let server = attach_for_hosts(Options { memory, ..with(reception) });
    let client = attach(Options::default());
    let seen: Arc<[AtomicU64; SENDERS]> = Arc::default();
    let wrong: Arc<Mutex<Vec<String>>> = Arc::default();
    let (count, report) = (seen.clone(), wrong.clone());
    let endpoint = server.endpoint(Handlers::new().on(1, move |request: &mut Request<'_>| {
        let mut reader = request.reader();
        let (sender, number): (u32, u64) = (reader.get().unwrap(), reader.get().unwrap());
        let block = reader.get_block().unwrap();
        let expected = count[sender as usize].fetch_add(1, Ordering::SeqCst);
        let length = LENGTHS[(number as usize + sender as usize) % LENGTHS.len()];
        if expected != number || block.len() != length || block.iter().any(|byte| *byte != number as u8) {
            report.lock().unwrap().push(format!("{number} of {} B instead of {expected}", block.len()));
        }
    }));
    let mut start = endpoint.as_ref().unwrap().startpoint().unwrap();
    start.choose(Some(driver)).unwrap();
    receiving(&server, reception, || {
        std::thread::scope(|scope| {
            for sender in 0..SENDERS {
                let (client, start) = (&client, &start);
                scope.spawn(move || {
                    for number in 0..ROUNDS {
                        let block = vec![number as u8; LENGTHS[(number + sender) % LENGTHS.len()]];
                        let mut buffer = Buffer::new();
                        buffer.put(sender as u32).put(number as u64).put_block(&block);
                        client.request(start, 1, &buffer, LIMIT).unwrap();
                    }
                });
            }
        });
        until(|| seen.iter().all(|seen| seen.load(Ordering::SeqCst) == ROUNDS as u64));
        until(|| server.held() == 0);
    });
    assert_eq!(*wrong.lock().unwrap(), Vec::<String>::new(), "{driver} {reception:?}");
}

#[test]
fn a_peer_that_fills_its_line_and_sends_no_data_loses_its_channel() {
    for reception in ALL {
        let options = Options { reply_limit_ns: 200_000_000, ..with(reception) };
        let (server, friend) = (attach(options), attach(Options::default()));
        let endpoint = server.endpoint(Handlers::new().on(1, |request| {
            if request.wants_reply() {
                request.reply(&Buffer::new()).unwrap();
            }
        }));
        let endpoint = endpoint.unwrap();
        let start = endpoint.startpoint().unwrap();
        let node = Node::open("").unwrap();
        receiving(&server, reception, || {
            let link = node.connect(&server.node().address().unwrap(), LIMIT).unwrap();
            let channel = node.open_channel(link, SERVICE, Serve::Tagged(node.context().unwrap()), LIMIT).unwrap();
            let mut memory = [0; MAX_HEAD];
            let head =
                |apart| Head { apart, handler: Handler::Number(1), is_reply: false, ..Head::reply(ReplyStatus::Done) };
            node.send(channel, number(&start), head(Some((1 << 20, DATA_TAG | 1))).write(&mut memory), LIMIT).unwrap();
            let short = head(None).write(&mut memory).to_vec();
            let padded = [short.as_slice(), &[0; 1000]].concat();
            let mut sent = 0u64;
            // Until the channel is closed: the line takes a bounded number, the window another.
            while node.send(channel, number(&start), &padded, Some(Duration::from_secs(20))).is_ok() {
                sent += 1;
                assert!(sent < 100_000, "the line has no end");
            }
            friend.call(&start, 1, &Buffer::new(), LIMIT).unwrap();
            until(|| server.counts().malformed == 1);
            until(|| server.held() == 0);
        });
    }
}

/// The number of the endpoint of a startpoint.
fn number(start: &Startpoint) -> u64 {
    u64::from_le_bytes(*start.to_bytes()[22..].first_chunk().unwrap())
}
